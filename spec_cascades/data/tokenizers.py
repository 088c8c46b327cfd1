"""What models read and write, as their checkpoints want it.

`Tokenizer` adds to `words` what a checkpoint puts around them: tokens before
and behind a text, its end, a chat template. It is plain data, too.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import time
from typing import Any, Callable, Mapping, Sequence

from spec_cascades.data import words as words_lib

JSON = 'tokenizer.json'
SENTENCEPIECE = ('tokenizer.model', 'spiece.model', 'sentencepiece.model',
                 'sentencepiece.bpe.model')
SETTINGS = ('tokenizer_config.json', 'special_tokens_map.json',
            'generation_config.json', 'config.json')
TEMPLATE = 'chat_template.jinja'
NUMBER = re.compile('[0-9]{1,9}')
# Tokenizers without a limit say that they take this many tokens, or more.
NO_LIMIT = 10**9


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Words, and how a checkpoint uses them.

  Attributes:
    words: Text <-> pieces.
    eos: Ends a text.
    bos: Begins one, if the checkpoint has such a token.
    pad: Fills rows up.
    before: Tokens that `encode` puts before a text.
    behind: Tokens that it puts behind.
    turn_end: Ends an answer in a chat, if that is another token than `eos`.
    template: Chat template in Jinja, as transformers writes them.
    context: The longest text that the model was made for, if it says.
    rows: Embeddings of the model, if a special token may lack one.
    other_ends: Further tokens that end an answer.
  """
  words: words_lib.Words
  eos: int
  bos: int | None = None
  pad: int = 0
  before: tuple[int, ...] = ()
  behind: tuple[int, ...] = ()
  turn_end: int | None = None
  template: str | None = dataclasses.field(default=None, repr=False)
  context: int | None = None
  rows: int | None = None
  other_ends: tuple[int, ...] = ()

  @property
  def size(self) -> int:
    """Number of tokens."""
    return self.words.size

  @property
  def specials(self) -> frozenset[int]:
    """Tokens that have no text; some may lack an embedding."""
    return self.words.specials

  @property
  def ends(self) -> tuple[int, ...]:
    """Tokens that end a text, `eos` first."""
    given = (self.eos, *self.other_ends, self.turn_end)
    return tuple(dict.fromkeys(t for t in given if t is not None))

  def encode(self, text: str) -> list[int]:
    """Tokens of a text; special ones may be spelt in it, as in `chat`'s.

    Raises:
      ValueError: It spells one that the model has no embedding for.
    """
    tokens = self.words.encode(text)
    if self.rows is not None and max(tokens, default=0) >= self.rows:
      raise ValueError(f'The text has {self.piece(max(tokens))!r}, which the '
                       'model has no embedding for; leave it out.')
    given = tuple(tokens[:len(self.before)]) == self.before
    return [*(() if given else self.before), *tokens, *self.behind]

  def bare(self, text: str) -> list[int]:
    """Tokens of a text, nothing before or behind them."""
    return self.words.encode(text)

  def decode(self, tokens: Sequence[int]) -> str:
    """The text of tokens up to the first end; special ones have no text."""
    known, ends = [], self.ends
    for token in map(int, tokens):
      if token in ends:
        break
      if 0 <= token < self.size and token not in (self.bos, self.pad):
        known.append(token)
    return self.words.decode(known)

  def piece(self, token: int) -> str:
    """A token as the vocabulary spells it."""
    return self.words.piece(token) if 0 <= token < self.size else ''

  def raw(self, token: int) -> bytes | None:
    """Bytes of a token that may end inside a character; else None.

    A token without text has none, and characters go on behind it.
    """
    silent = token in (self.bos, self.pad, *self.ends)
    if silent or token in self.words.specials or not 0 <= token < self.size:
      return b''
    return self.words.raw(token)

  def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
    """Messages as one text that an answer follows; it is for `encode`.

    Args:
      messages: Each with a `role` (user, assistant, system) and a `content`.

    Raises:
      ValueError: There is no template, or it refuses the messages.
    """
    if self.template is None:
      raise ValueError('The checkpoint has no chat template; give the prompt '
                       'as plain text.')
    spelt = lambda token: '' if token is None else self.piece(token)
    return render(self.template, messages=list(messages),
                  add_generation_prompt=True, bos_token=spelt(self.bos),
                  eos_token=spelt(self.eos))


