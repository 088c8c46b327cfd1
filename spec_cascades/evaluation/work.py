"""What a sweep has to decode, in units that processes can share.

Where every example is timed once, the timed decodes are also those that quality
is measured on. Otherwise quality comes first, from batches that nobody times,
and then the clock, at a batch of its own, which is 1 if nobody asks.
"""
from __future__ import annotations

import collections
import dataclasses
from typing import Sequence

from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import timing

# (content key of a point, example, trial)
Decode = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class Plan:
  """How often what is decoded.

  Attributes:
    examples: How many there are.
    timed: The first so many are timed.
    trials: How often each of these is timed.
    batch: Rows decoded together where only quality counts.
    timed_batch: Rows of one bucket that are timed together.
  """
  examples: int
  timed: int
  trials: int
  batch: int
  timed_batch: int = 1

  @property
  def staged(self) -> bool:
    """Whether quality and latency come from different decodes."""
    return self.timed < self.examples or self.batch > 1

  @property
  def clocked(self) -> range:
    """Trials that are timed; trial 0 is what quality is measured on."""
    return range(self.staged, self.trials + self.staged)

  def decodes(self, key: str) -> list[Decode]:
    """All of one point."""
    untimed = [(key, i, 0) for i in range(self.examples if self.staged else 0)]
    return untimed + [(key, i, trial) for trial in self.clocked
                      for i in range(self.timed)]


@dataclasses.dataclass(frozen=True)
class Unit:
  """Decodes that one process makes in one go."""
  decodes: tuple[Decode, ...]
  timed: bool


def units(plan: Plan, keys: Sequence[str],
          buckets: Sequence[programs_lib.Bucket], seed: int,
          early: Sequence[str] = ()) -> list[Unit]:
  """All work, in order.

  Args:
    plan: How often what is decoded.
    keys: Content keys of the points.
    buckets: Of each example; a batch is of one bucket.
    seed: Of the order of points.
    early: Whose batches come first: the more there is to do on one program, the
      more time others have to compile.
  """
  out = []
  if plan.staged:
    out += [Unit(tuple((key, i, 0) for i in group), False)
            for key in dict.fromkeys((*early, *keys))
            for group in grouped(buckets, plan.batch)]
  groups = sorted(grouped(buckets[:plan.timed], plan.timed_batch))
  for trial in plan.clocked:
    orders = collections.defaultdict(list)
    for at, point in timing.interleaved(len(groups), len(keys), seed + trial):
      orders[at] += [(keys[point], example, trial) for example in groups[at]]
    out += [Unit(tuple(order), True) for order in orders.values()]
  return out


def grouped(buckets: Sequence[programs_lib.Bucket],
            size: int) -> list[list[int]]:
  """Examples of one bucket, so many at a time: a b a a, 2 -> 0 2, 3, 1."""
  rows = collections.defaultdict(list)
  for example, bucket in enumerate(buckets):
    rows[bucket].append(example)
  return [group[at:at + size] for group in rows.values()
          for at in range(0, len(group), size)]
