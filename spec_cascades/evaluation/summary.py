"""From the journal's records to rows, intervals and comparisons."""
from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np

from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results

RESAMPLES = 1000
LOSSLESS = 'Lossless'


@dataclasses.dataclass(frozen=True)
class Equality:
  """On how many examples two ways to decode gave the same tokens."""
  method: str
  equal: int
  examples: int


@dataclasses.dataclass(frozen=True)
class Compilations:
  """XLA programs compiled, seconds it took, and programs compiled too late."""
  programs: int
  seconds: float
  while_timing: int


@dataclasses.dataclass(frozen=True)
class Summary:
  """All that a report shows."""
  rows: list[results.Row]
  comparisons: list[frontier.Comparison]
  equalities: list[Equality]
  compilations: Compilations
  faults: list[str]


def summarise(points: dict[str, points_lib.Point],
              examples: Sequence[examples_lib.Example],
              records: dict[tuple[str, int], results.Record],
              vocabulary: Any, common: dict[str, Any],
              costs: dict[str, dict[str, Any]],
              compilations: Compilations) -> Summary:
  """Computes every figure of a finished sweep.

  Args:
    points: By content key.
    examples: What was decoded.
    records: One per (key, example).
    vocabulary: Turns tokens into text.
    common: The columns that all rows share.
    costs: Per key, the columns about programs and compilation.
    compilations: Of the whole sweep.
  """
  references = [x.reference for x in examples]
  weights = metrics.resamples(len(examples), RESAMPLES, common['seed'])
  taken = {key: [records[key, x.index] for x in examples] for key in points}
  seconds = {key: np.array([r.seconds for r in rows])
             for key, rows in taken.items()}
  texts = {key: [vocabulary.decode(r.tokens) for r in rows]
           for key, rows in taken.items()}
  base = {p.temperature: key for key, p in points.items()
          if not p.drafter and p.model == points_lib.VERIFIER}
  samples, rows = {}, []
  for key, point in points.items():
    ours, theirs = seconds[key], seconds[base[point.temperature]]
    quality, signature = metrics.bleu(texts[key], references)
    parts = metrics.bleu_parts(texts[key], references)
    samples[key] = frontier.Samples(
        float(ours.sum() / theirs.sum()), quality,
        metrics.bootstrap_ratio(ours, theirs, weights),
        metrics.bootstrap_bleu(parts, weights))
    rows.append(_row(key, point, taken[key], samples[key], signature,
                     common, costs[key]))
  return Summary(rows, _compare(points, samples, base),
                 _equalities(points, taken, base), compilations, [
                     f'{point.label}, {examples[r.example].id}, round {r.fault}'
                     for key, point in points.items() for r in taken[key]
                     if r.fault])


def _row(key, point, taken, sample, signature, common, cost) -> results.Row:
  low, high = metrics.interval(sample.qualities)
  relative_low, relative_high = metrics.interval(sample.latencies)
  seconds = np.array([r.seconds for r in taken])
  sums = metrics.ratios([r.stats for r in taken])
  setting = dataclasses.asdict(point)
  setting.pop('model')
  return results.Row(
      schema=results.SCHEMA, key=key, examples=len(taken),
      faults=sum(r.fault > 0 for r in taken), bleu=sample.quality,
      bleu_low=low, bleu_high=high, signature=signature,
      relative_latency=sample.latency, relative_low=relative_low,
      relative_high=relative_high, **metrics.latencies(seconds),
      tokens_per_second=float(sums['emitted'] / seconds.sum()),
      **sums, **cost, **{**common, **setting, **_names(point, common)})


def _names(point, common) -> dict[str, str]:
  """Who drafted and who had the last word."""
  drafter = common['drafter']
  if point.drafter:
    kind = point.drafter
    return dict(drafter=f'{kind}:{drafter}' if kind == 'chain' else kind)
  alone = drafter if point.model == points_lib.DRAFTER else common['verifier']
  return dict(drafter='', verifier=alone)


def _compare(points, samples, base) -> list[frontier.Comparison]:
  curves: dict[tuple[str, float], list[frontier.Samples]] = {}
  for key, point in points.items():
    if point.drafter or point.model == points_lib.DRAFTER:
      place = point.method, point.temperature
      curves.setdefault(place, []).append(samples[key])
  verifiers = {heat: samples[key] for heat, key in base.items()}
  return frontier.of_points(curves, verifiers)


def _equalities(points, taken, base) -> list[Equality]:
  """Greedy lossless decoding must give the verifier's own tokens."""
  out = []
  for key, point in points.items():
    if point.rule == LOSSLESS and point.temperature == 0:
      pairs = list(zip(taken[key], taken[base[0.0]]))
      equal = sum(a.tokens == b.tokens for a, b in pairs)
      out.append(Equality(point.method, equal, len(pairs)))
  return out
