"""A decode shown round by round, each token in the colour of its origin."""
from __future__ import annotations

import dataclasses
from typing import Mapping

from spec_cascades.evaluation import translate

# Colour of the terminal, and a mark where there are no colours.
ORIGINS = {'accepted': ('32', '+'), 'corrected': ('33', '~'),
           'bonus': ('34', '*')}
MEANING = {'accepted': 'draft accepted', 'corrected': 'draft corrected',
           'bonus': 'bonus'}


def has_colour(terminal: bool, environment: Mapping[str, str]) -> bool:
  """Colours on terminals; NO_COLOR and FORCE_COLOR say otherwise."""
  if environment.get('NO_COLOR'):
    return False
  return terminal or bool(environment.get('FORCE_COLOR'))


@dataclasses.dataclass(frozen=True)
class Painter:
  """Paints tokens; without colours it puts a mark before each instead."""
  colour: bool

  def paint(self, text: str, origin: str) -> str:
    """The text as a token of this origin."""
    code, mark = ORIGINS[origin]
    return f'\x1b[{code}m{text}\x1b[0m' if self.colour else f'{mark}{text}'

  def legend(self) -> str:
    """What the colours, or marks, mean."""
    return '  '.join(self.paint(MEANING[name], name) for name in ORIGINS)

  def line(self, number: int, step: translate.Step) -> str:
    """One round: number, kept of drafted, tokens."""
    kept = sum(piece.origin == 'accepted' for piece in step.pieces)
    tokens = ' '.join(self.paint(p.text, p.origin) for p in step.pieces)
    return f'{number:4d}  {kept}/{step.drafted}  {tokens}'
