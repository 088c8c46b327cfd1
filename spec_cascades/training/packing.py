"""Several pairs in one row, so that little of a batch is padding.

    inputs            a a a b b c c .        targets           x x y z z z . .
    input_segments    1 1 1 2 2 3 3 0        target_segments   1 1 2 3 3 3 0 0

A segment is a pair; 0 is padding. Nothing attends across segments and positions
begin anew in each, see `models.segments`.
"""
from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np

OPEN = 512                             # rows that a pair may still go to
FULL = np.iinfo(np.int64).max


def assign(lengths: np.ndarray, widths: tuple[int, int], *, seed: int = 0,
           rows: int = OPEN) -> list[list[int]]:
  """Which pairs share a row: each goes where it leaves the least room.

  Pairs come in an order drawn from the seed. Where one fits into none of the
  open rows, the fullest is closed. A pair that no row can hold is refused.

  Args:
    lengths: Tokens of each input and target [n, 2].
    widths: Of rows of inputs and of targets.
    seed: Of the order.
    rows: That are open at a time.

  Returns:
    The pairs of each row: every pair once.

  Raises:
    ValueError: A pair is longer than a row.
  """
  lengths = np.asarray(lengths, np.int64).reshape(-1, 2)
  if (long := (lengths > widths).any(1)).any():
    worst = tuple(map(int, lengths[np.argmax(long)]))
    raise ValueError(f'A pair of {worst} tokens does not fit into rows of '
                     f'{tuple(widths)}; leave it out, or give wider rows.')
  free = np.tile(np.array(widths, np.int64)[:, None], rows)
  held, closed = [[] for _ in range(rows)], []
  for pair in np.random.default_rng(seed).permutation(len(lengths)).tolist():
    left = free - lengths[pair][:, None]
    room = np.where((left < 0).any(0), FULL, left.sum(0))
    best = int(room.argmin())
    if room[best] == FULL:
      best = int(free.sum(0).argmin())
      closed.append(held[best])
      held[best], free[:, best] = [], widths
    held[best].append(pair)
    free[:, best] -= lengths[pair]
  return closed + [row for row in held if row]


def packed(buckets: Mapping[int, Mapping[str, np.ndarray]],
           widths: tuple[int, int], *, seed: int = 0) -> dict[str, np.ndarray]:
  """The pairs of all buckets in rows, and a last row that holds none.

  Args:
    buckets: See `data.ParallelText.bucketed`.
    widths: Of rows of inputs and of targets, W and T.
    seed: Of which pairs share a row.

  Returns:
    `inputs` and `input_segments` [n + 1, W], `targets`, `target_segments` and
    `weights` [n + 1, T].
  """
  pairs = [(source[:n], target[:int(weights.sum())])
           for x in buckets.values() for source, n, target, weights in zip(
               x['inputs'], x['input_lengths'], x['targets'], x['weights'])]
  lengths = np.array([(len(a), len(b)) for a, b in pairs], np.int64)
  rows = [*assign(lengths, widths, seed=seed), []]
  sides = [_laid([[pair[side] for pair in map(pairs.__getitem__, row)]
                  for row in rows], widths[side]) for side in (0, 1)]
  (inputs, input_segments), (targets, target_segments) = sides
  return dict(inputs=inputs, input_segments=input_segments, targets=targets,
              target_segments=target_segments,
              weights=(target_segments > 0).astype(np.float32))


def _laid(rows: Sequence[Sequence[np.ndarray]], width: int
          ) -> tuple[np.ndarray, np.ndarray]:
  """Tokens of each row one behind the other, and their segments, from 1."""
  tokens = np.zeros((len(rows), width), np.int32)
  segments = np.zeros_like(tokens)
  for row, parts in enumerate(rows):
    if parts:
      joined = np.concatenate(parts)
      tokens[row, :len(joined)] = joined
      segments[row, :len(joined)] = np.repeat(
          np.arange(1, len(parts) + 1), [len(x) for x in parts])
  return tokens, segments
