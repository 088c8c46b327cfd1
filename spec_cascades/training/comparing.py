"""Drafters of one verifier side by side: acceptance, and tokens per call.

Every drafter drafts for the same inputs, lossless, greedy and sampled. On what
was decoded one teacher-forced pass gives the probability that each token is
accepted: their mean is the acceptance, 1 - TVD(p, q) at temperature 1, and what
they predict of tokens per call stands beside what was decoded. Intervals
resample inputs; all drafters share the resamples, so differences are paired.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from spec_cascades import check
from spec_cascades.data import files
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import pairs
from spec_cascades.training import bought
from spec_cascades.training import checks
from spec_cascades.training import data
from spec_cascades.training import loop
from spec_cascades.training import losses as losses_lib
from spec_cascades.training import policies as policies_lib
from spec_cascades.training import quality
from spec_cascades.training import start

FILE = 'drafters.jsonl'
AIM = 0.03                # between predicted and decoded tokens a call


@dataclasses.dataclass(frozen=True)
class Policy:
  """Whose texts a drafter is trained on."""
  corpus: data.ParallelText
  on_policy: policies_lib.OnPolicy = policies_lib.OnPolicy()


def product(run: loop.Run, losses: Mapping[str, losses_lib.Distillation],
            policies: Mapping[str, Policy]) -> dict[str, loop.Run]:
  """A run for every loss on every policy's texts, by `loss-policy`.

  Cross-entropy alone (`mix` 1) learns nothing from what the drafter writes
  itself: there is no such run.

  Args:
    run: What all have in common; each has a folder of its own in its model_dir.
    losses: By name.
    policies: By name.

  Raises:
    ValueError: A loss is no `losses.Distillation`.
  """
  for name, loss in losses.items():
    if not isinstance(loss, losses_lib.Distillation):
      raise ValueError(f'The loss {name} is {loss!r}; allowed: '
                       'losses.Distillation, whose teacher is the verifier.')
  runs = {}
  for words, policy in policies.items():
    for name, loss in losses.items():
      if loss.mix < 1 or not policy.on_policy.share:
        folder = f'{name}-{words}'
        runs[folder] = dataclasses.replace(
            run, model_dir=str(pathlib.Path(run.model_dir) / folder),
            corpus=policy.corpus, on_policy=policy.on_policy, distillation=loss)
  return runs


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Which drafters are compared, and on what.

  Attributes:
    verifier: A checkpoint of any format.
    corpus: Whose inputs are decoded; those of more tokens than its widest
      bucket are left out.
    output: Folder for the figures.
    drafters: Checkpoints by name. The first is what others are compared with;
      if there is none, the first that is trained.
    trained: Drafters to train before, see `product`.
    split: Of the corpus; without near-duplicates in train.
    examples: How many inputs, chosen at random.
    gamma: Draft length.
    temperatures: Of both models.
    max_length: Tokens of an output at most, with the one that it begins with
      or follows.
    batch: Rows of a call.
    seed: Of the choice, of what is drawn, and of the resamples.
  """
  verifier: str
  corpus: data.ParallelText
  output: str
  drafters: Mapping[str, str] = dataclasses.field(default_factory=dict)
  trained: Mapping[str, loop.Run] = dataclasses.field(default_factory=dict)
  split: str = 'test'
  examples: int = 500
  gamma: int = 5
  temperatures: Sequence[float] = (0.0, 1.0)
  max_length: int = 72
  batch: int = 50
  seed: int = 0

  def __post_init__(self):
    if not (self.drafters or self.trained):
      raise ValueError('Got no drafter to compare; give drafters or trained.')
    if both := sorted(set(self.drafters) & set(self.trained)):
      raise ValueError(f'{both[0]} is among drafters and trained; give each '
                       'drafter a name of its own.')
    check.gamma(self.gamma)
    for name, low in (('examples', 1), ('batch', 1), ('max_length', 2),
                      ('seed', 0)):
      check.interval(f'{name} of Comparison', getattr(self, name), low, 10**9,
                     whole=True)
    if not self.temperatures:
      raise ValueError('Got no temperatures; give one or more.')
    for x in self.temperatures:
      check.interval('temperature of Comparison', x, 0, 1e6)

  def sources(self) -> list[str]:
    """The inputs; ValueError if the split has none."""
    found = [x for x, _ in quality.distinct_pairs(self.corpus, self.split)]
    if not found:
      raise ValueError(f'No text of {self.split} is without a near-duplicate '
                       f'in train and has up to {max(self.corpus.buckets)} '
                       'tokens; give another split or wider buckets.')
    order = np.random.default_rng(self.seed).permutation(len(found))
    return [found[i] for i in order[:self.examples]]


