"""What a sweep measured on each text, of every point that is done.

`scores.jsonl` keeps what only texts and references tell; with the journal
beside it, a finished sweep is analysed again without models or data.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from spec_cascades.data import files
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import results
from spec_cascades.evaluation import work

FORMAT = 1
Records = Mapping[work.Decode, results.Record]


@dataclasses.dataclass(frozen=True)
class Measured:
  """All figures come from sums over these.

  Attributes:
    points: Those that are done, by content key; their verifiers among them.
    plan: How often what was decoded; texts that were timed come first.
    texts: A digest of each input.
    quality: What texts are measured by.
    parts: What that sums, [texts, k] by key.
    seconds: Mean of the trials of each timed text, [timed] by key.
    stats: Counters of each text, by key.
    seed: Of the resamples, and of the texts to choose on.
    validation: Share of the texts to choose settings on.
  """
  points: Mapping[str, points_lib.Point]
  plan: work.Plan
  texts: Sequence[str]
  quality: qualities.Quality
  parts: Mapping[str, np.ndarray]
  seconds: Mapping[str, np.ndarray]
  stats: Mapping[str, Sequence[Mapping[str, Any]]]
  seed: int
  validation: float

  @property
  def base(self) -> dict[float, str]:
    """The key of the verifier alone at each temperature."""
    return base(self.points)

  def rows(self, path: pathlib.Path) -> list[results.Row]:
    """The rows of a results file; ValueError if they are of other points."""
    if not path.is_file():
      raise ValueError(f'No {path.name} in {path.parent}; give the command of '
                       'the sweep again, which repeats no decode.')
    found = results.read_rows(path)
    if {row.key for row in found} != set(self.points):
      raise ValueError(f'{path} has other points than the journal beside it; '
                       'give the command of the sweep again, which writes it '
                       'anew and repeats no decode.')
    return found

  def samples(self, chosen: np.ndarray | None = None,
              keys: Iterable[str] | None = None,
              count: int = metrics.RESAMPLES) -> dict[str, frontier.Samples]:
    """Latency and quality of points, with resamples paired over points.

    Args:
      chosen: [texts] which of the texts count; None: all.
      keys: Of the points; None: all.
      count: Resamples.
    """
    if chosen is None:
      chosen = np.ones(len(self.texts), bool)
    timed = chosen[:self.plan.timed]
    weights, clock_weights = (metrics.resamples(int(x.sum()), count, self.seed)
                              for x in (chosen, timed))
    return {key: samples(
        self.quality, self.parts[key][chosen], self.seconds[key][timed],
        self.seconds[self.base[self.points[key].temperature]][timed], weights,
        clock_weights) for key in (self.points if keys is None else keys)}

  @property
  def weights(self) -> np.ndarray:
    """Resamples of all texts: [count, texts]."""
    return metrics.resamples(len(self.texts), metrics.RESAMPLES, self.seed)

  def drafting(self) -> list[tuple[points_lib.Point, metrics.Drafting]]:
    """What the drafts of every point with a drafter yielded."""
    weights = self.weights
    return [(point, metrics.drafting(self.stats[key], weights, point.judged))
            for key, point in self.points.items() if point.drafter]


def base(points: Mapping[str, points_lib.Point]) -> dict[float, str]:
  """The key of the verifier alone at each temperature."""
  return {point.temperature: key for key, point in points.items()
          if not point.drafter and point.model == points_lib.VERIFIER}


def curves(points: Mapping[str, points_lib.Point], *, alone: bool = False
           ) -> dict[tuple[str, float], list[str]]:
  """Keys of the points of each (method, temperature).

  Of those with a drafter, and where `alone`, of the small model alone too.
  """
  out: dict[tuple[str, float], list[str]] = {}
  for key, point in points.items():
    if point.drafter or (alone and point.model == points_lib.DRAFTER):
      out.setdefault((point.method, point.temperature), []).append(key)
  return out


def samples(quality: qualities.Quality, parts: np.ndarray, ours: np.ndarray,
            theirs: np.ndarray, weights: np.ndarray,
            clock_weights: np.ndarray) -> frontier.Samples:
  """A point's figures.

  Args:
    quality: What texts are measured by.
    parts: What it sums: [n, k].
    ours: Seconds of each timed text.
    theirs: The verifier's.
    weights: Resamples of the texts.
    clock_weights: Resamples of the timed texts.
  """
  return frontier.Samples(
      float(ours.sum() / theirs.sum()), quality.of(parts.sum(0)),
      metrics.bootstrap_ratio(ours, theirs, clock_weights),
      quality.resampled(parts, weights))


def taken(key: str, plan: work.Plan, records: Records) -> list[results.Record]:
  """The records that a point's quality is measured on, by example."""
  return [records[key, i, 0] for i in range(plan.examples)]


