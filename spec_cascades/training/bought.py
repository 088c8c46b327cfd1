"""What a drafter buys: tokens per verifier call, predicted and decoded.

The prediction comes from one teacher-forced pass over what was decoded, see
`evaluation.forced`; where it and the loop disagree, one of them is wrong.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np

from spec_cascades import sharding
from spec_cascades import targets
from spec_cascades import theory
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.training import data
from spec_cascades.training import train_step
from spec_cascades.training import writing


@dataclasses.dataclass(frozen=True)
class Bought:
  """Tokens per verifier call of a drafter, lossless."""
  temperature: float
  gamma: int
  predicted: float
  decoded: float

  @property
  def off(self) -> float:
    """Of the prediction, relative to what was decoded."""
    return foretold.off(self.predicted, self.decoded)

  @property
  def figures(self) -> dict[str, float]:
    """By name, for a metrics file."""
    return {f'tokens_per_call_T{self.temperature:g}': self.decoded,
            f'predicted_T{self.temperature:g}': self.predicted}

  @property
  def warning(self) -> str | None:
    """What to say where they disagree."""
    return foretold.warning(f'T={self.temperature:g}', self.predicted,
                            self.decoded)

  def __str__(self) -> str:
    return (f'T={self.temperature:g}, gamma {self.gamma}: {self.decoded:.2f} '
            'tokens a call, predicted '
            f'{foretold.shown(self.predicted, self.decoded)}')


def pair_of(update: train_step.Update, params: Any, teacher: Any,
            corpus: data.ParallelText, layout: sharding.Layout | None = None
            ) -> pairs.Pair:
  """A student and its teacher as drafter and verifier.

  Args:
    update: Whose they are.
    params: Of the student, in checkpoint layout.
    teacher: Of the teacher.
    corpus: Of whose vocabulary they are.
    layout: Where they lie, if on a mesh.
  """
  model = lambda name, lm, own: pairs.Model(
      name, meshes.placed(lm, layout), own, '', max(corpus.buckets))
  return pairs.Pair(model('teacher', update.teacher, teacher),
                    model('student', update.lm, params), corpus.vocabulary, '')


def tokens_per_call(pair: pairs.Pair, corpus: data.ParallelText,
                    sources: Sequence[str], **numbers: Any) -> Bought:
  """What a drafter buys; arguments are those of `measure`."""
  return measure(pair, corpus, sources, **numbers)[0]


def measure(pair: pairs.Pair, corpus: data.ParallelText,
            sources: Sequence[str], *, gamma: int, temperature: float,
            max_length: int, batch: int, seed: int = 0
            ) -> tuple[Bought, list[np.ndarray]]:
  """Decodes texts with a chain of a drafter, and predicts what it took.

  Args:
    pair: Verifier and drafter.
    corpus: How texts are put to them.
    sources: Texts of at most the corpus's widest bucket.
    gamma: Draft length.
    temperature: Of both models.
    max_length: Tokens of an output at most, with the one that it begins with
      or follows.
    batch: Rows of a call.
    seed: Of what is drawn.

  Returns:
    Figures, and of each text the probability that each of its tokens is
    accepted if it is drafted.
  """
  rows = [corpus.encode(source) for source in sources]
  texts, calls = writing.write(
      pair.verifier.lm, pair.verifier.params, rows, width=max(corpus.buckets),
      length=max_length - 1, batch=batch, end=corpus.end,
      drafter=chain.Chain(pair.drafter.lm, gamma),
      draft_params=pair.drafter.params, temperature=temperature, seed=seed)
  rates = forced.acceptance(pair, rows, texts, targets.Lossless(),
                            warp.Warp(temperature))
  return Bought(temperature, gamma, theory.tokens_per_call(rates, gamma),
                sum(map(len, texts)) / calls), rates
