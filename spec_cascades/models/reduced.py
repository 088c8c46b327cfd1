"""A small model that predicts only some tokens of the verifier's vocabulary.

Where a vocabulary has 262,144 entries, the head is most of a small drafter's
cost. q is zero on the tokens that are left out, and decoding stays exact for
every rule: it holds for any q.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from spec_cascades import types


class Around:
  """A model around another one, `lm`, whose parameters are `model`."""
  lm: Any


@dataclasses.dataclass(frozen=True)
class Reduced(Around):
  """`lm` with a head over K tokens; the others have logits of -inf.

  Parameters are `{'model': those of lm, 'tokens': [K] ids, ascending}`, so
  that a drafter and its tokens are saved together. Drafters work with the K
  logits alone (`read`), and turn what they draw into the verifier's terms
  (`token_of`, `widen`).
  """
  lm: Any
  size: int                          # K

  def init_params(self, key: jax.Array) -> dict[str, Any]:
    """Random parameters and the first K tokens."""
    return dict(model=self.lm.init_params(key),
                tokens=jnp.arange(self.size, dtype=jnp.int32))

  @property
  def vocab_size(self) -> int:
    """Of the tokens that it reads: the verifier's."""
    return self.lm.vocab_size

  def teacher_forced(self, params: Any, batch: Mapping[str, Array],
                     **kwargs: Any) -> Float[Array, 'B T V']:
    """As `lm` does, with -inf for the tokens that are left out.

    Args:
      params: Parameters in checkpoint layout.
      batch: See `lm`.
      **kwargs: See `lm`.
    """
    logits = self.lm.teacher_forced(params['model'], batch, **kwargs)
    kept = jnp.zeros(self.vocab_size, bool).at[params['tokens']].set(True)
    return jnp.where(kept, logits, -jnp.inf)

  def pack(self, params: Any) -> Any:
    """Checkpoint layout -> decode layout, with the rows of K tokens.

    Raises:
      ValueError: The ids are not ascending ids of the vocabulary.
    """
    tokens = np.asarray(params['tokens'])
    if tokens.shape != (self.size,):
      raise ValueError(f'Got a draft vocabulary of shape {tokens.shape}; this '
                       f'model has ({self.size},).')
    check_tokens(tokens, self.vocab_size)
    everywhere = getattr(self.lm, 'everywhere', jnp.asarray)   # of a mesh
    tokens, packed = (everywhere(tokens.astype(np.int32)),
                      self.lm.pack(params['model']))
    return dict(model=self.lm.narrow(packed, tokens), tokens=tokens)

  def init(self, params: Any, prompt: types.Prompt, capacity: int) -> Any:
    """The cache of `lm`."""
    return self.lm.init(params['model'], prompt, capacity)

  def extend(self, params: Any, cache: Any, tree: types.TokenTree):
    """As `lm` does: it reads all tokens."""
    return self.lm.extend(params['model'], cache, tree)

  def head(self, params: Any, hidden: Any) -> Float[Array, '*axes V']:
    """Float32 logits."""
    return _spread(self, params, read(self, params, hidden), -jnp.inf)


def whole(lm: Any) -> Any:
  """The model that reads tokens: `lm`, or the one in it."""
  return lm.lm if isinstance(lm, Around) else lm


def width(lm: Any) -> int:
  """How many logits `read` gives."""
  return lm.size if isinstance(lm, Reduced) else lm.vocab_size


def read(lm: Any, params: Any, hidden: Any) -> Float[Array, '*axes K']:
  """Float32 logits of the tokens that a model predicts."""
  if isinstance(lm, Reduced):
    return lm.lm.head(params['model'], hidden)
  return lm.head(params, hidden)


def token_of(lm: Any, params: Any,
             index: Int[Array, '*axes']) -> Int[Array, '*axes']:
  """The token that a place among a model's logits stands for."""
  return params['tokens'][index] if isinstance(lm, Reduced) else index


def widen(lm: Any, params: Any, q: types.Prediction) -> types.Prediction:
  """A prediction over the whole vocabulary: tokens left out have mass 0."""
  if not isinstance(lm, Reduced):
    return q
  return types.Prediction(_spread(lm, params, q.logits, -jnp.inf),
                          _spread(lm, params, q.probs, 0))


def _spread(lm, params, x, fill):
  wide = jnp.full((*x.shape[:-1], lm.vocab_size), fill, x.dtype)
  return wide.at[..., params['tokens']].set(x)


def check_tokens(tokens: np.ndarray, vocab_size: int) -> None:
  """Raises ValueError unless they are ascending ids of the vocabulary."""
  whole = tokens.ndim == 1 and np.issubdtype(tokens.dtype, np.integer)
  low, high = (tokens.min(), tokens.max()) if whole and tokens.size else (-1,
                                                                          -1)
  if not (whole and (np.diff(tokens) > 0).all() and 0 <= low
          and high < vocab_size):
    raise ValueError(
        f'Got a draft vocabulary of {tokens.size} ids from {low} to {high}; '
        f'allowed: ascending ids from 0 to {vocab_size - 1}. Make it with '
        'models.reduced.frequent.')


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

