"""From the journal's records to rows, intervals and comparisons."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from spec_cascades.evaluation import analysis as analysis_lib
from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import measured as measured_lib
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import results
from spec_cascades.evaluation import work

LOSSLESS = 'Lossless'
BLEU = qualities.make('BLEU')
Records = dict[work.Decode, results.Record]


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


def compilations(notes: Sequence[Mapping[str, Any]]) -> Compilations:
  """Of each program the last time; and all that disturbed the clock."""
  last = {(n['program'], *n['bucket'], n['rows']): n for n in notes
          if n['kind'] == 'compiled'}
  late = [n['programs'] for n in notes if n['kind'] == 'decoded']
  return Compilations(
      sum(n['programs'] for n in last.values()),
      sum(n['seconds'] for n in last.values()), while_timing=sum(late))


@dataclasses.dataclass(frozen=True)
class Summary:
  """All that a report shows."""
  rows: list[results.Row]
  comparisons: list[frontier.Comparison]
  equalities: list[Equality]
  compilations: Compilations
  faults: list[str]
  failures: list[str]
  drafting: list[tuple[points_lib.Point, metrics.Drafting]]
  measured: measured_lib.Measured
  analysis: analysis_lib.Analysis
  # See `details`: a `split.Split` a point, an `inspected.Text` a text chosen, a
  # `foretold.Foretold` a point; None if the sweep does not want them.
  split: Sequence[Any] | None = None
  texts: Sequence[Any] | None = None
  predicted: Sequence[Any] | None = None
  # Seconds of compiling, decoding and `details`, by name, in the last run.
  spent: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Figures:
  """Quality and cost of the points that are done, each computed once."""

  def __init__(self, points: dict[str, points_lib.Point],
               examples: Sequence[examples_lib.Example],
               read: Callable[[Sequence[int]], str], seed: int,
               quality: qualities.Quality = BLEU,
               plan: work.Plan | None = None):
    """`read` turns tokens into text; resamples depend on the seed alone."""
    count = len(examples)
    self.points, self.examples = points, examples
    self._read, self._quality = read, quality
    self._references = [x.references for x in examples]
    self._signature = quality.signature(self._references)
    self._plan = plan or work.Plan(count, count, 1, 1)
    self._weights, self._clock_weights = (
        metrics.resamples(n, metrics.RESAMPLES, seed)
        for n in (count, self._plan.timed))
    self._known: dict[str, frontier.Samples] = {}
    self._parts: dict[str, np.ndarray] = {}
    self._whole: set[str] = set()        # records never become fewer
    self._seed, self.base = seed, measured_lib.base(points)

  def taken(self, key: str, records: Records) -> list[results.Record]:
    """The records that a point's quality is measured on, by example."""
    return measured_lib.taken(key, self._plan, records)

  def seconds(self, key: str, records: Records) -> np.ndarray:
    """Mean of the trials of each timed example."""
    return measured_lib.seconds(key, self._plan, records)

  def ready(self, records: Records) -> list[str]:
    """Points whose examples are all decoded, and their verifier's too."""
    self._whole |= {key for key in self.points.keys() - self._whole if all(
        decode in records for decode in self._plan.decodes(key))}
    return [key for key, point in self.points.items()
            if {key, self.base[point.temperature]} <= self._whole]

  def samples(self, key: str, records: Records) -> frontier.Samples:
    """Latency relative to the verifier's, and quality."""
    if key not in self._known:
      ours, theirs = (self.seconds(k, records) for k in (
          key, self.base[self.points[key].temperature]))
      self._known[key] = measured_lib.samples(
          self._quality, self.parts(key, records), ours, theirs, self._weights,
          self._clock_weights)
    return self._known[key]

  def parts(self, key: str, records: Records) -> np.ndarray:
    """What quality sums, of each text; needs no decode that is timed apart."""
    if key not in self._parts:
      texts = [self._read(r.tokens) for r in self.taken(key, records)]
      self._parts[key] = self._quality.parts(texts, self._references)
    return self._parts[key]

  def measured(self, records: Records, validation: float
               ) -> measured_lib.Measured:
    """What was measured on each text, of all points that are ready."""
    ready = self.ready(records)
    for key in ready:
      self.samples(key, records)
    return measured_lib.of_records(
        records, {key: self.points[key] for key in ready}, self._plan,
        texts=measured_lib.digests(self.examples), quality=self._quality,
        parts={key: self._parts[key] for key in ready}, seed=self._seed,
        validation=validation)

  def row(self, key: str, records: Records, common: dict[str, Any],
          cost: dict[str, Any]) -> results.Row:
    """The row of a point that is `ready`.

    Args:
      key: Of the point.
      records: Of all decodes so far.
      common: The columns that all rows share.
      cost: The columns about programs and compilation.
    """
    own = dict(metric=self._quality.name, signature=self._signature,
               timed=self._plan.timed, timed_batch=self._plan.timed_batch,
               trials=self._plan.trials)
    return _row(key, self.points[key], self.taken(key, records),
                self.seconds(key, records), self.samples(key, records),
                dict(common, **own), cost)


