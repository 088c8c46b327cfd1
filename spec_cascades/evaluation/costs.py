"""What steps of a pair of models cost: measured, saved, read again."""
from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
from typing import Any, Mapping, Sequence

from spec_cascades import theory
from spec_cascades import types
from spec_cascades.data import files
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import timing

SCHEMA = 2
# Trees whose rounds are timed: chains, pairs of chains, children of a root.
TREES = ((-1, 0), (-1, *range(3)), (-1, *range(7)), (-1, 0, 0),
         (-1, 0, 0, 1, 2), (-1, 0, 0, 1, 2, 3, 4), (-1, *[0] * 7))
HINT = 'measure again with scripts/benchmark.py steps --output FILE'


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds a step, and where they come from.

  Attributes:
    verifier: Of a call, by width of its block in tokens; logits included.
    drafter: Of a call on one token.
    rounds: Of a whole round of a tree, each with its levels and nodes: without
      a draft [0, 1, seconds], and of `TREES`; or none.
    names: What was measured, 'verifier' and 'drafter'.
    device: JAX's platform and kind.
    machine: Processor and cores.
    load: Load average when the measurement began.
    versions: Of Python and the libraries.
    measured: UTC, ISO 8601.
    schema: Of the file.
  """
  verifier: dict[int, benchmarks.Spread]
  drafter: benchmarks.Spread
  rounds: list[list[float]]
  names: dict[str, str]
  device: str
  machine: str
  load: float
  versions: dict[str, str]
  measured: str
  schema: int = SCHEMA

  @property
  def times(self) -> theory.StepTimes:
    """The medians."""
    return theory.StepTimes({w: x.median for w, x in self.verifier.items()},
                            self.drafter.median)


def measure(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded,
            widths: Sequence[int], *, names: dict[str, str],
            versions: dict[str, str], steps: int = 20, runs: int = 7,
            trees: Sequence[tuple[int, ...]] = ()) -> Costs:
  """Times blocks of all widths, a drafter step and rounds of trees in turn.

  Args:
    verifier: p.
    drafter: q.
    widths: Tokens of a block, 1 among them.
    names: Of both models.
    versions: To be saved with the figures.
    steps: Dependent calls of a program.
    runs: Of each program.
    trees: Parents, such as `TREES`; none for models of different vocabularies.
  """
  load = os.getloadavg()[0]
  calls = {str(n): benchmarks.block_program(verifier, n, steps=steps)
           for n in widths}
  calls['drafter'] = benchmarks.block_program(drafter, 1, steps=steps)
  whole = {i: benchmarks.decode_program(
      verifier, drafter if i else None, 0, temperature=1., parents=parents)
           for i, parents in enumerate([(-1,), *trees] if trees else [])}
  read = {'verifier': benchmarks.prefill_program(verifier),
          'both': benchmarks.prefill_program(drafter)} if trees else {}
  timed = benchmarks.timed({**calls, **read, **whole}, runs)
  found = {name: timed[name].over(steps) for name in calls}
  now = datetime.datetime.now(datetime.timezone.utc)
  return Costs({n: found[str(n)] for n in widths}, found['drafter'],
               [_round(timed, whole, i, parents)
                for i, parents in enumerate([(-1,), *trees] if trees else [])],
               names,
               timing.device(), timing.machine(), round(load, 2), versions,
               now.isoformat(timespec='seconds'))


def _round(timed, whole, i, parents):
  """Levels, nodes and the seconds of a round: a decode, less its prompts."""
  prompts = timed['verifier'].median + (timed['both'].median if i else 0)
  return [float(max(types.depths(parents))), float(len(parents)),
          (timed[i].median - prompts) / int(whole[i]().stats.rounds[0])]


def write(path: pathlib.Path, costs: Costs) -> None:
  """Saves all or nothing."""
  files.write_atomically(
      path, json.dumps(dataclasses.asdict(costs), indent=2) + '\n')


def read(path: pathlib.Path) -> Costs:
  """The inverse of `write`.

  Raises:
    ValueError: Not such a file, or not all of it; the message names it.
    OSError: It can't be read.
  """
  try:
    return _costs(json.loads(path.read_text(encoding='utf-8')))
  except ValueError as error:           # so are those of JSON and of Unicode
    raise ValueError(f'{path} does not hold step costs: {error} '
                     f'Give the file that was saved, or {HINT}.') from None


def _costs(data: Any) -> Costs:
  names = {f.name for f in dataclasses.fields(Costs)}
  if not isinstance(data, dict):
    raise ValueError(f'Got {str(data)[:60]}, not an object.')
  if set(data) != names:
    raise ValueError('Got missing or other fields: '
                     f'{", ".join(sorted(set(data) ^ names))}.')
  if data['schema'] != SCHEMA:
    raise ValueError(f'Got schema {data["schema"]}; this version reads '
                     f'schema {SCHEMA}.')
  kinds = dict(names=dict, versions=dict, verifier=dict, device=str,
               rounds=list, machine=str, measured=str, load=(int, float))
  for name, kind in kinds.items():
    if not isinstance(data[name], kind):
      raise ValueError(f'{name} is {data[name]!r}; `benchmark.py steps` writes '
                       'something else there.')
  if not {'verifier', 'drafter'} <= set(data['names']):
    raise ValueError('names lacks verifier or drafter.')
  if not all(isinstance(x, list) and len(x) == 3 and all(
      isinstance(y, (int, float)) and y >= 0 for y in x)
             for x in data['rounds']):
    raise ValueError(f'rounds is {data["rounds"]!r}; expected levels, nodes '
                     'and seconds of each.')
  verifier = {int(w): _spread(f'{w} tokens', x)
              for w, x in data['verifier'].items()}
  costs = Costs(**{**data, 'verifier': verifier,
                   'drafter': _spread('drafter', data['drafter'])})
  _ = costs.times                       # refused here if it cannot be used
  return costs


def _spread(name: str, data: Any) -> benchmarks.Spread:
  """Three times in order, all above 0."""
  fields = {f.name for f in dataclasses.fields(benchmarks.Spread)}
  if not isinstance(data, Mapping) or set(data) != fields:
    raise ValueError(f'The seconds of {name} are {data!r}; expected '
                     f'{", ".join(sorted(fields))}.')
  numbers = [data[key] for key in ('low', 'median', 'high')]
  if not all(isinstance(x, (int, float)) for x in numbers) or not (
      0 < numbers[0] <= numbers[1] <= numbers[2] < float('inf')):
    raise ValueError(f'The seconds of {name} are {data!r}; allowed: '
                     '0 < low <= median <= high.')
  return benchmarks.Spread(**data)
