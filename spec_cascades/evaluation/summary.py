"""From the journal's records to rows, intervals and comparisons."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np

from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import results

RESAMPLES = 1000
LOSSLESS = 'Lossless'
BLEU = qualities.make('BLEU')
Records = dict[tuple[str, int], results.Record]


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
  drafting: list[tuple[points_lib.Point, metrics.Drafting]]


class Figures:
  """Quality and cost of the points that are done, each computed once."""

  def __init__(self, points: dict[str, points_lib.Point],
               examples: Sequence[examples_lib.Example],
               read: Callable[[Sequence[int]], str], seed: int,
               quality: qualities.Quality = BLEU):
    """`read` turns tokens into text; resamples depend on the seed alone."""
    self._points, self._examples = points, examples
    self._read, self._quality = read, quality
    self._references = [x.references for x in examples]
    self._signature = quality.signature(self._references)
    self._weights = metrics.resamples(len(examples), RESAMPLES, seed)
    self._known: dict[str, frontier.Samples] = {}
    self.base = {p.temperature: key for key, p in points.items()
                 if not p.drafter and p.model == points_lib.VERIFIER}

  def taken(self, key: str, records: Records) -> list[results.Record]:
    """The records of a point, example by example."""
    return [records[key, x.index] for x in self._examples]

  def ready(self, records: Records) -> list[str]:
    """Points whose examples are all decoded, and their verifier's too."""
    whole = {key for key in self._points if all(
        (key, x.index) in records for x in self._examples)}
    return [key for key, point in self._points.items()
            if key in whole and self.base[point.temperature] in whole]

  def samples(self, key: str, records: Records) -> frontier.Samples:
    """Latency relative to the verifier's, and quality."""
    if key not in self._known:
      seconds = lambda k: np.array([r.seconds for r in self.taken(k, records)])
      ours = seconds(key)
      theirs = seconds(self.base[self._points[key].temperature])
      texts = [self._read(r.tokens) for r in self.taken(key, records)]
      parts = self._quality.parts(texts, self._references)
      self._known[key] = frontier.Samples(
          float(ours.sum() / theirs.sum()), self._quality.of(parts.sum(0)),
          metrics.bootstrap_ratio(ours, theirs, self._weights),
          self._quality.resampled(parts, self._weights))
    return self._known[key]

  def drafting(self, key: str, records: Records) -> metrics.Drafting:
    """What the drafts of a point yielded."""
    return metrics.drafting([r.stats for r in self.taken(key, records)],
                            self._weights)

  def row(self, key: str, records: Records, common: dict[str, Any],
          cost: dict[str, Any]) -> results.Row:
    """The row of a point that is `ready`.

    Args:
      key: Of the point.
      records: One per (key, example).
      common: The columns that all rows share.
      cost: The columns about programs and compilation.
    """
    named = dict(metric=self._quality.name, signature=self._signature)
    return _row(key, self._points[key], self.taken(key, records),
                self.samples(key, records), dict(common, **named), cost)


def summarise(points: dict[str, points_lib.Point], figures: Figures,
              examples: Sequence[examples_lib.Example], records: Records,
              common: dict[str, Any], costs: dict[str, dict[str, Any]],
              compilations: Compilations) -> Summary:
  """Puts the figures of a finished sweep together.

  Args:
    points: By content key.
    figures: Of these points and examples.
    examples: What was decoded.
    records: One per (key, example).
    common: The columns that all rows share.
    costs: Per key, the columns about programs and compilation.
    compilations: Of the whole sweep.
  """
  taken = {key: figures.taken(key, records) for key in points}
  samples = {key: figures.samples(key, records) for key in points}
  rows = [figures.row(key, records, common, costs[key]) for key in points]
  return Summary(rows, _compare(points, samples, figures.base),
                 _equalities(points, taken, figures.base), compilations, [
                     f'{point.label}, {examples[r.example].id}, round {r.fault}'
                     for key, point in points.items() for r in taken[key]
                     if r.fault], [
                         (point, figures.drafting(key, records))
                         for key, point in points.items() if point.drafter])


def _row(key, point, taken, sample, common, cost) -> results.Row:
  low, high = metrics.interval(sample.qualities)
  relative_low, relative_high = metrics.interval(sample.latencies)
  seconds = np.array([r.seconds for r in taken])
  sums = metrics.ratios([r.stats for r in taken])
  setting = dataclasses.asdict(point)
  setting.pop('model')
  return results.Row(
      schema=results.SCHEMA, key=key, examples=len(taken),
      faults=sum(r.fault > 0 for r in taken),
      quality=sample.quality, quality_low=low, quality_high=high,
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
