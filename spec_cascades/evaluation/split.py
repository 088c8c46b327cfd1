"""Where the time of a decode goes: its parts, jitted and timed apart.

A decode is a prefill and so many rounds; a round drafts, scores and judges.
Batch 1, the device synchronised, compilation excluded, points in turn, `GROUP`
cases of them at a time.
Caches are of a static size: a part costs the same wherever in a text it is.
"""
from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
from typing import Any, Callable, Sequence

import jax

from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import parts as parts_lib
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import summary
from spec_cascades.evaluation import timing

SCHEMA = 1
REPEATS = 5
# Cases whose programs are there at a time. A process of Linux may have 65,530
# memory maps, and XLA takes hundreds for a program on a CPU.
GROUP = 16
TAKEN = 'split_times.jsonl'
Turn = tuple[int, tuple[str, programs_lib.Bucket]]    # repeat, (key, bucket)


@dataclasses.dataclass(frozen=True)
class Split:
  """One point; times are milliseconds a text, over the texts that were timed.

  Attributes:
    key: Of the point.
    sweep: Content key of the sweep and its device.
    method: Name of the curve.
    alpha: Threshold of its rule.
    temperature: Of both models.
    prefill: Of a text, by the buckets of the texts.
    drafting: Rounds times the median of one draft.
    verification: The verifier's calls times the median of one.
    sampling: Rounds times the median of one verdict.
    whole: What the sweep measured, as one program.
    rounds: A text.
    costs: Per bucket its width and cap, and the median of each part, once.
    repeats: Runs behind each median, of up to `parts.STEPS` times each.
    load: Load average when it began.
    schema: Of the line.
  """
  key: str
  sweep: str
  method: str
  alpha: float | None
  temperature: float
  prefill: float
  drafting: float
  verification: float
  sampling: float
  whole: float
  rounds: float
  costs: list[list[float]]
  repeats: int
  load: float
  schema: int = SCHEMA

  @property
  def parts(self) -> list[float]:
    """In the order of `parts.PARTS`."""
    return [getattr(self, name) for name in parts_lib.PARTS]


def fits(point: points_lib.Point, programs: programs_lib.Programs) -> bool:
  """Whether a decode at a point is rounds of these parts.

  The loops of baselines are not.
  """
  return not programs.name(point).baseline


def _even(point: points_lib.Point) -> bool:
  """Whether its drafts cost the same whatever they are."""
  return not point.drafter or drafting.split(point.drafter)[0].even


