"""How a text becomes a prompt, and which token ends the answer."""
from __future__ import annotations

import dataclasses
from typing import Any, Sequence

SOURCE = '{source}'


@dataclasses.dataclass(frozen=True)
class Asking:
  """What a model is given besides the text itself.

  Attributes:
    template: Text of the prompt; `{source}` stands for the input.
    chat: Whether it is a message, to be put in the checkpoint's chat template.
    end: Text that ends an answer, one token of the vocabulary, such as a line
      break; None: the token that ends a text, or a turn in a chat.
  """
  template: str = SOURCE
  chat: bool = False
  end: str | None = None

  def __post_init__(self):
    if not isinstance(self.template, str) or SOURCE not in self.template:
      raise ValueError(f'Got the template {self.template!r}; it has to hold '
                       f'{SOURCE}, which stands for the input.')
    if type(self.chat) is not bool:
      raise ValueError(f'Got chat={self.chat!r}; allowed: True or False.')
    if not isinstance(self.end, str | None):
      raise ValueError(f'Got end={self.end!r}; allowed: text, or None.')

  def __call__(self, vocabulary: Any, source: str) -> str:
    """The prompt as text; ValueError if there is no chat template."""
    asked = self.template.replace(SOURCE, source)
    if not self.chat:
      return asked
    return vocabulary.chat([dict(role='user', content=asked)])

  def end_token(self, vocabulary: Any) -> int:
    """The token that ends an answer; ValueError if `end` is not one token."""
    if self.end is None:
      turn_end = getattr(vocabulary, 'turn_end', None) if self.chat else None
      return vocabulary.ends[0] if turn_end is None else turn_end
    before, after = (_bare(vocabulary, 'a' + x) for x in ('', self.end))
    if after[:-1] != before:
      raise ValueError(f'Got end={self.end!r}; allowed: text that the '
                       'vocabulary has one token for, whatever is before it.')
    return after[-1]

  def ends(self, vocabulary: Any) -> tuple[int, ...]:
    """All tokens at which decoding stops: that one, and the vocabulary's."""
    return tuple(dict.fromkeys((self.end_token(vocabulary), *vocabulary.ends)))

  def answer(self, vocabulary: Any, tokens: Sequence[int]) -> str:
    """The text of an answer, up to `end`, which other tokens may hold too."""
    text = vocabulary.decode(tokens)
    return text if self.end is None else text.strip().split(self.end)[0].strip()


def _bare(vocabulary, text) -> list[int]:
  """Tokens of a text, without those that end it."""
  tokens = vocabulary.encode(text)
  while tokens and tokens[-1] in vocabulary.ends:
    tokens.pop()
  return tokens
