"""How good a model is while it trains: loss and BLEU of greedy translations."""
from __future__ import annotations

import functools
from typing import Any, Sequence

import jax
import numpy as np

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import text
from spec_cascades.training import data as data_lib

Pair = tuple[str, str]


def translate(lm: Any, params: Any, vocabulary: text.Vocabulary,
              sources: Sequence[str], *, width: int, max_length: int = 72,
              batch: int = 50) -> list[str]:
  """Greedy translations, `batch` at a time through one program.

  Args:
    lm: A `LanguageModel`.
    params: Its parameters in checkpoint layout.
    vocabulary: Of both languages.
    sources: Texts of at most `width` tokens, EOS included.
    width: Encoder length.
    max_length: Decoder tokens at most, the start token included.
    batch: Rows of a call.

  Raises:
    ValueError: A text is longer than `width`.
  """
  spec = decode.GenSpecSample(lm, null.Null(), max_length)
  packed, out = lm.pack(params), []
  rows = [vocabulary.encode(source) for source in sources]
  for start in range(0, len(rows), batch):
    part = rows[start:start + batch]
    filled = part + [[text.EOS]] * (batch - len(part))
    state = spec(packed, None, text.encoder_prompt(filled, width),
                 decode.row_keys(0, range(batch)), targets.Lossless(),
                 warp.Warp(0.0))
    tokens = np.asarray(state.tokens)[:len(part)]
    out += [vocabulary.decode(row[1:]) for row in tokens]
  return out


class Validation:
  """Loss on a split; BLEU on its sentences without a near-duplicate in train.

  Args:
    lm: The model.
    loss: (params, batch) -> mean loss per token and the number of tokens.
    corpus: Where the split is.
    split: Its name.
    sentences: How many sentences are translated; chosen once, at random.
    batch: Rows of a decoding call.
    max_length: Decoder tokens at most.
  """

  def __init__(self, lm: Any, loss: Any, corpus: data_lib.ParallelText, *,
               split: str = 'validation', sentences: int = 200,
               batch: int = 50, max_length: int = 72):
    self.lm, self.corpus, self.split = lm, corpus, split
    self.batch, self.max_length = batch, max_length
    self.loss = jax.jit(loss)
    self.pairs = distinct_pairs(corpus, split)
    order = np.random.default_rng(0).permutation(len(self.pairs))
    self.pairs = [self.pairs[i] for i in order[:sentences]]

  @functools.cached_property
  def _groups(self):
    return self.corpus.bucketed(self.split)

  def __call__(self, params: Any) -> dict[str, float]:
    """Loss in nats per token and BLEU."""
    total = count = 0.
    for sources, targets_ in self._groups.values():
      batch = data_lib.as_batch(sources[:64], targets_[:64])
      loss, tokens = self.loss(params, batch)
      total += float(loss) * float(tokens)
      count += float(tokens)
    return dict(validation_loss=total / count, bleu=self.bleu(params))

  def bleu(self, params: Any) -> float:
    """Corpus BLEU of greedy translations of the chosen sentences."""
    found = translate(self.lm, params, self.corpus.vocabulary,
                      [source for source, _ in self.pairs],
                      width=max(self.corpus.buckets),
                      max_length=self.max_length, batch=self.batch)
    return metrics.bleu(found, [(target,) for _, target in self.pairs])[0]


def distinct_pairs(corpus: data_lib.ParallelText, split: str) -> list[Pair]:
  """Pairs of a split that train has no near-duplicate of and that fit."""
  encode, widest = corpus.vocabulary.encode, max(corpus.buckets)
  pairs = [(x[corpus.source], x[corpus.target]) for x in corpus.lines(split)
           if not x['near_duplicate']]
  return [pair for pair in pairs if len(encode(pair[0])) <= widest]
