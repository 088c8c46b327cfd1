"""How good texts are: each metric as sums over examples, and what they make.

A metric has `parts`, a row of numbers per example, and `of`, which turns the
sum of rows into a score from 0 to 100: so resamples of examples are products of
matrices, and a mean of means never happens. Adding one is a line in
`QUALITIES`.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.metadata
import re
import string
from typing import Callable, Sequence

import numpy as np

from spec_cascades.evaluation import metrics

ARTICLES = re.compile(r'\b(a|an|the)\b')
PUNCTUATION = str.maketrans('', '', string.punctuation)
Texts = Sequence[str]


@dataclasses.dataclass(frozen=True)
class Quality:
  """A metric.

  Attributes:
    name: What tables call it.
    parts: From texts and references to what is summed: [n, k].
    of: From summed parts [k] to a score from 0 to 100.
    signature: What has to be said so that others can compute it.
  """
  name: str
  parts: Callable[[Texts, Texts], np.ndarray]
  of: Callable[[np.ndarray], float]
  signature: Callable[[], str]

  def __call__(self, texts: Texts, references: Texts) -> float:
    """The score of all texts."""
    return self.of(self.parts(texts, references).sum(0))

  def resampled(self, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scores of resamples [count]; `weights` are from `metrics.resamples`."""
    return np.array([self.of(row) for row in weights @ parts])


def normal(text: str) -> str:
  """An answer without case, punctuation, articles and extra spaces.

  Reference: Rajpurkar et al. (2016), SQuAD's evaluation script, version 2.0
  """
  bare = text.lower().translate(PUNCTUATION)
  return ' '.join(ARTICLES.sub(' ', bare).split())


def exact(text: str, reference: str) -> float:
  """Whether two answers are the same but for what `normal` removes."""
  return float(normal(text) == normal(reference))


def f1(text: str, reference: str) -> float:
  """Harmonic mean of precision and recall of words; see `normal`.

  Where either has no words, it is 1 if both have none, else 0.
  """
  ours, theirs = (normal(x).split() for x in (text, reference))
  if not ours or not theirs:
    return float(ours == theirs)
  same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2 * same / (len(ours) + len(theirs))


def _rouge(kind: str, texts: Texts, references: Texts) -> np.ndarray:
  scorer = _scorer(kind)
  return _rows(lambda a, b: scorer.score(b, a)[kind].fmeasure, texts,
               references)


@functools.lru_cache(maxsize=None)
def _scorer(kind: str):
  from rouge_score import rouge_scorer  # pylint: disable=g-import-not-at-top
  return rouge_scorer.RougeScorer([kind], use_stemmer=True)


def _rows(score, texts, references) -> np.ndarray:
  """[n, 2]: a hundred times the score, and 1."""
  rows = [(100 * score(a, b), 1) for a, b in zip(texts, references,
                                                 strict=True)]
  return np.array(rows, np.float64).reshape(-1, 2)


def _mean(parts: np.ndarray) -> float:
  return float(parts[0] / parts[1])


def _rouge_of(name: str, kind: str) -> Quality:
  version = lambda: (f'{kind} F1|stemmer:yes|rouge_score:'
                     f'{importlib.metadata.version("rouge_score")}')
  return Quality(name, functools.partial(_rouge, kind), _mean, version)


QUALITIES = {quality.name: quality for quality in (
    Quality('BLEU', metrics.bleu_parts, metrics.bleu_of,
            metrics.bleu_signature),
    _rouge_of('ROUGE-1', 'rouge1'), _rouge_of('ROUGE-2', 'rouge2'),
    _rouge_of('ROUGE-L', 'rougeL'), _rouge_of('ROUGE-Lsum', 'rougeLsum'),
    Quality('EM', functools.partial(_rows, exact), _mean,
            lambda: 'exact match, as in SQuAD 2.0'),
    Quality('F1', functools.partial(_rows, f1), _mean,
            lambda: 'F1 of words, as in SQuAD 2.0'))}


def make(name: str) -> Quality:
  """The metric of that name; ValueError if there is none."""
  if name not in QUALITIES:
    raise ValueError(f'Unknown quality {name!r}; allowed: '
                     f'{", ".join(QUALITIES)}.')
  return QUALITIES[name]
