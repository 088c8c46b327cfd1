"""Speculative decoding of the embedded sentences against the verifier alone."""
from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from spec_cascades import check
from spec_cascades import targets
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import timing


@dataclasses.dataclass(frozen=True)
class Lossless:
  """Greedy outputs and seconds of the verifier alone and with a drafter.

  Attributes:
    alone: Token ids of each sentence, decoded by the verifier alone.
    speculative: The same, drafted and verified.
    stats: Counters of each speculative decode.
    seconds_alone: Of one pass over all sentences.
    seconds_speculative: The same.
    speedup: Median over passes of the ratio of the two; `low` and `high` are
      its extremes.
  """
  alone: list[list[int]]
  speculative: list[list[int]]
  stats: list[dict[str, Any]]
  seconds_alone: benchmarks.Spread
  seconds_speculative: benchmarks.Spread
  speedup: float
  low: float
  high: float


def sentences(pair: pairs.Pair, limit: int | None = None) -> list[list[int]]:
  """Tokens of the embedded sentences, or of the first so many."""
  return [examples.encode(pair.vocabulary, x.source, pair.max_input_length)
          for x in examples.read(limit=limit)]


def measured(gamma: int, runs: int, *, pair: pairs.Pair | None = None,
             limit: int | None = None) -> Lossless:
  """Decodes the embedded sentences at temperature 0, batch 1, interleaved.

  Args:
    gamma: Draft length.
    runs: Passes over the sentences.
    pair: Models; the shipped ones if None.
    limit: Take the first so many sentences; None takes all.

  Raises:
    ValueError: Logits are not finite.
  """
  pair = pair or pairs.load()
  rows = sentences(pair, limit)
  curve = points.Curve(targets.Lossless, temperatures=(0.0,))
  grid = [p for p in points.expand([curve], gamma=gamma)
          if p.model == points.VERIFIER]
  widths = sorted({-(-len(row) // 24) * 24 for row in rows})
  prompts = programs.Prompts(
      rows, [programs.Bucket(width, 72) for width in widths], seed=0)
  made = programs.Programs(pair, [curve])
  for first in {prompts.buckets[i]: prompts(i)
                for i in reversed(range(len(rows)))}.values():
    for point in grid:
      made.compile(point, *first)
  seconds = [[0.0] * runs for _ in grid]
  outputs = [[] for _ in grid]
  for run in range(runs):
    for example, i in timing.interleaved(len(rows), len(grid), seed=run):
      took, state = timing.timed(made.call, grid[i], *prompts(example))
      seconds[i][run] += took
      if run == 0:
        check.finite(state.fault, example)
        outputs[i] += programs.outputs_of(state)
  spread = lambda s: benchmarks.Spread(statistics.median(s), min(s), max(s))
  ratios = [a / b for a, b in zip(*seconds)]
  return Lossless([x[0] for x in outputs[0]], [x[0] for x in outputs[1]],
                  [x[2] for x in outputs[1]], *map(spread, seconds),
                  statistics.median(ratios), min(ratios), max(ratios))