def compare(chosen: Comparison, *, log: Callable[[str], None] = print
            ) -> list[dict[str, Any]]:
  """Trains what is to be trained, measures all, and says a table.

  The same call goes on after an interruption: runs as `loop.train` does, and
  drafters that are in `FILE` of the output are not measured again.

  Args:
    chosen: What to compare.
    log: Receives lines: those of training, and the table.

  Returns:
    A row for each drafter, as in `FILE`.

  Raises:
    ValueError: Something does not go together; nothing is trained then.
  """
  sources = chosen.sources()
  start.check_vocabulary(chosen.verifier, chosen.corpus.vocabulary)
  for name, run in chosen.trained.items():
    if run.teacher != chosen.verifier:
      raise ValueError(f'The teacher of {name} is {run.teacher}, the verifier '
                       f'{chosen.verifier}; give both the same path.')
    checks.check(run)
    start.check_vocabulary(chosen.verifier, run.corpus.vocabulary)
    run.corpus.batch(0)                # it is there, or this says why not
  folder = pathlib.Path(chosen.output).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  known, rows = _read(folder / FILE), []

  def measured(name, path):
    key = _key(chosen, path, sources)
    if key not in known:
      log(f'measuring {name}')
      known[key] = _measure(chosen, path, sources)
      files.write_atomically(folder / FILE, ''.join(
          json.dumps(dict(key=key, found=x)) + '\n'
          for key, x in known.items()))
    rows.append(dict(name=name, found=known[key]))

  for name, path in chosen.drafters.items():
    measured(name, path)
  for i, (name, run) in enumerate(chosen.trained.items(), 1):
    log(f'training {name}, {i} of {len(chosen.trained)}')
    state = loop.train(run, log=lambda line, name=name: log(f'{name}: {line}'))
    if int(state.step) < run.recipe.steps:
      log(f'{name} was told to stop; the same command goes on.')
      return rows
    measured(name, run.model_dir)
  for line in table(rows, seed=chosen.seed):
    log(line)
  return rows


def table(rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> list[str]:
  """Rows of `compare` as lines of Markdown, and how well predictions held."""
  first, lines, off, warned = rows[0], [], [], []
  for at, cell in enumerate(first['found']):
    lines += [
        f'T={cell["temperature"]:g}, gamma {cell["gamma"]}, '
        f'{len(cell["tokens"])} texts; {metrics.LEVEL:g} % intervals', '',
        f'| drafter | acceptance | minus {first["name"]} | tokens a call '
        '| predicted |', '|---|---|---|---|---|']
    for row in rows:
      one = bought.Bought(**{
          f.name: row['found'][at][f.name]
          for f in dataclasses.fields(bought.Bought)})
      value, gain = _estimates(row['found'][at], cell, seed)
      lines.append(f'| {row["name"]} | {value} | '
                   f'{"-" if row is first else gain} | {one.decoded:.3f} | '
                   f'{one.predicted:.3f} ({one.off:+.1%}) |')
      off.append(abs(one.off))
      warned += [f'{row["name"]}: {one.warning}'] * (one.warning is not None)
    lines.append('')
  lines.append(f'Predicted and decoded tokens a call are at most '
               f'{max(off):.1%} apart; aim: {AIM:.0%}.')
  return lines + warned


def _estimates(cell, base, seed):
  """Acceptance, and how much more than another's, with their intervals."""
  weights = metrics.resamples(len(cell['tokens']), metrics.RESAMPLES, seed)
  sums = lambda x: (np.array(x['accepted']), np.array(x['tokens']))
  of = lambda x: metrics.bootstrap_ratio(*sums(x), weights)
  value = lambda x: math.fsum(x['accepted']) / sum(x['tokens'])
  shown = lambda x, samples, form: '{:{f}} [{:{f}}, {:{f}}]'.format(
      x, *metrics.interval(samples), f=form)
  return (shown(value(cell), of(cell), '.3f'),
          shown(value(cell) - value(base), of(cell) - of(base), '+.3f'))


def _measure(chosen, path, sources):
  """Figures of a drafter at each temperature; sums of every text."""
  pair, found = pairs.load(chosen.verifier, path), []
  for temperature in chosen.temperatures:
    some, rates = bought.measure(
        pair, chosen.corpus, sources, gamma=chosen.gamma,
        temperature=float(temperature), max_length=chosen.max_length,
        batch=chosen.batch, seed=chosen.seed)
    found.append(dict(dataclasses.asdict(some), tokens=list(map(len, rates)),
                      accepted=[float(x.sum()) for x in rates]))
  return found


def _key(chosen, path, sources):
  """Of all that figures depend on; of a run, what it has saved."""
  saves = pathlib.Path(path).expanduser() / start.SAVES
  given = [pairs.digest(chosen.verifier),
           pairs.digest(str(saves) if saves.is_dir() else path), sources,
           list(map(chosen.corpus.encode, sources)), chosen.gamma,
           list(map(float, chosen.temperatures)), chosen.max_length,
           chosen.batch, chosen.seed]
  return hashlib.sha256(json.dumps(given).encode()).hexdigest()


def _read(path):
  """What has been measured, by key."""
  if not path.is_file():
    return {}
  try:
    rows = [json.loads(line) for line in
            path.read_text(encoding='utf-8').splitlines()]
    return {row['key']: row['found'] for row in rows}
  except (ValueError, KeyError, TypeError):
    raise ValueError(f'{path} does not hold figures of drafters; delete it, '
                     'and they are measured again.') from None
