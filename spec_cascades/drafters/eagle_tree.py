"""Trees of predicted states that grow where the drafter is sure: EAGLE-2."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.eagle import Follower, Following


@struct.dataclass
class Pool:
  """Candidates, level by level, and the nodes that were expanded."""
  tokens: Int[Array, 'B M']
  scores: Float[Array, 'B M']        # sum of log q down to the candidate
  parents: Int[Array, 'B M']         # a candidate; -1: the root
  above: Int[Array, 'B M']           # of `states`, the one it was drawn from
  states: Float[Array, 'B S E']      # of the root and of expanded candidates


@struct.dataclass
class EagleTree(Follower):
  """Drafts the `nodes` likeliest continuations among those that it expands.

  On each of `depth` levels the `width` candidates of the largest product of
  confidences are expanded to their `width` best tokens; of all candidates the
  best `nodes` are drafted, a parent always before its children. Which they are
  depends on their own q, so children are point masses, never draws. Rules that
  read q get it at every node, for one more pass.

  Attributes:
    features: A `models.features.Featured`; parameters are what it packs.
    depth: Levels.
    width: Candidates expanded a level, and children of each.
    nodes: Drafts.

  Reference: Li et al. (2024), EAGLE-2, sec. 4, https://arxiv.org/abs/2406.16858
  """
  features: Any = struct.field(pytree_node=False)
  depth: int = struct.field(pytree_node=False, default=4)
  width: int = struct.field(pytree_node=False, default=4)
  nodes: int = struct.field(pytree_node=False, default=16)

  def __post_init__(self):
    check.gamma(self.depth)
    check.interval('width of EagleTree', self.width, 1,
                   self.features.vocab_size, whole=True,
                   hint='It counts tokens.')
    most = self.width + (self.depth - 1) * self.width**2
    check.interval('nodes of EagleTree', self.nodes, 1, most, whole=True,
                   hint='width + (depth - 1) width^2 are the candidates.')

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.nodes + 1

  @property
  def max_depth(self) -> int:
    """Of a draft."""
    return self.depth

  @property
  def spare(self) -> int:
    """Slots that a round needs beyond those of its nodes."""
    return self.depth * self.width

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree; q at every node if the target may ask for it."""
    del keys
    hidden, cache = self.first(params, state, ctx)
    pool = self._pool(params, cache, hidden)
    _, best = jax.lax.top_k(pool.scores, self.nodes)
    tree, above = jax.vmap(self._tree)(pool, jnp.sort(best), ctx.root)
    q, passes = None, self.depth
    if ctx.leaf_q:
      states = jnp.take_along_axis(pool.states, above[..., None], 1)
      behind = types.TokenTree(
          tree.tokens[:, 1:], tree.parents[:, 1:] - 1, tree.depth[:, 1:] - 1,
          tree.mask[:, 1:, 1:])
      drafted, cache = self._read(params, cache, states, behind)
      every = jnp.concatenate([hidden[:, None], drafted], 1)
      q, passes = ctx.warp(self.reader.head(params, every)), self.depth + 1
    draft = types.Draft(tree, q, jnp.full_like(ctx.lengths, passes),
                        'deterministic', self.depth)
    return draft, self.kept(state, cache)

  def _read(self, params, cache, before, tree):
    """States of a block behind the root; the cache does not keep it."""
    known = cache.static.replace(before=before)
    return self.reader.extend(params, cache.replace(static=known), tree)

  def _pool(self, params, cache, hidden):
    """Expands level by level; those of all levels go in as one block."""
    k, b = self.width, len(hidden)
    pick = lambda x, at: jnp.take_along_axis(x, at, 1)
    tokens, scores = self._children(params, hidden[:, None],
                                    jnp.zeros((b, 1)))
    none = jnp.zeros((b, k), jnp.int32)
    pool = Pool(tokens, scores, none - 1, none, hidden[:, None])
    chosen = jnp.broadcast_to(jnp.arange(k)[None], (b, k))    # to be expanded
    block = chosen[:, :0]                                     # expanded so far
    mask = jnp.zeros((b, 0, 0), bool)
    for level in range(1, self.depth):
      above = pick(pool.above, chosen)
      own = jnp.broadcast_to(jnp.eye(k, dtype=bool)[None], (b, k, k))
      # A node sees what its parent sees: the root's children nothing.
      seen = jnp.zeros((b, k, block.shape[1]), bool)
      if level > 1:
        seen = jnp.take_along_axis(mask, above[..., None] - 1, 1)
      mask = jnp.concatenate([
          jnp.pad(mask, ((0, 0), (0, 0), (0, k))),
          jnp.concatenate([seen, own], 2)], 1)
      block = jnp.concatenate([block, chosen], 1)
      depth = jnp.repeat(jnp.arange(level), k)[None]
      nodes = types.TokenTree(
          pick(pool.tokens, block), jnp.full_like(block, -1),
          jnp.broadcast_to(depth, block.shape), mask)
      before = jnp.take_along_axis(
          pool.states, pick(pool.above, block)[..., None], 1)
      states, cache = self._read(params, cache, before, nodes)
      pool, chosen = self._grown(params, pool, chosen, states[:, -k:])
    return pool

  def _grown(self, params, pool, chosen, states):
    """The pool with the children of `chosen`, and the best of them."""
    k, first = self.width, pool.tokens.shape[1]
    scores = jnp.take_along_axis(pool.scores, chosen, 1)
    tokens, scores = self._children(params, states, scores)
    at = pool.states.shape[1] + jnp.arange(k)
    more = Pool(tokens, scores, jnp.repeat(chosen, k, 1),
                jnp.broadcast_to(jnp.repeat(at, k)[None], tokens.shape), states)
    join = lambda x, y: jnp.concatenate([x, y.astype(x.dtype)], 1)
    _, best = jax.lax.top_k(scores, k)
    return jax.tree.map(join, pool, more), first + jnp.sort(best)

  def _children(self, params, states, scores):
    """Tokens and scores [B, M k] of the k best behind each of M states."""
    logs = jax.nn.log_softmax(self.reader.head(params, states))
    logs, tokens = jax.lax.top_k(logs, self.width)
    flat = lambda x: x.reshape(len(x), -1)
    return flat(tokens), flat(scores[..., None] + logs)

  def _tree(self, pool, chosen, root):
    """The tree of some candidates, ascending, and their `above`; one row."""
    place = jnp.zeros(len(pool.tokens), jnp.int32).at[chosen].set(
        1 + jnp.arange(self.nodes))
    up = pool.parents[chosen]
    parents = jnp.append(-1, jnp.where(up < 0, 0, place[up])).astype(jnp.int32)
    mask, to = jnp.eye(self.num_nodes, dtype=bool), jnp.maximum(parents, 0)
    for _ in range(self.depth):
      mask |= mask[to]
    tokens = jnp.append(root, pool.tokens[chosen]).astype(jnp.int32)
    depth = mask.sum(1, dtype=jnp.int32) - 1
    return types.TokenTree(tokens, parents, depth, mask), pool.above[chosen]
