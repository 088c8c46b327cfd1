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
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import text
from spec_cascades.training import data as data_lib

Pair = tuple[str, str]


def translate(lm: Any, params: Any, corpus: data_lib.ParallelText,
              sources: Sequence[str], *, width: int, max_length: int = 72,
              batch: int = 50) -> list[str]:
  """Greedy translations, `batch` at a time through one program.

  Args:
    lm: A `LanguageModel`.
    params: Its parameters in checkpoint layout.
    corpus: What the model is trained on: its vocabulary and its cut.
    sources: Texts of at most `width` tokens, EOS included.
    width: Encoder length.
    max_length: Decoder tokens at most, the start token included.
    batch: Rows of a call.

  Raises:
    ValueError: A text is longer than `width`.
  """
  spec = decode.GenSpecSample(lm, null.Null(), max_length)
  packed, out = lm.pack(params), []
  rows = [corpus.encode(source) for source in sources]
  for start in range(0, len(rows), batch):
    part = rows[start:start + batch]
    filled = part + [[text.EOS]] * (batch - len(part))
    state = spec(packed, None, text.encoder_prompt(filled, width),
                 decode.row_keys(0, range(batch)), targets.Lossless(),
                 warp.Warp(0.0))
    tokens = np.asarray(state.tokens)[:len(part)]
    out += [corpus.vocabulary.decode(row[1:]) for row in tokens]
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
  def _groups(self):
    return self.corpus.bucketed(self.split)

  def __call__(self, params: Any) -> dict[str, float]:
    """Loss in nats per token, and the quality under the metric's name."""
    total = count = 0.
    for sources, targets_ in self._groups.values():
      batch = data_lib.as_batch(sources[:64], targets_[:64])
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
           if not x['near_duplicate']]
  return [pair for pair in pairs if len(corpus.encode(pair[0])) <= widest]
