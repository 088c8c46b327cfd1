"""A finished sweep made up of plausible numbers: no model, no clock."""
import dataclasses

import numpy as np

from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import measured
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import summary
from spec_cascades.evaluation import sweep
from spec_cascades import targets

CURVES = (
    points_lib.Curve(targets.Lossless),
    points_lib.Curve(targets.Lossy, (.3, .7), (1.,)),
    points_lib.Curve(targets.Chow, (.2, .5)),
    points_lib.Curve(targets.Diff, (.1, .4)),
    points_lib.Curve(targets.OPT, (.3, 1.), (1.,)),
    points_lib.Curve(targets.TokenV3, (.1, .4, .8)))
COMMON = dict(
    sweep='s' * 64, seed=0, verifier='verifier', drafter='drafter',
    dtype='float32', batch=1,
    data='software_docs.en-de.tsv', device='cpu',
    machine='a processor, 2 cores',
    versions=dict(python='3.11.2', jax='0.10.2'),
    started='2026-01-01T00:00:00+00:00', finished='2026-01-01T00:04:00+00:00')
COST = dict(programs=1, compile_seconds=5.0)


class Words:
  """A vocabulary of whole words: token i is the i-th word of all texts."""

  def __init__(self, texts):
    self.words = sorted({word for text in texts for word in text.split()})

  def encode(self, text):
    return [self.words.index(word) for word in text.split()]

  def decode(self, tokens):
    return ' '.join(self.words[token] for token in tokens)


def points(curves=CURVES):
  return {results.content_key(dataclasses.asdict(point)): point
          for point in points_lib.expand(curves, gamma=5)}


def record(key, point, example, words, rng):
  """A translation with some words wrong, at a cost that fits the rule."""
  alpha = point.alpha or 0
  if point.model == points_lib.DRAFTER:
    wrong, cost = .62, .1
  elif not point.drafter:
    wrong, cost = .45, 1.
  else:
    bias = sum(map(ord, point.rule)) % 7 / 100
    wrong, cost = .45 + .12 * alpha**2 - bias, .75 - .4 * alpha**.5 + bias
  if point.rule == 'Lossless':
    wrong = .45
  if not point.temperature:
    wrong -= .12
  tokens = words.encode(example.reference)
  seed = example.index if not point.temperature else rng.integers(1e6)
  noise = np.random.default_rng(seed).random(len(tokens))
  tokens = [1 if u < wrong else t for t, u in zip(tokens, noise)]
  n, rounds = len(tokens), -(-len(tokens) // 2)
  stats = dict(rounds=rounds, drafted=5 * rounds, accepted=n - rounds,
               corrected=rounds, bonus=0, emitted=n, verifier_calls=rounds,
               drafter_calls=6 * rounds, deferred=n / 2,
               histogram=[0, rounds, 0, 0, 0, 0],
               rejected=[0, rounds, 0, 0, 0, 0])
  seconds = .004 * n * cost * rng.uniform(.9, 1.1)
  return results.Record(key, example.index, seconds, tokens, 0, stats)


def make(limit=None, curves=CURVES, records=None):
  """A summary of the embedded sentences; fills `records` if it is given."""
  examples = examples_lib.read(limit=limit)
  words = Words([x.reference for x in examples])
  rng, grid = np.random.default_rng(0), points(curves)
  records = {} if records is None else records
  records |= {(key, x.index, 0): record(key, point, x, words, rng)
              for key, point in grid.items() for x in examples}
  figures = summary.Figures(grid, examples, words.decode, COMMON['seed'])
  return summary.summarise(figures, records, COMMON,
                           {key: COST for key in grid},
                           summary.Compilations(4, 21.0, 0))


def leave(directory, limit=None, curves=CURVES):
  """Writes what a finished sweep leaves beside its report; its summary."""
  records, configuration = {}, dict(made='up')
  found = make(limit, curves, records)
  journal = journal_lib.Journal(directory / sweep.JOURNAL, configuration)
  journal.add(*records.values())
  journal.close()
  results.write_rows(directory / sweep.RESULTS, found.rows)
  measured.write(directory / sweep.SCORES, found.measured, configuration)
  return found
