"""Trees of predicted states that grow where the drafter is sure: EAGLE-2."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.follower import Follower, Following


@struct.dataclass
class Pool:
  """The root, and behind it candidates level by level."""
  tokens: Int[Array, 'B M']
  parents: Int[Array, 'B M']         # -1 of the root
  scores: Float[Array, 'B M']        # sum of log q down to the candidate
  states: Float[Array, 'B M E']      # of the root and of expanded candidates


@struct.dataclass
class EagleTree(Follower):
  """Drafts the `nodes` likeliest continuations among those that it expands.

  On each of `max_depth` levels the `width` candidates of the largest product of
  confidences are expanded to their `width` best tokens; of all candidates the
  best `nodes` are drafted, a parent always before its children. Which they are
  depends on their own q, so children are point masses, never draws. Rules that
  read q get it at every node, for one more pass.

  Attributes:
    features: A `models.features.Featured`; parameters are what it packs.
    max_depth: Levels.
    width: Candidates expanded a level, and children of each.
    nodes: Drafts, at least a path of `max_depth`.

  Reference: Li et al. (2024), EAGLE-2, secs. 4.1 and 4.2,
    https://arxiv.org/abs/2406.16858
  """
  features: Any = struct.field(pytree_node=False)
  max_depth: int = struct.field(pytree_node=False, default=4)
  width: int = struct.field(pytree_node=False, default=4)
  nodes: int = struct.field(pytree_node=False, default=16)

  def __post_init__(self):
    check.gamma(self.max_depth)
    check.interval('width of EagleTree', self.width, 1,
                   self.features.vocab_size, whole=True,
                   hint='It counts tokens.')
    most = self.width + (self.max_depth - 1) * self.width**2
    check.interval('nodes of EagleTree', self.nodes, self.max_depth, most,
                   whole=True, hint='A draft is no deeper than it has nodes; '
                   'width + (max_depth - 1) width^2 are the candidates.')

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.nodes + 1

  @property
  def spare(self) -> int:
    """Slots that a round needs beyond those of its nodes."""
    return self.max_depth * self.width

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree; q at every node if the target may ask for it."""
    del keys
    hidden, cache = self.first(params, state, ctx)
    row, root = jnp.arange(len(hidden))[:, None], ctx.root[:, None]
    best = jnp.zeros_like(root)
    pool = Pool(root, best - 1, best.astype(jnp.float32), hidden[:, None])
    block = best[:, :0]                # expanded candidates of all levels
    for level in range(self.max_depth):
      if level:
        block = jnp.concatenate([block, best], 1)
        states, _ = self._read(params, cache, pool, block)
        pool = pool.replace(
            states=pool.states.at[row, best].set(states[:, -self.width:]))
      pool, best = self._grown(params, pool, best)
    chosen = 1 + jnp.sort(jax.lax.top_k(pool.scores[:, 1:], self.nodes)[1])
    q, passes = None, self.max_depth
    if ctx.leaf_q:
      drafted, cache = self._read(params, cache, pool, chosen)
      every = jnp.concatenate([hidden[:, None], drafted], 1)
      q, passes = ctx.warp(self.reader.head(params, every)), self.max_depth + 1
    draft = types.Draft(self._tree(pool, chosen), q,
                        jnp.full_like(ctx.lengths, passes), 'deterministic',
                        self.max_depth, forks=self.width > 1)
    return draft, self.kept(state, cache)

  def _grown(self, params, pool, chosen):
    """The pool with the children of `chosen`, and the best of them."""
    logits = self.reader.head(params, types.pick(pool.states, chosen))
    logs, tokens = jax.lax.top_k(jax.nn.log_softmax(logits), self.width)
    scores = types.pick(pool.scores, chosen)[..., None] + logs
    tokens, scores = (x.reshape(len(x), -1) for x in (tokens, scores))
    more, count = jnp.repeat(chosen, self.width, 1), pool.tokens.shape[1]
    join = lambda x, y: jnp.concatenate([x, y], 1)
    states = jnp.pad(pool.states, ((0, 0), (0, more.shape[1]), (0, 0)))
    best = jnp.sort(jax.lax.top_k(scores, self.width)[1])
    return Pool(join(pool.tokens, tokens), join(pool.parents, more),
                join(pool.scores, scores), states), count + best

  def _read(self, params, cache, pool, chosen):
    """States of candidates, a parent before its children; none is kept."""
    before = types.pick(pool.states, types.pick(pool.parents, chosen))
    known = cache.replace(static=cache.static.replace(before=before))
    return self.reader.extend(
        params, known, types.tail_of(self._tree(pool, chosen)))

  def _tree(self, pool, chosen):
    """The tree of the root and candidates, a parent before its children."""
    def row(pool, chosen):
      nodes = jnp.append(0, chosen)
      place = jnp.zeros_like(pool.tokens).at[nodes].set(jnp.arange(len(nodes)))
      up = jnp.where(nodes > 0, place[pool.parents[nodes]], -1)
      return pool.tokens[nodes], up

    return types.linked(*jax.vmap(row)(pool, chosen), self.max_depth)
