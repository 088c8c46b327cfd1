"""The batches of an epoch: which rows, by the seed and the epoch alone.

Of a Mixture an epoch has as many rows as there are, of each Task by its rate:
its rows are dealt out pass by pass, each pass in an order of its own, and an
epoch goes on where the one before has ended. With 4 rows and 3 an epoch:

    passes   2 0 3 1 | 1 3 0 2 | ...
    epochs   2 0 3 | 1 1 3 | 0 2 ...
"""
from __future__ import annotations

import functools
from typing import Mapping, Sequence

import numpy as np

Parts = list[tuple[np.ndarray, int]]   # rows of each Task, and how many of them


class Epochs:
  """epoch -> its batches, each a width and rows.

  Args:
    sizes: By width, how many rows there are.
    rows: By width, how many a batch has.
    seed: Of the order.
    filled: Whether a last batch is filled up, with -1, or left out.
    parts: By width, what `mixed` gives; None: each row is there once.

  Raises:
    ValueError: Rows are packed, and so filled, and there are parts.
  """

  def __init__(self, sizes: Mapping[int, int], rows: Mapping[int, int], *,
               seed: int, filled: bool = False,
               parts: Mapping[int, Parts] | None = None):
    if filled and parts is not None:
      raise ValueError('Got a Mixture with rates and packed texts, whose rows '
                       'are the same in every epoch; allowed: one of the two. '
                       'Set seqio_lines.SeqioLines.rates or '
                       'data.ParallelText.packed to False.')
    self._rows, self._seed, self._parts = dict(rows), seed, parts
    self._sizes = dict(sizes) if parts is None else {
        width: sum(count for _, count in parts[width]) for width in sizes}
    self._filled = filled
    self._plan = functools.lru_cache(maxsize=2)(self._planned)

  def batches(self, width: int) -> int:
    """Of an epoch."""
    size, rows = self._sizes[width], self._rows[width]
    return -(-size // rows) if self._filled else size // rows

  def __call__(self, epoch: int) -> list[tuple[int, np.ndarray]]:
    return self._plan(epoch)

  def _planned(self, epoch):
    rng = np.random.default_rng((self._seed, epoch))
    plan = []
    for width, rows in self._rows.items():
      whole = self.batches(width) * rows
      order = rng.permutation(self._held(width, epoch))[:whole]
      order = np.pad(order, (0, whole - len(order)), constant_values=-1)
      plan += [(width, part) for part in order.reshape(-1, rows)]
    return [plan[i] for i in rng.permutation(len(plan))]

  def _held(self, width, epoch):
    """The rows of an epoch, or how many there are if it is all of them."""
    if self._parts is None:
      return self._sizes[width]
    return np.concatenate([
        dealt(rows, count, epoch, (self._seed, width, i))
        for i, (rows, count) in enumerate(self._parts[width])])


def mixed(numbers: Mapping[int, Sequence[int]], rates: Sequence[float]
          ) -> dict[int, Parts]:
  """Rows of each Task by width, and how many of them an epoch has.

  Args:
    numbers: By width, those of its rows: the row of number n is of Task n
      modulo the count of Tasks.
    rates: Of each Task, relative to each other.
  """
  tasks = {width: np.asarray(x) % len(rates) for width, x in numbers.items()}
  held = sum((np.bincount(x, minlength=len(rates)) for x in tasks.values()),
             np.zeros(len(rates), int))
  shares = np.where(held > 0, np.asarray(rates, np.float64), 0)
  often = held.sum() * shares / max(shares.sum(), 1e-30) / np.maximum(held, 1)
  parts = {}
  for width, task in tasks.items():
    rows = [np.flatnonzero(task == i) for i in range(len(rates))]
    parts[width] = [(x, round(len(x) * times)) for x, times in zip(rows, often)]
  return parts


def dealt(rows: np.ndarray, count: int, epoch: int,
          seed: tuple[int, ...]) -> np.ndarray:
  """`count` of the rows, those of an epoch; see the module."""
  if not count:
    return rows[:0]
  first, last, size = epoch * count, (epoch + 1) * count, len(rows)
  passes = [np.random.default_rng((*seed, i)).permutation(rows)
            for i in range(first // size, -(-last // size))]
  return np.concatenate(passes)[first % size:][:count]
