"""How good a model is while it trains: loss, and its greedy texts measured."""
from __future__ import annotations

import functools
from typing import Any, Sequence

import jax
import numpy as np

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import pairs as pairs_lib
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import qualities
from spec_cascades.training import data as data_lib

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
  make, packed, out = pairs_lib.prompt_of(lm), lm.pack(params), []
  rows = [corpus.encode(source) for source in sources]
  for start in range(0, len(rows), batch):
    part = rows[start:start + batch]
    prompt = make(part + [[corpus.end]] * (batch - len(part)), width)
    spec = decode.GenSpecSample(
        lm, null.Null(), prompt.prefix.shape[1] - 1 + max_length,
        eos=corpus.end)
    state = spec(packed, None, prompt, decode.row_keys(0, range(batch)),
                 targets.Lossless(), warp.Warp(0.0))
    starts = np.asarray(prompt.prefix_lengths)[:len(part)].tolist()
    # A short prompt leaves room for more than a long one does.
    out += [corpus.decode(tokens[:max_length - 1])
            for tokens, *_ in programs.outputs_of(state, starts)]
  return out


class Validation:
  """Loss on a split; quality on its texts without a near-duplicate in train.

  Args:
    lm: The model.
    loss: (params, batch) -> mean loss per token and the number of tokens.
    corpus: Where the split is.
    split: Its name.
    metric: What texts are measured by, of `qualities`.
    sentences: How many are decoded; chosen once, at random.
    batch: Rows of a decoding call.
    max_length: Decoder tokens at most.
  """

  def __init__(self, lm: Any, loss: Any, corpus: data_lib.ParallelText, *,
               split: str = 'validation', metric: str = 'BLEU',
               sentences: int = 200, batch: int = 50, max_length: int = 72):
    self.lm, self.corpus, self.split = lm, corpus, split
    self.metric = qualities.make(metric)
    self.batch, self.max_length = batch, max_length
    self.loss = jax.jit(loss)
    self.pairs = distinct_pairs(corpus, split)
    order = np.random.default_rng(0).permutation(len(self.pairs))
    self.pairs = [self.pairs[i] for i in order[:sentences]]

  @functools.cached_property
  def _batches(self):
    return [batch for width, x in self.corpus.bucketed(self.split).items()
            for batch in data_lib.chunks(x, self.corpus.rows(width), MEASURED)]

  def __call__(self, params: Any) -> dict[str, float]:
    """Loss in nats per token, and the quality under the metric's name."""
    total = count = 0.
    for batch in self._batches:
      loss, tokens = self.loss(params, batch)
      total += float(loss) * float(tokens)
      count += float(tokens)
    return {'validation_loss': total / count,
            self.metric.name.lower(): self.quality(params)}

  def quality(self, params: Any) -> float:
    """The metric of greedy texts for the chosen sentences."""
    found = translate(self.lm, params, self.corpus,
                      [source for source, _ in self.pairs],
                      width=max(self.corpus.buckets),
                      max_length=self.max_length, batch=self.batch)
    return self.metric(found, [(target,) for _, target in self.pairs])


def distinct_pairs(corpus: data_lib.ParallelText, split: str) -> list[Pair]:
  """Pairs of a split that train has no near-duplicate of and that fit."""
  widest = max(corpus.buckets)
  pairs = [(x[corpus.source], x[corpus.target]) for x in corpus.lines(split)
           if not x.get('near_duplicate')]
  return [pair for pair in pairs if len(corpus.encode(pair[0])) <= widest]
