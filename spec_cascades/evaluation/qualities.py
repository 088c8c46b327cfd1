"""How good texts are: each metric as sums over examples, and what they make.

A metric has `parts`, a row of numbers per example, and `of`, which turns the
sum of rows into a score from 0 to 100: so resamples of examples are products of
matrices, and a mean of means never happens. Adding one is a line in
`QUALITIES`.
"""
from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
import types
from typing import Callable, Sequence

import numpy as np

from spec_cascades.evaluation import answers
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import sandbox

Texts = Sequence[str]
References = metrics.References
LSUM = 'rougeLsum'                           # the one that looks at sentences


@dataclasses.dataclass(frozen=True)
class Quality:
  """A metric.

  Attributes:
    name: What tables call it.
    parts: From texts, and the references of each, to what is summed: [n, k].
    of: From summed parts [k] to a score from 0 to 100.
    signature: From references to what has to be said so that others can
      compute it.
  """
  name: str
  parts: Callable[[Texts, References], np.ndarray]
  of: Callable[[np.ndarray], float]
  signature: Callable[[References], str]

  def __call__(self, texts: Texts, references: References) -> float:
    """The score of all texts."""
    return self.of(self.parts(texts, references).sum(0))

  def resampled(self, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scores of resamples [count]; `weights` are from `metrics.resamples`."""
    return np.array([self.of(row) for row in weights @ parts])


def _rouge(kind: str, texts: Texts, references: References) -> np.ndarray:
  """Of several references, the one with the highest F1, as in rouge_score."""
  scorer, cut = _scorer(kind), _sentences if kind == LSUM else str
  score = lambda a, b: scorer.score_multi([cut(x) for x in b], cut(a))
  return _rows(lambda a, b: score(a, b)[kind].fmeasure, texts, references)


def _sentences(text: str) -> str:
  """Each on its line, cut as T5's metric does: models write no line ends.

  Example: 'a dog . it ran .' has two.
  """
  return text.replace(' . ', ' .\n')


@functools.lru_cache(maxsize=None)
def _scorer(kind: str):
  from rouge_score import rouge_scorer  # pylint: disable=g-import-not-at-top
  return rouge_scorer.RougeScorer([kind], tokenizer=_Tokenizer())


class _Tokenizer:
  """rouge_score's own, with a stemmer that remembers words."""

  def __init__(self):
    from nltk.stem import porter  # pylint: disable=g-import-not-at-top
    self._stemmer = types.SimpleNamespace(
        stem=functools.lru_cache(maxsize=2**16)(porter.PorterStemmer().stem))

  def tokenize(self, text: str) -> list[str]:
    from rouge_score import tokenize  # pylint: disable=g-import-not-at-top
    return tokenize.tokenize(text, self._stemmer)


def _rows(score, texts, references, *, needed=True) -> np.ndarray:
  """[n, 2]: a hundred times the score, and 1."""
  rows = [(100 * score(a, b), 1)
          for a, b in metrics.paired(texts, references, needed=needed)]
  return np.array(rows, np.float64).reshape(-1, 2)


def _mean(parts: np.ndarray) -> float:
  return float(parts[0] / parts[1])


def _rouge_of(name: str, kind: str) -> Quality:
  cut = '|sentences:as in T5' if kind == LSUM else ''
  version = lambda _: (f'{kind} F1|stemmer:yes{cut}|rouge_score:'
                       f'{importlib.metadata.version("rouge_score")}')
  return Quality(name, functools.partial(_rouge, kind), _mean, version)


def _answer(name: str, score: Callable[[str, Sequence[str]], float],
            signature: str, *, needed: bool = True) -> Quality:
  parts = functools.partial(_rows, score, needed=needed)
  return Quality(name, parts, _mean, lambda _: signature)


def _exact(normal: Callable[[str], str]):
  return functools.partial(answers.exact, normal=normal)


@functools.lru_cache(maxsize=2**14)          # points often share a program
def _passes(program: str, tests: str) -> float:
  return float(sandbox.run(program, tests).passed)


def _mbpp(text: str, tests: Sequence[str]) -> float:
  """Whether a program passes all its tests: every reference is one."""
  return _passes(answers.code(text), '\n'.join(tests))


QUALITIES = {quality.name: quality for quality in (
    Quality('BLEU', metrics.bleu_parts, metrics.bleu_of,
            metrics.bleu_signature),
    _rouge_of('ROUGE-1', 'rouge1'), _rouge_of('ROUGE-2', 'rouge2'),
    _rouge_of('ROUGE-L', 'rougeL'), _rouge_of('ROUGE-Lsum', LSUM),
    _answer('EM', answers.squad_exact, 'exact match, as in SQuAD 2.0',
            needed=False),
    _answer('F1', answers.squad_f1, 'F1 of words, as in SQuAD 2.0',
            needed=False),
    _answer('TriviaQA-EM', _exact(answers.trivia),
            'exact match, as in TriviaQA 1.0'),
    _answer('TriviaQA-F1', answers.trivia_f1,
            'F1 of words, as in TriviaQA 1.0'),
    _answer('NQ', _exact(answers.open_domain),
            'exact match, as in Natural Questions (open)'),
    _answer('WebQ', _exact(answers.open_domain),
            'exact match, as ORQA takes it on WebQuestions'),
    _answer('GSM8K', answers.same_number, 'equality of the final number'),
    _answer('MBPP', _mbpp, f'pass@1 of one program|seconds:{sandbox.SECONDS}'
            f'|bytes:{sandbox.MEMORY}|python:{platform.python_version()}'))}


def make(name: str) -> Quality:
  """The metric of that name; ValueError if there is none."""
  if not isinstance(name, str) or name not in QUALITIES:
    raise ValueError(f'Unknown quality {name!r}; allowed: '
                     f'{", ".join(QUALITIES)}.')
  return QUALITIES[name]
