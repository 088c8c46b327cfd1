"""A text in the order of its suffixes, in which what is known is looked up."""
from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
import numpy as np

from spec_cascades import struct


@struct.dataclass
class Datastore:
  """M tokens, and where their suffixes start, in dictionary order.

  `end` is the token that ends each of several texts, -1 if there is none.
  """
  tokens: Int[Array, 'M']
  order: Int[Array, 'M']
  end: Int[Array, '']


def index(tokens: np.ndarray, end: int = -1) -> Datastore:
  """The datastore of a text, on the host: O(M log M) steps of numpy a doubling.

  Args:
    tokens: Token ids [M], at least one.
    end: Of a text; nothing is drafted from there on.

  Raises:
    ValueError: It is empty, or no row of whole numbers.
  """
  tokens = np.asarray(tokens)
  if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in 'iu':
    raise ValueError(f'A datastore of shape {tokens.shape} and '
                     f'{tokens.dtype}; allowed: one row of token ids.')
  rank, reach = np.unique(tokens, return_inverse=True)[1].astype(np.int64), 1
  while True:
    behind = np.full_like(rank, -1)
    behind[:-reach] = rank[reach:] if reach < len(rank) else []
    key = rank * (len(rank) + 1) + behind + 1
    order = np.argsort(key, kind='stable')
    rank = np.empty_like(rank)
    rank[order] = np.cumsum(np.append(0, np.diff(key[order]) > 0))
    if rank.max() == len(rank) - 1 or reach >= len(rank):
      return Datastore(*(jnp.asarray(x, jnp.int32)
                         for x in (tokens, order, end)))
    reach *= 2


def places(store: Datastore, last: Int[Array, 'T'], count: Int[Array, '']
           ) -> tuple[Int[Array, ''], Int[Array, '']]:
  """Start and end of the places of suffixes that begin with `last[-count:]`."""
  size, most = len(store.tokens), len(last)
  offset = jnp.arange(most) - (most - count)    # of last[j] in the suffix

  def before(place, equal):
    """Whether the suffix there comes before; or before or equal."""
    at = store.order[place] + offset
    there = store.tokens[jnp.clip(at, 0, size - 1)]
    # What ends comes before what goes on.
    sign = jnp.where(at >= size, -1, jnp.sign(there - last))
    sign = jnp.where(offset < 0, 0, sign)
    differs = sign != 0
    first = sign[jnp.argmax(differs)]
    return (differs.any() & (first < 0)) | (equal & ~differs.any())

  def bound(equal):
    def halve(_, ends):
      low, high = ends
      middle = (low + high) // 2
      less = before(jnp.minimum(middle, size - 1), equal) & (middle < high)
      return jnp.where(less, middle + 1, low), jnp.where(less, high, middle)
    ends = jnp.int32(0), jnp.int32(size)
    return jax.lax.fori_loop(0, math.ceil(math.log2(size + 1)), halve, ends)[0]

  return bound(False), bound(True)
