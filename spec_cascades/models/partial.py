"""Part of a cache: chunks of the context, and the tokens before the root.

References: Sun et al. (2024), TriForce, https://arxiv.org/abs/2404.11912;
  Xiao et al. (2023), StreamingLLM, https://arxiv.org/abs/2309.17453
"""
from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spec_cascades import cache as cache_lib
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.models import reduced

FAR = 2**29                     # the distance of what was gathered


@struct.dataclass
class Partial(cache_lib.Cache):
  """F gathered slots, then those of positions from `start` on.

  `length` is still the number of tokens, so that positions are what they are
  in the whole cache; layers may have gathered different ones. Gathered slots
  are as good as infinitely far away: a layer with a window does not see them.
  """
  start: Int[Array, 'B'] = None
  kept: Bool[Array, 'B F'] = None      # the gathered slots that hold a token
  sinks: int = struct.field(pytree_node=False, default=0)
  window: int = struct.field(pytree_node=False, default=FAR)

  @property
  def end(self) -> Int[Array, 'B']:
    """The slot of the next token."""
    return self.kept.shape[1] + self.length - self.start

  def view(self, tree: types.TokenTree) -> tuple[
      Int[Array, 'B N S'], Bool[Array, 'B N S']]:
    """As that of a whole cache; of the rest, `sinks` and the last `window`."""
    distance, visible = super().view(tree)
    size = self.kept.shape[1]
    gathered = (jnp.arange(self.capacity) < size)[None, None]
    kept = jnp.pad(self.kept, ((0, 0), (0, self.capacity - size)))[:, None]
    at = (self.length[:, None] + tree.depth)[:, :, None]
    near = (distance < self.window) | (at - distance < self.sinks)
    return (jnp.where(gathered, FAR, distance),
            visible & jnp.where(gathered, kept, near))


def gathered(cache: cache_lib.Cache, chunks: Int[Array, 'B K C'], size: int,
             recent: int, room: int, **limits: int) -> Partial:
  """A copy of part of a cache.

  Args:
    cache: The whole one.
    chunks: Of each of K layers, the numbers of C chunks of `size` tokens; only
      the first ones count where fewer are complete before the recent tokens.
    size: Tokens of a chunk.
    recent: Tokens before the root, or up to `size` - 1 more: from the end of a
      chunk on.
    room: Slots to write to.
    **limits: `sinks` and `window`, see `Partial`.
  """
  width = min(recent + size - 1, cache.capacity)
  start = jnp.maximum(cache.length - recent, 0) // size * size
  number = chunks.shape[-1] * size
  taken = jnp.arange(number)[None] < start[:, None]
  inside = jnp.arange(size)[None, None, None]
  slots = (chunks[..., None] * size + inside).reshape(*chunks.shape[:2], number)
  last = start[:, None] + jnp.arange(width)[None]

  def part(x, layer):
    some = cache_lib.take(x, jnp.concatenate([slots[:, layer], last], 1))
    wider = [(0, 0)] * x.ndim
    wider[cache_lib.axis(x)] = 0, room
    return jnp.pad(some, wider)

  layers = tuple(jax.tree.map(lambda x, i=i: part(x, i), own)
                 for i, own in enumerate(cache.layers))
  return Partial(layers, cache.length, cache.static, start, taken, **limits)


def chosen(layer: Any, query: Float[Array, 'B H D'], recent: int, size: int,
           count: int, length: Int[Array, 'B']) -> Int[Array, 'B C']:
  """The chunks of a layer that a query looks at most, the best one first.

  Attention to the mean key of each chunk, summed over heads; the first chunk,
  which attention sinks into, is always among them.

  Args:
    layer: Its slots in the whole cache, first the keys [B, K, S, D], or
      [B, S, D] or [B, S] of one head.
    query: Of the last token, scaled.
    recent: Tokens before the root, which are not chunked.
    size: Tokens of a chunk.
    count: C, at most S // size.
    length: Of the cache.
  """
  keys = jax.tree.leaves(layer)[0]
  b, heads, width = query.shape
  keys = keys.reshape(b, -1, keys.shape[cache_lib.axis(keys)], width)
  chunks = keys.shape[2] // size
  keys = keys[:, :, :chunks * size].reshape(b, -1, chunks, size, width)
  means = keys.astype(jnp.float32).mean(3)                    # [B, K, M, D]
  query = query.reshape(b, means.shape[1], -1, width).astype(jnp.float32)
  score = jnp.einsum('bkgd,bkmd->bkgm', query, means).reshape(b, heads, chunks)
  number = jnp.arange(chunks)
  whole = number[None] < (jnp.maximum(length - recent, 0) // size)[:, None]
  share = jax.nn.softmax(jnp.where(whole[:, None], score, -1e9)).sum(1)
  worth = jnp.where(whole, jnp.where(number[None] == 0, jnp.inf, share), -1.)
  return jax.lax.top_k(worth, count)[1]


def looked(lm: Any, params: Any, whole: cache_lib.Cache, part: Partial,
           root: Int[Array, 'B'], recent: int, size: int,
           count: int) -> Int[Array, 'B K C']:
  """`chosen` of all layers, by the root which a model reads on a part.

  Of no use in layers for which `lm.look` has no queries.
  """
  _, _, queries = lm.look(params, part, types.chain(root[:, None]))
  nothing = jnp.zeros((len(root), count), jnp.int32)
  return jnp.stack([
      nothing if query is None or not count else chosen(
          own, query[:, -1], recent, size, count, whole.length)
      for own, query in zip(whole.layers, queries)], 1)


@dataclasses.dataclass(frozen=True)
class Streaming(reduced.Around):
  """A model whose tokens see the first `sinks` tokens and the last `window`.

  It attends to that many slots, however long the text; the slots of the others
  are kept, and not read.
  """
  lm: Any
  sinks: int = 4
  window: int = 256

  @property
  def vocab_size(self) -> int:
    return self.lm.vocab_size

  def pack(self, params: Any) -> Any:
    """As `lm` does."""
    return self.lm.pack(params)

  def narrow(self, params: Any, tokens: Int[Array, 'K']) -> Any:
    """As `lm` does."""
    return self.lm.narrow(params, tokens)

  def init(self, params: Any, prompt: types.Prompt, capacity: int) -> Any:
    """The cache of `lm`."""
    return self.lm.init(params, prompt, capacity)

  def extend(self, params: Any, cache: Any, tree: types.TokenTree):
    """As `lm` does, of fewer slots."""
    n, shape = tree.tokens.shape[1], (len(tree.tokens), len(cache.layers))
    first = jnp.broadcast_to(jnp.arange(self.sinks), (*shape, self.sinks))
    part = gathered(cache, first, 1, self.window, n, sinks=self.sinks,
                    window=self.window)
    hidden, part = self.lm.extend(params, part, tree)
    new = part.end[:, None] + jnp.arange(n)[None]
    layers = jax.tree.map(
        lambda old, x: cache_lib.write(old, cache_lib.take(x, new), cache.end),
        cache.layers, part.layers)
    return hidden, cache.replace(layers=layers)

  def head(self, params: Any, hidden: Any) -> Float[Array, '*axes V']:
    """As `lm` does."""
    return self.lm.head(params, hidden)
