"""Text of tokens that arrive a few at a time."""
from __future__ import annotations

import codecs
import dataclasses
from typing import Iterator, Sequence

from spec_cascades.evaluation import text



class Detokenizer:
  """Turns tokens into text as they come, never half a character.

  What `add` and `finish` return, joined, is `vocabulary.decode` of all tokens.
  A token that ends in the middle of a UTF-8 character is held back until the
  character is complete; a piece's leading space is kept unless it opens the
  text.
  """

  def __init__(self, vocabulary: text.Vocabulary):
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
    model, run = self._vocabulary.model, []
    for token in reversed(self._tokens):
      if not model.is_byte(token):
        break
      run.append(int(model.id_to_piece(token)[3:5], 16))
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    decoder.decode(bytes(reversed(run)))
    return len(decoder.getstate()[0])


@dataclasses.dataclass(frozen=True)
class Piece:
  """One token as text, and where it came from."""
  text: str
  origin: str               # 'accepted', 'corrected' or 'bonus'


def pieces(vocabulary: text.Vocabulary, tokens: Sequence[int],
           origins: Sequence[str]) -> Iterator[Piece]:
  """The tokens of a round as they are spelt in the vocabulary."""
  for token, origin in zip(tokens, origins, strict=True):
    yield Piece(vocabulary.model.id_to_piece(int(token)), origin)