def render(template: str, **names: Any) -> str:
  """Fills a chat template in; it reads and changes nothing else."""
  try:
    import jinja2  # pylint: disable=g-import-not-at-top
    from jinja2 import sandbox  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise ValueError('Chat templates need the jinja2 package; run pip install '
                     '--no-deps -r requirements-weights.txt.') from None

  def refuse(why):
    raise jinja2.TemplateError(why)

  rooms = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True,
      extensions=['jinja2.ext.loopcontrols'])
  rooms.globals.update(raise_exception=refuse, strftime_now=time.strftime)
  rooms.filters['tojson'] = lambda x, indent=None: json.dumps(
      x, ensure_ascii=False, indent=indent)
  try:
    return rooms.from_string(template).render(**names)
  except Exception as error:  # pylint: disable=broad-except
    # A template is a program: it can fail in any way.
    why = ' '.join(str(error).split())[:200]
    raise ValueError(f'The chat template fails: {why}.') from None


def of_directory(path: str | os.PathLike) -> Tokenizer | None:
  """The tokenizer of a checkpoint in Hugging Face's layout; None without one.

  A tokenizer.json is preferred to a SentencePiece model. Whether BOS and EOS
  are added is what the former's post-processor does, or what
  tokenizer_config.json says; else BOS is, or, without one (T5), EOS.

  Raises:
    ValueError: A file is damaged, or nothing says which token ends a text.
  """
  path = pathlib.Path(path).expanduser()
  says = _Settings(path)
  if (path / JSON).is_file():
    blob = _text(path / JSON)
    words = words_lib.Json(blob, str(path / JSON))
    before, behind = around(words)
  else:
    file = next((path / n for n in SENTENCEPIECE if (path / n).is_file()), None)
    if file is None:
      return None
    model = words_lib.SentencePiece(file.read_bytes(), (), str(file))
    words = dataclasses.replace(model, added=says.added(model.size))
    before = behind = None
  return _used(words, before, behind, says)


def of_model(path: str | os.PathLike) -> Tokenizer:
  """A SentencePiece model alone; it says itself which tokens are special.

  Raises:
    ValueError: It is damaged, or has no token that ends a text.
  """
  path = pathlib.Path(path).expanduser()
  model = words_lib.SentencePiece(path.read_bytes(), (), str(path))
  return _used(model, None, None, _Settings(path, read=False))


def _used(words: words_lib.Words, before: tuple[int, ...] | None,
          behind: tuple[int, ...] | None, says: _Settings) -> Tokenizer:
  """Words with what the files beside them say; None asks these."""
  eos = says.token('eos', words)
  if eos is None:
    raise ValueError(f'{says.path}: no file says which token ends a text; '
                     f'{SETTINGS[0]} needs an eos_token.')
  bos, pad = says.token('bos', words), says.token('pad', words)
  if before is None:
    adds = says.flag('add_bos_token', bos is not None)
    before = (bos,) if adds and bos is not None else ()
    behind = (eos,) * says.flag('add_eos_token', bos is None)
  ends, template = says.other_ends(eos, words), says.template()
  turn_end = turn_ending(template, eos, ends, words.piece)
  return Tokenizer(words, eos, bos, eos if pad is None else pad, before, behind,
                   turn_end, template, says.context(),
                   other_ends=tuple(t for t in ends if t != turn_end))


def turn_ending(template: str | None, eos: int, others: Sequence[int],
                piece: Callable[[int], str]) -> int | None:
  """Which of some ends a chat's turn has, if it is not `eos`; None if it is.

  The one that the template spells, `eos` before others: turns of Qwen and Llama
  end with it, Gemma's do not. Without a template the first of the others.

  Args:
    template: Of a chat, if there is one.
    eos: What ends a text.
    others: Further tokens that end one.
    piece: How a token is spelt.
  """
  spelt = [t for t in (eos, *others) if template and piece(t) in template]
  if spelt:
    return None if spelt[0] == eos else spelt[0]
  named = template is not None and 'eos_token' in template
  return None if named or not others else others[0]