def measure(run: Any, programs: programs_lib.Programs, keys: Sequence[str],
            records: summary.Records, progress: Callable[..., Any],
            repeats: int = REPEATS) -> list[Split]:
  """Times the parts of points and multiplies them by the sweep's counts.

  Of drafts that cost the same whatever they are, by one text in the middle of
  a bucket; of others by another text each time, from short to long, see
  `parts.along`. A time is in the file `TAKEN` of the sweep's directory as soon
  as it is taken: a call that was killed goes on behind it.

  Args:
    run: A `sweep.Run`.
    programs: Of its points.
    keys: Points that are done and that `fits`.
    records: Of all decodes.
    progress: `tqdm` or something called like it.
    repeats: Of a point in a bucket.
  """
  load, prompts = os.getloadavg()[0], programs_lib.Prompts(
      run.rows, run.buckets, run.sweep.seed, run.pair.prompt)
  timed = range(run.plan.timed)
  texts = collections.defaultdict(list)          # by bucket, from short to long
  for i in sorted(timed, key=lambda i: len(run.rows[i])):
    texts[prompts.buckets[i]].append(i)
  cases = [(key, bucket) for key in keys for bucket in texts]
  took = {case: collections.defaultdict(list) for case in cases}

  def once(case, repeat):
    point, some = run.points[case[0]], texts[case[1]]
    even = _even(point)
    place = .5 if even else (repeat + .5) / repeats
    bucket, *prompt = prompts(some[int(place * len(some))])
    seconds = parts_lib.seconds if even else parts_lib.along
    return seconds(programs.loop(point, bucket), *prompt,
                   programs.chosen(point))

  groups = [cases[i:i + GROUP] for i in range(0, len(cases), GROUP)]
  turns = [[(repeat, group[i]) for repeat, i in timing.interleaved(
      repeats, len(group), run.sweep.seed)] for group in groups]
  taken = Taken(run.directory / TAKEN, results.content_key(run.configuration))
  done = sum(turn in taken.known for some in turns for turn in some)
  with progress(total=len(cases) * (1 + repeats), initial=done, unit='text',
                desc='timing parts') as bar:
    for group, some in zip(groups, turns):
      if len(groups) > 1:
        jax.clear_caches()
      left = [turn for turn in some if turn not in taken.known]
      for case in group:                     # compiles
        if any(case == other for _, other in left):
          once(case, 0)
        bar.update(1)
      for turn in left:
        taken.add(turn, once(turn[1], turn[0]))
        bar.update(1)
  for turn in itertools.chain(*turns):
    for part, seconds in taken.known[turn].items():
      took[turn[1]][part].append(seconds)
  medians = {case: {part: statistics.median(x) for part, x in parts.items()}
             for case, parts in took.items()}
  return [_split(run, key, {b: medians[key, b] for b in texts},
                 prompts.buckets, records, repeats, round(load, 2))
          for key in keys]


class Taken:
  """Seconds of the parts by turn, in a file that only grows."""

  def __init__(self, path: pathlib.Path, sweep: str):
    """Reads what is there of this sweep; a line cut short is dropped."""
    self.known: dict[Turn, dict[str, float]] = {}
    self._path, self._sweep = path, sweep
    content = path.read_bytes() if path.exists() else b''
    whole = content[:content.rfind(b'\n') + 1]
    for line in map(json.loads, whole.splitlines()):
      if line['sweep'] == sweep:
        case = line['key'], programs_lib.Bucket(*line['bucket'])
        self.known[line['repeat'], case] = line['seconds']
    if whole != content:
      path.write_bytes(whole)

  def add(self, turn: Turn, seconds: dict[str, float]) -> None:
    """Appends a line; it is in the file when this returns."""
    self.known[turn] = seconds
    repeat, (key, bucket) = turn
    line = dict(sweep=self._sweep, key=key, bucket=dataclasses.astuple(bucket),
                repeat=repeat, seconds=seconds)
    with self._path.open('a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')


def _split(run, key, costs, buckets, records, repeats, load) -> Split:
  """Counts of each timed text times the costs in its bucket."""
  point, total = run.points[key], collections.Counter()
  trials = run.plan.clocked
  for i in range(run.plan.timed):
    stats, cost = records[key, i, trials[0]].stats, costs[buckets[i]]
    steps = cost[parts_lib.DRAFT_STEPS]      # a draft that ends a row has fewer
    drafts = stats['drafter_calls'] / steps if steps else stats['rounds']
    counts = dict(prefill=1, drafting=drafts, sampling=stats['rounds'],
                  verification=stats['verifier_calls'])
    total.update({part: n * cost[part] for part, n in counts.items()})
    total.update(rounds=stats['rounds'], whole=statistics.fmean(
        records[key, i, trial].seconds for trial in trials))
  mean = {name: x / run.plan.timed for name, x in total.items()}
  ms = lambda seconds, *names: {name: 1e3 * seconds[name] for name in names}
  return Split(
      key, results.content_key(run.configuration), point.method, point.alpha,
      point.temperature, **ms(mean, *parts_lib.PARTS, 'whole'),
      rounds=mean['rounds'], repeats=repeats, load=load,
      costs=[[b.width, b.max_length, *ms(cost, *parts_lib.PARTS).values()]
             for b, cost in costs.items()])
