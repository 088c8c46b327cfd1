"""Settings chosen on some texts and reported on others.

The best of several settings looks better on the texts that it was picked on
than it is: so a share of the texts, the validation half, picks, and the rest,
the test half, is what is reported.
"""
from __future__ import annotations

import dataclasses
import hashlib
from typing import Mapping, Sequence

import numpy as np

from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import measured as measured_lib
from spec_cascades.evaluation import points as points_lib

VALIDATION = .5          # share of the texts
LEAST = 2                 # timed texts that a half needs for an interval
FAST, GOOD = ('fastest with the verifier\'s quality',
              'best within the verifier\'s time')


@dataclasses.dataclass(frozen=True)
class Choice:
  """A setting that the validation half picked, as the test half sees it.

  Attributes:
    method: Name of the curve.
    temperature: Of the curve.
    goal: What was looked for: `FAST` or `GOOD`.
    point: The setting; None if the validation half saw none like it.
    speedup: Verifier's time over its own, on the test half.
    gain: Its quality minus the verifier's, on the test half.
    quality: Its quality on the test half.
  """
  method: str
  temperature: float
  goal: str
  point: points_lib.Point | None = None
  speedup: frontier.Estimate | None = None
  gain: frontier.Estimate | None = None
  quality: float | None = None


@dataclasses.dataclass(frozen=True)
class Choosing:
  """All choices, and between how many texts; none if there are too few.

  `timed` and `test_timed` of these have a latency.
  """
  validation: int
  test: int
  timed: int
  test_timed: int
  choices: list[Choice]


def check_share(validation: float) -> None:
  """Raises ValueError for a share of texts that leaves no half."""
  number = isinstance(validation, (int, float))
  if not number or not 0 < validation < 1:
    raise ValueError(f'Got validation={validation!r}; allowed: a share of the '
                     'texts between 0 and 1, such as 0.5.')


def validates(texts: Sequence[str], validation: float, seed: int) -> np.ndarray:
  """Which texts are for choosing: [n].

  A text's own content decides, so that it is on one side in every sweep, and
  so are its copies.

  Args:
    texts: A digest of each.
    validation: Share of the texts, on average.
    seed: Another one divides in another way.
  """
  check_share(validation)
  draw = lambda text: int.from_bytes(
      hashlib.sha256(f'{seed} {text}'.encode()).digest()[:8]) / 2**64
  return np.array([draw(text) < validation for text in texts], bool)


def choose(measured: measured_lib.Measured) -> Choosing:
  """Picks for each curve the fastest setting and the best one."""
  ours = validates(measured.texts, measured.validation, measured.seed)
  timed = ours[:measured.plan.timed]
  sizes = [int(x.sum()) for x in (ours, ~ours, timed, ~timed)]
  if min(sizes[2:]) < LEAST:
    return Choosing(*sizes, [])
  seen = measured.samples(ours, count=0)
  choices = [
      (place, goal, key)
      for place, keys in measured_lib.curves(measured.points).items()
      for goal, key in picked(seen, keys, measured.base[place[1]]).items()]
  needed = {key for _, _, key in choices if key} | {*measured.base.values()}
  test = measured.samples(~ours, sorted(needed))
  return Choosing(*sizes, [_reported(*choice, measured, test)
                           for choice in choices])


def picked(seen: Mapping[str, frontier.Samples], keys: Sequence[str],
           verifier: str) -> dict[str, str | None]:
  """Of a curve's points, the key for each goal; None where none fits."""
  good = [k for k in keys if seen[k].quality >= seen[verifier].quality]
  fast = [k for k in keys if seen[k].latency <= 1]
  return {FAST: min(good, key=lambda k: seen[k].latency, default=None),
          GOOD: min(fast, key=lambda k: (-seen[k].quality, seen[k].latency),
                    default=None)}


def _reported(place, goal, key, measured, test) -> Choice:
  if key is None:
    return Choice(*place, goal)
  found, verifier = test[key], test[measured.base[place[1]]]
  return Choice(
      *place, goal, measured.points[key],
      frontier.estimate(1 / found.all_latencies, 1.0),
      frontier.estimate(found.all_qualities - verifier.all_qualities, 0.0),
      found.quality)
