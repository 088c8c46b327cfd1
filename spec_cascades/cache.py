"""Per-row key/value caches.

Slots [0, length) hold the committed tokens but the last.
"""
from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from spec_cascades import struct
from spec_cascades.types import Draft, TokenTree, Verdict


@struct.dataclass
class Cache:
  """A block may be scribbled at [length, length + N); rollback does nothing.

  `layers` is a tuple of pytrees of arrays, one array per layer: [B, S],
  [B, S, E] or, keys and values, [B, H, S, D], see `axis`. `static`
  (cross-attention keys/values) is never rolled back.
  """
  layers: tuple[Any, ...]
  length: Int[Array, 'B']
  static: Any = None

  @property
  def capacity(self) -> int:
    """Slots per row."""
    slots = jax.tree.leaves(self.layers)[0]
    return slots.shape[axis(slots)]

  @property
  def lent(self) -> Any:
    """States of an encoder that drafters share; None if none do."""
    return getattr(self.static, 'states', None)

  @property
  def end(self) -> Int[Array, 'B']:
    """The slot of the next token; every token has the slot of its position."""
    return self.length

  def truncate(self, length: Int[Array, 'B']) -> Cache:
    """Forgets slots from `length` on; nothing moves."""
    return self.replace(length=length)

  @jax.named_scope('cache_writes')
  def commit(self, path: Int[Array, 'B D'], count: Int[Array, 'B']) -> Cache:
    """Keeps nodes path[:, :count] of the block, moved together.

    In:  length 2, slots a b | r x y z, path (0, 2, 3), count 3
    Out: length 5, slots a b r y z |
    """
    slots = self.end[:, None] + path
    move = lambda array: write(array, take(array, slots), self.end)
    return self.replace(layers=jax.tree.map(move, self.layers),
                        length=self.length + count)

  def accept(self, draft: Draft, verdict: Verdict,
             live: Bool[Array, 'B']) -> Cache:
    """Keeps what a verdict accepted: truncates a chain, compacts a tree."""
    count = jnp.where(live, verdict.count + 1, 0)
    if draft.is_chain:
      return self.truncate(self.length + count)
    return self.commit(verdict.path, count)

  def write(self, layer: int, block: tuple[Array, ...]) -> tuple[Array, ...]:
    """A layer's arrays with a block of N slots at [end, end + N)."""
    return tuple(write(slots, new, self.end)
                 for slots, new in zip(self.layers[layer], block))

  def view(self, tree: TokenTree) -> tuple[
      Int[Array, 'B N S'], Bool[Array, 'B N S']]:
    """Distance to and visibility of every slot, seen from every node.

    A key's position is its slot if slot < length, else length + depth of the
    node there: siblings share a position, whatever their slots.
    """
    n, start = tree.tokens.shape[1], self.end[:, None, None]
    slot = jnp.arange(self.capacity)[None, None]
    inside = (slot >= start) & (slot < start + n)
    node = jnp.clip(slot - start, 0, n - 1)
    depth = jnp.take_along_axis(tree.depth[:, None], node, 2)
    position = jnp.where(inside, start + depth, slot)
    distance = start + tree.depth[:, :, None] - position
    spread = jnp.broadcast_to(node, distance.shape)
    attends = jnp.take_along_axis(tree.mask, spread, 2)
    return distance, (slot < start) | (inside & attends)


def axis(array: Any) -> int:
  """That of slots: the last but one, or the last of an array [B, S].

  Heads come before slots, since that is the layout in which a TPU writes them:
  in another one it would copy a cache in every round.
  """
  return max(1, array.ndim - 2)


def take(array: Array, slots: Int[Array, 'B N']) -> Array:
  """Some slots of each row, in that order; beyond the end, the last one."""
  along = axis(array) - 1
  return jax.vmap(lambda row, at: jnp.take(row, at, along, mode='clip'))(
      array, slots)


@jax.named_scope('cache_writes')
def write(array: Array, block: Array, start: Int[Array, 'B']) -> Array:
  """An array of S slots with a block of N of them at [start, start + N).

  The caller keeps start + N <= S: an update beyond the end would be moved
  back silently, over committed slots. In a loop the slots are written in place;
  on CPU one row at a time, unrolled, a loop over rows and a one-hot select were
  measured and are no faster from two rows on. One row alone needs no scatter,
  for which a TPU may copy its cache into another layout in every round.
  """
  along = axis(array)
  if block.shape[along] > array.shape[along]:
    raise ValueError(
        f'A block of {block.shape[along]} nodes does not fit a cache of '
        f'{array.shape[along]} slots: raise its capacity.')
  put, block = jax.lax.dynamic_update_slice_in_dim, block.astype(array.dtype)
  if len(array) == 1:
    whole = lambda array, x, i: put(array, x, i, along)
    if block.shape[along] > 1:
      return whole(array, block, start[0])
    return jax.lax.platform_dependent(
        array, block, start[0], cpu=functools.partial(_apart, whole),
        default=whole)
  return jax.vmap(lambda row, x, i: put(row, x, i, along - 1))(
      array, block, start)


def _apart(put, array, block, start):
  """`put`, which XLA can't fuse with what reads the array.

  For one slot its CPU backend would: once for each reader and once for the
  loop, each with a copy of the whole cache.
  """
  return jax.lax.cond(start >= 0, put, lambda array, *_: array,
                      array, block, start)
