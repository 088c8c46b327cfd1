"""Quality and cost of a point, from sums over the data set.

Ratios are ratios of sums; a mean of means never happens. Intervals resample
examples; all points share the resamples, so that differences are paired.
"""
from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, Mapping, Sequence

import numpy as np
from sacrebleu.metrics import BLEU

from spec_cascades import stats as stats_lib

COUNTS = ('rounds', 'drafted', 'accepted', 'corrected', 'bonus', 'emitted',
          'verifier_calls', 'drafter_calls')
LEVEL = 95.0
RESAMPLES = 1000
_SCORER = BLEU(effective_order=True)
References = Sequence[Sequence[str]]


def paired(texts: Sequence[str], references: References, *,
           needed: bool = True) -> list[tuple[str, Sequence[str]]]:
  """Each text with its references.

  Args:
    texts: One an example.
    references: Of each example, those that it is compared with.
    needed: Whether an example must have any.

  Raises:
    ValueError: Their numbers differ, or an example's references are none or a
      string, of which letters would be taken one by one.
  """
  for i, answers in enumerate(references):
    if isinstance(answers, str):
      raise ValueError(f'The references of example {i} are the string '
                       f'{answers[:40]!r}; give a tuple of strings.')
    if needed and not answers:
      raise ValueError(f'Example {i} has no reference; give at least one.')
  return list(zip(texts, references, strict=True))


def bleu_parts(texts: Sequence[str], references: References) -> np.ndarray:
  """Per sentence, what corpus BLEU sums: [n, 10].

  Columns: lengths of text and of the reference that is closest to it, n-grams
  1..4 that any reference has, n-grams 1..4.
  """
  rows = [_sentence_parts(text, tuple(answers))
          for text, answers in paired(texts, references)]
  return np.array(rows, np.int64).reshape(-1, 10)


@functools.lru_cache(maxsize=2**16)      # many points write the same sentences
def _sentence_parts(text, answers) -> tuple[int, ...]:
  score = _SCORER.sentence_score(text, list(answers))
  return score.sys_len, score.ref_len, *score.counts, *score.totals


def bleu_of(parts: np.ndarray) -> float:
  """Corpus BLEU of summed parts [10], as sacrebleu computes it."""
  parts = [int(x) for x in parts]
  return BLEU.compute_bleu(
      correct=parts[2:6], total=parts[6:], sys_len=parts[0], ref_len=parts[1],
      smooth_method='exp').score


def bleu(texts: Sequence[str], references: References) -> tuple[float, str]:
  """sacrebleu's corpus BLEU with its defaults, and its signature."""
  score = bleu_of(bleu_parts(texts, references).sum(0))
  return score, bleu_signature(references)


def bleu_signature(references: References) -> str:
  """sacrebleu's, of its defaults and so many references an example."""
  scorer = BLEU()
  counted = itertools.zip_longest(*(['a'] * len(x) for x in references))
  scorer.corpus_score(['a'] * len(references), list(map(list, counted)))
  return str(scorer.get_signature())


def resamples(n: int, count: int, seed: int) -> np.ndarray:
  """How often each of n examples is drawn: [count, n]."""
  rng = np.random.default_rng((seed, n))
  return rng.multinomial(n, np.full(n, 1 / n), size=count)


def bootstrap_ratio(numerator: np.ndarray, denominator: np.ndarray,
                    weights: np.ndarray) -> np.ndarray:
  """sum(numerator) / sum(denominator) of every resample [count]; paired."""
  return (weights @ numerator) / (weights @ denominator)


def interval(samples: np.ndarray, of: int = 1) -> tuple[float, float]:
  """Percentile interval of bootstrap samples; infinite ones are allowed.

  `of` so many that are looked at for one that excludes a value: wider, as
  Bonferroni has it.
  """
  tail = (100 - LEVEL) / 2 / of
  low, high = np.percentile(samples, [tail, 100 - tail], method='nearest')
  return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A ratio of sums, and its bootstrap interval; NaN where nothing counts."""
  value: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True)
class Drafting:
  """What drafts yielded: see `stats.block_efficiency` and `acceptance`."""
  tokens: Estimate              # a verifier call
  without_bonus: Estimate
  accepted: list[Estimate]      # by depth, from 1; empty if none is judged


def drafting(counters: Sequence[Mapping[str, Any]],
             weights: np.ndarray, rejects: bool = True) -> Drafting:
  """Block efficiency and acceptance by position of examples of one point.

  Args:
    counters: The fields of `Stats` of each example.
    weights: From `resamples`.
    rejects: Whether drafts are accepted or rejected at all.
  """
  stats = stats_lib.Stats(**{
      f.name: np.array([c[f.name] for c in counters])
      for f in dataclasses.fields(stats_lib.Stats)})
  accepted, judged = stats_lib.acceptance(stats)
  return Drafting(
      ratio(*stats_lib.block_efficiency(stats), weights),
      ratio(*stats_lib.block_efficiency(stats, bonus=False), weights),
      [ratio(a, b, weights) for a, b in zip(accepted.T, judged.T)
       if rejects and b.sum()])


def ratio(numerator: np.ndarray, denominator: np.ndarray,
          weights: np.ndarray) -> Estimate:
  """sum(numerator) / sum(denominator) over examples [n], resampled."""
  # A resample without any such draft; a baseline without a verifier call.
  with np.errstate(divide='ignore', invalid='ignore'):
    samples = bootstrap_ratio(numerator, denominator, weights)
  total = denominator.sum()
  value = float(numerator.sum() / total) if total else math.nan
  samples = samples[np.isfinite(samples)]
  low, high = interval(samples) if samples.size else (math.nan, math.nan)
  return Estimate(value, low, high)


def ratios(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Summed counters of all examples, and the ratios of the sums."""
  total = {name: sum(int(s[name]) for s in stats) for name in COUNTS}
  deferred = float(np.sum([s['deferred'] for s in stats], dtype=np.float64))
  histogram = np.sum([s['histogram'] for s in stats], 0)
  judged = total['accepted'] + total['corrected']
  over = lambda a, b: a / b if b else 0.0
  block = stats_lib.block_efficiency(stats_lib.Stats(**{
      f.name: total.get(f.name) for f in dataclasses.fields(stats_lib.Stats)}))
  return dict(
      total, deferred=round(deferred, 4), histogram=[int(x) for x in histogram],
      rejection_rate=total['corrected'] / judged if judged else None,
      tokens_per_call=over(*block),
      mean_accepted=over(total['accepted'], total['rounds']),
      deferral_rate=over(deferred, total['emitted']))


def latencies(seconds: np.ndarray) -> dict[str, float]:
  """Mean, median and 90th percentile in milliseconds."""
  ms = 1e3 * np.asarray(seconds)
  return dict(latency_mean=float(ms.mean()),
              latency_median=float(np.median(ms)),
              latency_p90=float(np.percentile(ms, 90)))