def seconds(key: str, plan: work.Plan, records: Records) -> np.ndarray:
  """Mean of the trials of each timed example."""
  return np.array([[records[key, i, trial].seconds for trial in plan.clocked]
                   for i in range(plan.timed)]).mean(1)


def digests(examples: Sequence[examples_lib.Example]) -> list[str]:
  """SHA-256 of each input."""
  return [hashlib.sha256(x.source.encode()).hexdigest() for x in examples]


def of_records(records: Records, points: Mapping[str, points_lib.Point],
               plan: work.Plan, **others: Any) -> Measured:
  """Of points whose decodes are all among the records."""
  return Measured(
      points, plan, **others,
      seconds={key: seconds(key, plan, records) for key in points},
      stats={key: [r.stats for r in taken(key, plan, records)]
             for key in points})


def check(path: pathlib.Path, configuration: dict[str, Any]) -> None:
  """Raises ValueError if scores there belong to another sweep.

  Of a file that is no scores' nothing is known: it is written anew.
  """
  if not path.is_file():
    return
  with path.open(encoding='utf-8', errors='replace') as file:
    try:
      head = json.loads(file.readline())
    except ValueError:
      return
  if isinstance(head, dict) and head.get('kind') == 'scores' and head.get(
      'sweep') != results.content_key(configuration):
    raise ValueError(f'{path} belongs to another configuration; choose another '
                     'OUTPUT_DIR or move the file away.')


def write(path: pathlib.Path, measured: Measured,
          configuration: dict[str, Any]) -> None:
  """Writes scores: the header, then a line a point."""
  head = dict(kind='scores', format=FORMAT,
              sweep=results.content_key(configuration),
              quality=measured.quality.name, texts=list(measured.texts),
              plan=dataclasses.asdict(measured.plan), seed=measured.seed,
              validation=measured.validation)
  lines = [head] + [
      dict(key=key, point=dataclasses.asdict(point),
           parts=measured.parts[key].tolist())
      for key, point in measured.points.items()]
  files.write_atomically(path, ''.join(json.dumps(x) + '\n' for x in lines))


def read(path: pathlib.Path, journal: pathlib.Path) -> Measured:
  """What `write` wrote, with seconds and counters from the journal.

  Raises:
    ValueError: One of them is not there, damaged, or of another sweep.
  """
  for file in (path, journal):
    if not file.is_file():
      raise ValueError(f'No {file.name} in {file.parent}; a sweep leaves it '
                       'there when it ends: give its command again, which '
                       'repeats no decode.')
  sweep, records = journal_lib.read(journal)
  try:
    head, *lines = map(json.loads, path.read_text('utf-8').splitlines())
    if (head['format'], head['sweep']) != (FORMAT, sweep):
      raise ValueError('of another sweep or version')
    points = {x['key']: points_lib.Point(**x['point']) for x in lines}
    parts = {x['key']: np.array(x['parts']) for x in lines}
    return of_records(
        records, points, work.Plan(**head['plan']), texts=head['texts'],
        quality=qualities.make(head['quality']), parts=parts,
        seed=head['seed'], validation=head['validation'])
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(f'{path} does not belong to the journal beside it '
                     f'({error}); move it away and give the command of the '
                     'sweep again, which writes it anew.') from None
