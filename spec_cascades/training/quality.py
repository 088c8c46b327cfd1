"""How good a model is while it trains: loss, and its greedy texts measured."""
from __future__ import annotations

import collections
import hashlib
from typing import Any, Sequence

import jax
import numpy as np

from spec_cascades import sharding as sharding_lib
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import qualities
from spec_cascades.training import bought
from spec_cascades.training import data as data_lib
from spec_cascades.training import sharding
from spec_cascades.training import train_step
from spec_cascades.training import writing

Pair = tuple[str, str]
MEASURED = 64                          # examples of a bucket, for the loss


def translate(lm: Any, params: Any, corpus: data_lib.ParallelText,
              sources: Sequence[str], *, width: int, max_length: int = 72,
              batch: int = 50) -> list[str]:
  """Greedy translations, `batch` at a time through one program.

  Args:
    lm: A `LanguageModel`.
    params: Its parameters in checkpoint layout.
    corpus: What the model is trained on: its vocabulary, and how it is asked.
    sources: Texts that make inputs of at most `width` tokens.
    width: Of the inputs.
    max_length: Tokens of an output at most, with the one that it begins with
      or follows.
    batch: Rows of a call.

  Raises:
    ValueError: A text is longer than `width`.
  """
  texts, _ = writing.write(
      lm, lm.pack(params), [corpus.encode(source) for source in sources],
      width=width, length=max_length - 1, batch=batch, end=corpus.end)
  return [corpus.decode(tokens) for tokens in texts]


class Validation:
  """Loss on a split; quality on its texts without a near-duplicate in train.

  With a teacher also how often it agrees with the student, and what the student
  buys it as a drafter, if it is one: of a verifier with heads, they draft.

  Args:
    update: What is trained, and how; its `loss` is measured.
    layout: Where parameters and rows lie, if on a mesh. If that is of several
      processes, all of them have to ask for whatever is measured.
    corpus: Where the split is.
    split: Its name.
    metric: What texts are measured by, of `qualities`.
    sentences: How many are decoded; chosen once, at random.
    batch: Rows of a decoding call.
    max_length: Decoder tokens at most.
    gamma: Draft length of a student; 0 decodes with none.

  Raises:
    ValueError: There is no such split, or nothing in it to measure.
  """

  def __init__(self, update: train_step.Update, corpus: data_lib.ParallelText,
               *, split: str = 'validation', metric: str = 'BLEU',
               sentences: int = 200, batch: int = 50, max_length: int = 72,
               gamma: int = 0, layout: sharding_lib.Layout | None = None):
    self._layout = layout
    self.update, self.corpus, self.split = update, corpus, split
    self.metric, self.gamma = qualities.make(metric), gamma
    self.batch, self.max_length = batch, max_length
    self.loss = jax.jit(update.loss)
    self.pairs, self._batches = _measured(corpus, split)
    order = np.random.default_rng(0).permutation(len(self.pairs))
    self.pairs = [self.pairs[i] for i in order[:sentences]]
    self._said = False                   # why nothing is predicted

  @property
  def digest(self) -> str:
    """Of what is decoded and of the batches that are measured."""
    found = hashlib.sha256(repr(self.pairs).encode())
    for batch in self._batches:
      for name, array in sorted(batch.items()):
        found.update(f'{name}{array.shape}'.encode() + array.tobytes())
    return found.hexdigest()

  def __call__(self, params: Any, teacher: Any = None
               ) -> tuple[dict[str, float], list[str]]:
    """Figures, and lines on the student as a drafter.

    Args:
      params: Parameters in checkpoint layout.
      teacher: Those of the teacher, if there is one.

    Returns:
      `validation_loss` in nats per token and the quality under the metric's
      name; with a teacher `validation_agreement` and `validation_acceptance`,
      see `losses.Distillation`, and tokens per verifier call. Where these are
      not predicted, the lines of the first call say why.
    """
    found = self.means(params, teacher)
    found[self.metric.name.lower()] = self.quality(params)
    lines = []
    if (why := self._unforetold(teacher)) and not self._said:
      lines, self._said = [f'tokens a call not predicted: {why}'], True
    for some in [] if why else self._bought(params, teacher):
      found |= some.figures
      lines += [str(some)] + [some.warning] * (some.warning is not None)
    return found, lines

  def means(self, params: Any, teacher: Any = None) -> dict[str, float]:
    """What the loss says, `validation_...`, per token; nothing is decoded.

    Args:
      params: Parameters in checkpoint layout.
      teacher: Those of the teacher, if there is one.
    """
    total = collections.Counter()
    for batch in self._batches:
      if self._layout is not None:
        batch = sharding.batch(batch, self._layout)
      loss, sums = self.loss(params, batch, teacher)
      sums |= dict(loss=loss)
      total.update({name: float(x) for name, x in sums.items()})
    tokens = total.pop('tokens') or 1.   # there may be none to learn from
    return {f'validation_{name}': x / tokens for name, x in total.items()}

  def _unforetold(self, teacher) -> str:
    """Why there is no student to decode with; empty if there is one."""
    if self.update.objective is not None:
      return (f'{type(self.update.objective).__name__} trains no model that '
              'drafts a chain for another; scripts/calibrate_heads.py measures '
              'heads and layers, scripts/sweep.py any drafter')
    if teacher is None:
      return ('there is no verifier to draft for; set loop.Run.teacher if this '
              'is to be a drafter')
    return '' if self.gamma else 'gamma is 0; set loop.Recipe.gamma'

  def _bought(self, params, teacher) -> list[bought.Bought]:
    """What the student buys, greedy and sampled."""
    pair = bought.pair_of(self.update, params, teacher, self.corpus,
                          self._layout)
    return [bought.tokens_per_call(
        pair, self.corpus, [source for source, _ in self.pairs],
        gamma=self.gamma, temperature=temperature, max_length=self.max_length,
        batch=self.batch) for temperature in (0., 1.)]

  def quality(self, params: Any) -> float:
    """The metric of greedy texts for the chosen sentences."""
    found = translate(meshes.placed(self.update.lm, self._layout), params,
                      self.corpus,
                      [source for source, _ in self.pairs],
                      width=max(self.corpus.buckets),
                      max_length=self.max_length, batch=self.batch)
    return self.metric(found, [(target,) for _, target in self.pairs])


def _measured(corpus, split):
  """Pairs of a split to decode, and batches of it for the loss."""
  there = corpus.splits
  if split not in there:
    raise ValueError(f'The corpus has no split {split}, on which it is '
                     f'evaluated; it has {", ".join(there) or "none"}. Give '
                     'one that has it.')
  batches = [batch for width, x in corpus.bucketed(split).items()
             for batch in data_lib.chunks(x, corpus.rows(width), MEASURED)]
  pairs, widest = distinct_pairs(corpus, split), max(corpus.buckets)
  for found, which in ((batches, ''), (pairs, ' without a near-duplicate in '
                                       'train')):
    if not found:
      raise ValueError(f'The split {split}, on which the corpus is evaluated, '
                       f'has no pair of up to {widest} tokens{which}; give '
                       'wider buckets, or more text.')
  return pairs, batches


def distinct_pairs(corpus: data_lib.ParallelText, split: str) -> list[Pair]:
  """Pairs of a split that train has no near-duplicate of and that fit."""
  widest = max(corpus.buckets)
  pairs = [(x[corpus.source], x[corpus.target]) for x in corpus.lines(split)
           if not x.get('near_duplicate')]
  return [pair for pair in pairs if len(corpus.encode(pair[0])) <= widest]