def around(words: words_lib.Json) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """What a post-processor puts before and behind a text."""
  bare = words.encode('a')
  full = words.surrounded('a')
  for i in range(len(full) - len(bare) + 1):
    if full[i:i + len(bare)] == bare:
      return tuple(full[:i]), tuple(full[i + len(bare):])
  return (), ()


class _Settings:
  """What the small files beside a tokenizer say, the first that does."""

  def __init__(self, path: pathlib.Path, read: bool = True):
    self.path = path
    self.files = {name: self._read(path / name) if read else {}
                  for name in SETTINGS}

  def _read(self, file) -> dict[str, Any]:
    if not file.is_file():
      return {}
    try:
      found = json.loads(_text(file))
      json.dumps(found, ensure_ascii=False).encode()     # half characters
    except (ValueError, RecursionError) as error:
      raise ValueError(f'{file} is not JSON ({error}); get the file '
                       'again.') from None
    return found if isinstance(found, dict) else {}

  def get(self, key: str) -> Any:
    """A value; None if no file has one."""
    values = (found.get(key) for found in self.files.values())
    return next((x for x in values if x is not None), None)

  def flag(self, key: str, default: bool) -> bool:
    """A truth value."""
    value = self.get(key)
    return value if isinstance(value, bool) else default

  def token(self, kind: str, words: words_lib.Words) -> int | None:
    """The token that `kind`_token spells or `kind`_token_id numbers."""
    spelt, number = self.get(f'{kind}_token'), self.get(f'{kind}_token_id')
    spelt = _spelt(spelt)
    if spelt is not None:
      return words.find(spelt)
    number = number[0] if isinstance(number, list) and number else number
    if type(number) is int and 0 <= number < words.size:
      return number
    return words.own(kind)

  def other_ends(self, eos: int, words: words_lib.Words) -> tuple[int, ...]:
    """The other tokens that end an answer."""
    ends = self.files['generation_config.json'].get('eos_token_id')
    ends = ends if isinstance(ends, list) else []
    return tuple(dict.fromkeys(t for t in ends if type(t) is int and t != eos
                               and 0 <= t < words.size))

  def added(self, size: int) -> tuple[str, ...]:
    """Pieces that a SentencePiece model of `size` was given later."""
    found = {}
    added = self.get('added_tokens_decoder')
    for token, what in added.items() if isinstance(added, dict) else ():
      number = int(token) if NUMBER.fullmatch(token) else -1
      if number >= size and isinstance(what, dict):
        found[number] = str(what.get('content'))
    extra = self.get('additional_special_tokens')
    extra = list(map(_spelt, extra)) if isinstance(extra, list) else []
    if not found and all(x and x.startswith('<extra_id_') for x in extra):
      # T5 numbers its sentinels from the end.
      found = {size + i: x for i, x in enumerate(reversed(extra))}
    if sorted(found) != list(range(size, size + len(found))):
      raise ValueError(f'{self.path}: the added tokens do not follow the '
                       f'{size} of the SentencePiece model; get the files '
                       'again.')
    return tuple(found[token] for token in sorted(found))

  def template(self) -> str | None:
    """The chat template, the one called default if there are several."""
    file = self.path / TEMPLATE
    if file.is_file():
      return _text(file)
    found = self.get('chat_template')
    if isinstance(found, list):
      found = next((x.get('template') for x in found if isinstance(x, dict)
                    and x.get('name') == 'default'), None)
    return found if isinstance(found, str) else None

  def context(self) -> int | None:
    """The longest text, if there is a limit."""
    longest = self.get('model_max_length')
    known = type(longest) is int and 0 < longest < NO_LIMIT
    return longest if known else None


def _spelt(token: Any) -> str | None:
  """What a token's entry spells: it is a string, or says more than that."""
  found = token.get('content') if isinstance(token, dict) else token
  return found if isinstance(found, str) else None


def _text(file: pathlib.Path) -> str:
  try:
    return file.read_text(encoding='utf-8')
  except UnicodeDecodeError:
    raise ValueError(f'{file} is not UTF-8; get the file again.') from None
