"""Text of tokens that arrive a few at a time."""
from __future__ import annotations

import codecs
import dataclasses
from typing import Iterator, Protocol, Sequence

# A character of UTF-8 has so many bytes at most.
CHARACTER = 4


class Vocabulary(Protocol):
  """What text.Vocabulary and tokenizers.Tokenizer can both do."""

  def decode(self, tokens: Sequence[int]) -> str:
    """The text of tokens; more tokens never change its beginning."""

  def piece(self, token: int) -> str:
    """A token as the vocabulary spells it."""

  def raw(self, token: int) -> bytes | None:
    """Bytes of a token that may end inside a character; else None."""


class Detokenizer:
  """Turns tokens into text as they come, never half a character.

  What `add` and `finish` return, joined, is `vocabulary.decode` of all tokens.
  A token that ends in the middle of a UTF-8 character is held back until the
  character is complete; a piece's leading space is kept unless it opens the
  text.
  """

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self._tokens: list[int] = []
    self._shown = ''

  def add(self, token: int) -> str:
    """The text that one more token completes; EOS and padding have none."""
    self._tokens.append(int(token))
    whole = len(self._tokens) - self._pending()
    return self._show(self._tokens[:whole])

  def finish(self) -> str:
    """What was held back, broken characters included."""
    return self._show(self._tokens)

  def _show(self, tokens: Sequence[int]) -> str:
    found = self._vocabulary.decode(tokens)
    new, self._shown = found[len(self._shown):], found
    return new

  def _pending(self) -> int:
    """How many tokens at the end are bytes of a character not yet complete."""
    run = []
    for token in reversed(self._tokens):
      raw = self._vocabulary.raw(token)
      if raw is None or sum(map(len, run)) >= CHARACTER:
        break
      run.insert(0, raw)
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    decoder.decode(b''.join(run))
    open_bytes, count = len(decoder.getstate()[0]), 0
    while open_bytes > 0:
      count += 1
      open_bytes -= len(run[-count])
    return count


@dataclasses.dataclass(frozen=True)
class Piece:
  """One token as text, and where it came from."""
  text: str
  origin: str               # 'accepted', 'corrected' or 'bonus'


def pieces(vocabulary: Vocabulary, tokens: Sequence[int],
           origins: Sequence[str]) -> Iterator[Piece]:
  """The tokens of a round as they are spelt in the vocabulary."""
  for token, origin in zip(tokens, origins, strict=True):
    yield Piece(_visible(vocabulary.piece(int(token))), origin)


def _visible(piece: str) -> str:
  """Line breaks and the like as escapes, so that a trace keeps its lines."""
  return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode()
                 for c in piece)