def summarise(figures: Figures, records: Records, common: dict[str, Any],
              costs: dict[str, dict[str, Any]], compilations: Compilations,
              failures: Sequence[str] = (),
              validation: float = choosing.VALIDATION) -> Summary:
  """Puts the figures of a sweep together, of the points that were finished.

  Args:
    figures: Of its points and examples.
    records: Of all decodes.
    common: The columns that all rows share.
    costs: Per key, the columns about programs and compilation.
    compilations: Of the whole sweep.
    failures: A line for each point that could not be decoded.
    validation: Share of the texts to choose settings on.
  """
  measured = figures.measured(records, validation)
  examples, points = figures.examples, measured.points
  base = {heat: key for heat, key in figures.base.items() if key in points}
  taken = {key: figures.taken(key, records) for key in points}
  samples = {key: figures.samples(key, records) for key in points}
  rows = [figures.row(key, records, common, costs[key]) for key in points]
  return Summary(rows, analysis_lib.comparisons(points, samples),
                 _equalities(points, taken, base), compilations, [
                     f'{point.label}, {examples[r.example].id}, round {r.fault}'
                     for key, point in points.items() for r in taken[key]
                     if r.fault], list(failures), measured.drafting(),
                 measured, analysis_lib.analyse(measured, samples))


def _row(key, point, taken, seconds, sample, common, cost) -> results.Row:
  low, high = metrics.interval(sample.qualities)
  relative_low, relative_high = metrics.interval(sample.latencies)
  sums = metrics.ratios([r.stats for r in taken])
  if not point.judged:
    sums['rejection_rate'] = None
  setting = dataclasses.asdict(point)
  setting.pop('model')
  return results.Row(
      schema=results.SCHEMA, key=key, examples=len(taken),
      faults=sum(r.fault > 0 for r in taken),
      quality=sample.quality, quality_low=low, quality_high=high,
      relative_latency=sample.latency, relative_low=relative_low,
      relative_high=relative_high, **metrics.latencies(seconds),
      tokens_per_second=float(
          sum(r.stats['emitted'] for r in taken[:len(seconds)])
          / seconds.sum()),
      **sums, **cost, **{**common, **setting, **_names(point, common)})


def _names(point, common) -> dict[str, str]:
  """Who drafted and who had the last word."""
  drafter = common['drafter']
  if point.drafter:
    kind = point.drafter
    return dict(drafter=f'{kind}:{drafter}' if kind == 'chain' else kind)
  alone = drafter if point.model == points_lib.DRAFTER else common['verifier']
  return dict(drafter='', verifier=alone)


def _equalities(points, taken, base) -> list[Equality]:
  """Greedy lossless decoding must give the verifier's own tokens."""
  out = []
  for key, point in points.items():
    if point.rule == LOSSLESS and point.temperature == 0:
      pairs = list(zip(taken[key], taken[base[0.0]]))
      equal = sum(a.tokens == b.tokens and not a.fault for a, b in pairs)
      out.append(Equality(point.method, equal, len(pairs)))
  return out
