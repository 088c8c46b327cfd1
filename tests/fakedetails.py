"""The details of a finished sweep, made up: a time split, inspected texts."""
import dataclasses

import numpy as np

from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import split
from tests import fakesweep

ROUND = ('accepted', 'accepted', 'corrected', 'accepted', 'bonus')


def times(row):
  """A split whose parts are a tenth less than the whole."""
  whole = row.latency_mean
  drafted = .2 * whole if row.gamma else 0.
  return split.Split(
      row.key, row.sweep, row.method, row.alpha, row.temperature, .1 * whole,
      drafted, .5 * whole, .3 * whole - drafted / 2 - .1 * whole, whole, 9.5,
      [[48, 72, 1., 2., 3., 4.]], 10, .5)


def decoded(row, example, rng):
  """The reference, a word a token; some words are left out."""
  words = [f'{" " * (i > 0)}{word}' for i, word in enumerate(
      example.reference.split()) if rng.random() < .8] + ['</s>']
  law = lambda: float(f'{rng.uniform():.3g}')
  tokens = tuple(inspected.Token(
      word, ROUND[i % len(ROUND)] if row.gamma else '', law(), law(),
      law() if row.gamma else None) for i, word in enumerate(words))
  return inspected.Decoded(row.key, tokens, len(words) // 2,
                         rng.random() < .9)


def texts(rows, count):
  """The first embedded sentences."""
  rng = np.random.default_rng(0)
  return [inspected.Text(x.id, x.source, x.references, tuple(
      decoded(row, x, rng) for row in rows))
          for x in examples_lib.read(limit=count)]


def make(limit=None, count=3):
  """A summary of the embedded sentences with its details."""
  summary = fakesweep.make(limit)
  return dataclasses.replace(summary, split=list(map(times, summary.rows)),
                             texts=texts(summary.rows, count))
