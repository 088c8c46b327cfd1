"""Inspected texts: every token with its origin and probabilities; their file.

`origins` makes them, the report shows them.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Sequence

from spec_cascades.data import files

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Token:
  """One token of a text.

  Attributes:
    text: The characters that it adds, or its piece if it adds none.
    origin: 'accepted', 'corrected' or 'bonus'; '' where nothing was drafted.
    q: The drafter's probability at temperature 1; None where no model has it.
    p: The verifier's.
    pi: That of the target distribution; None where there is none, or where it
      follows from a q that no model has.
  """
  text: str
  origin: str
  q: float | None
  p: float
  pi: float | None


@dataclasses.dataclass(frozen=True)
class Decoded:
  """One text at one point.

  Attributes:
    key: Of the point.
    tokens: Of the text, its end among them.
    calls: Of the verifier.
    same: Whether the sweep wrote these tokens, too; a near-tie, which rounding
      decides, may fall otherwise in a batch.
  """
  key: str
  tokens: tuple[Token, ...]
  calls: int
  same: bool


@dataclasses.dataclass(frozen=True)
class Text:
  """A source, what it should become, and what became of it at every point."""
  id: str
  source: str
  references: tuple[str, ...]
  decoded: tuple[Decoded, ...]


def write(path: pathlib.Path, sweep: str, texts: Sequence[Text]) -> None:
  """Saves all or nothing; `sweep` is the content key of the sweep."""
  lists = [dict(dataclasses.asdict(text), decoded=[
      dict(dataclasses.asdict(x), tokens=list(map(dataclasses.astuple,
                                                  x.tokens)))
      for x in text.decoded]) for text in texts]
  files.write_atomically(path, json.dumps(
      dict(schema=SCHEMA, sweep=sweep, texts=lists), ensure_ascii=False))


def read(path: pathlib.Path, sweep: str) -> list[Text]:
  """The inverse of `write`.

  Raises:
    ValueError: Not such a file, or that of another sweep; the message names it.
  """
  try:
    content = json.loads(path.read_text(encoding='utf-8'))
    if (content['schema'], content['sweep']) != (SCHEMA, sweep):
      raise ValueError
    return [Text(**{**text, 'references': tuple(text['references']), 'decoded':
                    tuple(Decoded(**{**x, 'tokens': tuple(
                        Token(*token) for token in x['tokens'])})
                          for x in text['decoded'])})
            for text in content['texts']]
  except (ValueError, TypeError, KeyError):
    raise ValueError(f'{path} does not hold inspected texts of this sweep; '
                     'move it away, and the same command makes it anew.'
                     ) from None
