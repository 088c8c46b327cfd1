"""A small model that predicts only some tokens of the verifier's vocabulary.

Where a vocabulary has 262,144 entries, the head is most of a small drafter's
cost. q is zero on the tokens that are left out, and decoding stays exact for
every rule: it holds for any q.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Int
import numpy as np

from spec_cascades import types


@dataclasses.dataclass(frozen=True)
class Reduced:
  """`lm` with a head over K tokens; only drafters can use it.

  Parameters are `{'model': those of lm, 'tokens': [K] ids, ascending}`, so
  that a drafter and its tokens are saved together. `head` gives K logits:
  `token_of` and `widen` turn what is drawn from them into the verifier's terms.
  """
  lm: Any

  @property
  def vocab_size(self) -> int:
    """Of the tokens that it reads: the verifier's."""
    return self.lm.vocab_size

  def pack(self, params: Any) -> Any:
    """Checkpoint layout -> decode layout, with the rows of K tokens.

    Raises:
      ValueError: The ids are not ascending ids of the vocabulary.
    """
    tokens = np.asarray(params['tokens'])
    low, high = (tokens.min(), tokens.max()) if tokens.size else (-1, -1)
    if not (tokens.ndim == 1 and np.issubdtype(tokens.dtype, np.integer)
            and (np.diff(tokens) > 0).all() and 0 <= low
            and high < self.vocab_size):
      raise ValueError(
          f'Got a draft vocabulary of {tokens.size} ids from {low} to {high}; '
          f'allowed: ascending ids from 0 to {self.vocab_size - 1}. Make it '
          'with models.reduced.frequent.')
    tokens = jnp.asarray(tokens, jnp.int32)
    packed = self.lm.pack(params['model'])
    return dict(model=self.lm.narrow(packed, tokens), tokens=tokens)

  def init(self, params: Any, prompt: types.Prompt, capacity: int) -> Any:
    """The cache of `lm`."""
    return self.lm.init(params['model'], prompt, capacity)

  def extend(self, params: Any, cache: Any, tree: types.TokenTree):
    """As `lm` does: it reads all tokens."""
    return self.lm.extend(params['model'], cache, tree)

  def head(self, params: Any, hidden: Any):
    """Float32 logits [*axes, K]."""
    return self.lm.head(params['model'], hidden)


def width(lm: Any, params: Any) -> int:
  """How many logits a model's head has."""
  return len(params['tokens']) if isinstance(lm, Reduced) else lm.vocab_size


def token_of(lm: Any, params: Any,
             index: Int[Array, '*axes']) -> Int[Array, '*axes']:
  """The token that a place among a model's logits stands for."""
  return params['tokens'][index] if isinstance(lm, Reduced) else index


def widen(lm: Any, params: Any, q: types.Prediction) -> types.Prediction:
  """A prediction over the whole vocabulary: tokens left out have mass 0."""
  if not isinstance(lm, Reduced):
    return q
  spread = lambda x, fill: jnp.full(
      (*x.shape[:-1], lm.vocab_size), fill, x.dtype
  ).at[..., params['tokens']].set(x)
  return types.Prediction(spread(q.logits, -jnp.inf), spread(q.probs, 0))


def frequent(texts: Iterable[Sequence[int]], size: int, vocab_size: int,
             keep: Sequence[int] = ()) -> np.ndarray:
  """Ids of the `size` most frequent tokens of texts, ascending.

  Args:
    texts: Tokens, of the kind that the drafter will have to predict.
    size: How many.
    vocab_size: Of the verifier.
    keep: Ids to have in any case, such as the end of a text.

  Raises:
    ValueError: A size, or an id, that the vocabulary does not have.
  """
  if not len(keep) <= size <= vocab_size or size < 1:
    raise ValueError(f'Got a draft vocabulary of {size} tokens; allowed: from '
                     f'{max(1, len(keep))} to {vocab_size}.')
  counts = np.zeros(vocab_size, np.int64)
  for text in texts:
    ids = np.asarray(text, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
      raise ValueError(f'A text has tokens from {ids.min()} to {ids.max()}; '
                       f'allowed: 0 to {vocab_size - 1}. Use the tokenizer of '
                       'the verifier.')
    counts += np.bincount(ids, minlength=vocab_size)
  counts[list(keep)] = np.iinfo(np.int64).max
  first = np.argsort(-counts, kind='stable')[:size]
  return np.sort(first).astype(np.int32)

