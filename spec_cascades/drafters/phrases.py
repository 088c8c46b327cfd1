"""Pools of n-grams, by row."""
from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
import numpy as np

from spec_cascades import struct


GONE = -1                  # first token of an n-gram that came again later


@struct.dataclass
class Ring:
  """The last P n-grams of each row, none twice."""
  grams: Int[Array, 'B P N']
  filled: Int[Array, 'B']          # n-grams ever written

  def filed(self, grams: Int[Array, 'B M N'], live: Bool[Array, 'B']) -> Ring:
    """With more n-grams in the rows that are live, the last one the newest."""
    count, size = grams.shape[1], self.grams.shape[1]
    at = (self.filled[:, None] + jnp.arange(count)[None]) % size
    at = jnp.where(live[:, None], at, size)

    def put(ring, at, new, live):
      newer = (ring[:, None] == new[None]).all(-1).any(1) & live
      ring = ring.at[:, 0].set(jnp.where(newer, GONE, ring[:, 0]))
      return ring.at[at].set(_once(new), mode='drop')

    return Ring(jax.vmap(put)(self.grams, at, grams, live),
                self.filled + jnp.where(live, count, 0))

  def after(self, first: Int[Array, 'B'], count: int
            ) -> tuple[Int[Array, 'B G N1'], Int[Array, 'B G']]:
    """Continuations of a token, `count` at most, and how long each is.

    The newest first, none twice; those that there are not have length 0.
    """
    def row(ring, filled, first):
      size = len(ring)
      age = (filled - 1 - jnp.arange(size)) % size
      known = (ring[:, 0] == first) & (age < filled)
      newest, at = jax.lax.top_k(jnp.where(known, size - age, 0),
                                 min(count, size))
      more, found = count - len(at), (newest > 0).astype(jnp.int32)
      return (jnp.pad(ring[at, 1:], ((0, more), (0, 0))),
              jnp.pad(found * (ring.shape[1] - 1), (0, more)))

    return jax.vmap(row)(self.grams, self.filled, first)


def _once(grams):
  """n-grams [M, N] without those that come again behind."""
  same = (grams[:, None] == grams[None]).all(-1)
  again = jnp.triu(same, 1).any(1)
  return grams.at[:, 0].set(jnp.where(again, GONE, grams[:, 0]))


def ring(grams: Array | None, rows: int, size: int, order: int) -> Ring:
  """The same for all rows, with n-grams to begin with [M, N], or None.

  Raises:
    ValueError: They are too many for `size`, or not of `order` tokens.
  """
  slots, known = jnp.zeros((rows, size, order), jnp.int32), 0
  if grams is not None:
    known = len(grams)
    if grams.shape[1:] != (order,) or known > size:
      raise ValueError(f'Got n-grams of shape {grams.shape}; allowed: up to '
                       f'{size} of {order} tokens each.')
    slots = slots.at[:, :known].set(_once(jnp.asarray(grams)))
  return Ring(slots, jnp.full(rows, known, jnp.int32))


def commonest(tokens: Array | np.ndarray, order: int, count: int,
              end: int = -1) -> Int[Array, 'M N']:
  """The n-grams that a text has most often, on the host: a pool to begin with.

  The commonest comes last: it is found first, and gives way last.

  Args:
    tokens: Of the text.
    order: N.
    count: n-grams, fewer if there are no more.
    end: Of each of several texts. n-grams that hold it, among them all that
      reach from one text into the next, are left out.

  Raises:
    ValueError: The text is shorter than an n-gram.
  """
  tokens = np.asarray(tokens)
  if tokens.ndim != 1 or len(tokens) < order:
    raise ValueError(f'Tokens of shape {tokens.shape}; allowed: a row of at '
                     f'least {order}, for one n-gram.')
  every = np.lib.stride_tricks.sliding_window_view(tokens, order)
  grams, times = np.unique(every[(every != end).all(1)], axis=0,
                           return_counts=True)
  last = np.argsort(times, kind='stable')[-count:]
  return jnp.asarray(grams[last], jnp.int32)
