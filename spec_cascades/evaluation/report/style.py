"""Colours and marks of curves, the same in every picture."""
from __future__ import annotations

import dataclasses
from typing import Iterable, Sequence, TypeVar

from spec_cascades.evaluation import points
from spec_cascades.evaluation import results

Setting = TypeVar('Setting')     # has a temperature, a method and an alpha


@dataclasses.dataclass(frozen=True)
class Mark:
  """How a curve is drawn on a light and on a dark page."""
  light: str
  dark: str
  shape: str                   # a key of `SHAPES`


# Polygons in a box from -1 to 1; None is a circle.
SHAPES = {
    'circle': None,
    'square': ((-.85, -.85), (.85, -.85), (.85, .85), (-.85, .85)),
    'diamond': ((0, -1.15), (1.15, 0), (0, 1.15), (-1.15, 0)),
    'up': ((0, -1.1), (1.1, .85), (-1.1, .85)),
    'down': ((0, 1.1), (1.1, -.85), (-1.1, -.85)),
    'left': ((-1.1, 0), (.85, 1.1), (.85, -1.1))}
MATPLOTLIB = dict(circle='o', square='s', diamond='D', up='^', down='v',
                  left='<')
ALONE = {points.VERIFIER: Mark('#1f2937', '#e6e9ee', 'circle'),
         points.DRAFTER: Mark('#6b7280', '#9ca3af', 'circle')}
MARKS = (
    Mark('#1f5fae', '#7db7ff', 'square'), Mark('#c2570c', '#ffa861', 'up'),
    Mark('#2a7d3b', '#76d28a', 'diamond'), Mark('#7a3fb3', '#c79bff', 'down'),
    Mark('#b3244a', '#ff8aa3', 'left'), Mark('#0b7a80', '#58d0d6', 'circle'),
    Mark('#7a5f10', '#e3c75f', 'square'), Mark('#a8327f', '#ff92d0', 'up'))


def marks(methods: Iterable[str]) -> dict[str, Mark]:
  """A mark per method: their own for the models alone, then in order.

  A colour that comes again has another shape, for 48 methods.
  """
  names = list(dict.fromkeys(methods))
  others = [name for name in names if name not in ALONE]
  found = {name: _mark(i) for i, name in enumerate(others)}
  return {name: ALONE.get(name) or found[name] for name in names}


def _mark(i: int) -> Mark:
  again, colour = divmod(i, len(MARKS))
  mark, shapes = MARKS[colour], list(SHAPES)
  shape = shapes[(shapes.index(mark.shape) + again) % len(shapes)]
  return dataclasses.replace(mark, shape=shape)


def by_temperature(rows: Sequence[Setting]
                   ) -> dict[float, dict[str, list[Setting]]]:
  """Rows and the like by temperature (falling), method and rising alpha."""
  out: dict[float, dict[str, list[Setting]]] = {}
  for row in sorted(rows, key=lambda r: (-r.temperature, r.alpha or 0)):
    out.setdefault(row.temperature, {}).setdefault(row.method, []).append(row)
  order = list(dict.fromkeys(row.method for row in rows))
  return {heat: dict(sorted(curves.items(), key=lambda c: order.index(c[0])))
          for heat, curves in out.items()}


def anchor(row: results.Row) -> str:
  """Names a point within a page, and in the page of another run, too."""
  return row.key[:12]


def title(temperature: float) -> str:
  """Heading of one panel."""
  return ('greedy, T = 0' if temperature == 0
          else f'sampling, T = {temperature:g}')


def clock(row: results.Row) -> str:
  """On what latency was measured."""
  times = f', {row.trials} times' if row.trials > 1 else ''
  rows = f'batch {row.timed_batch}{times}'
  if row.timed == row.examples and row.batch == 1:
    return rows
  return f'latency of {row.timed} at {rows}'
