"""Static trees of predicted states, drawn level by level: EAGLE's own."""
from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import levels
from spec_cascades.drafters.follower import Follower, Following


@struct.dataclass
class EagleStatic(levels.Static, Follower):
  """Draws a static tree, each node's children from q on its predicted state.

  Children are drawn one after the other without replacement ('distinct'), which
  on a greedy row are the best tokens, or i.i.d. ('sampled'). q is exact for the
  round, as in `eagle.Eagle`, so that every rule works.

  Attributes:
    features: A `models.features.Featured`; parameters are what it packs.
    parents: Nodes by level, as of `tree.Tree`.
    law: 'distinct' or 'sampled'.

  Reference: Li et al. (2024), secs. 3.1 and 3.3 (tree attention, multi-round
    sampling), https://arxiv.org/abs/2401.15077
  """
  features: Any = struct.field(pytree_node=False)
  parents: tuple[int, ...] = struct.field(pytree_node=False)
  law: Literal['distinct', 'sampled'] = struct.field(
      pytree_node=False, default='distinct')

  @property
  def max_depth(self) -> int:
    """Levels below the root."""
    return types.depths(self.parents)[-1]

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree, and q at every node that a target may ask for."""
    hidden, cache = self.first(params, state, ctx)
    blank = jnp.zeros((len(hidden), self.num_nodes), jnp.int32)
    tokens, states, found = blank.at[:, 0].set(ctx.root), hidden[:, None], []
    spans = levels.spans(self.parents)
    for start, stop in spans[:len(spans) - (not ctx.leaf_q)]:
      if start:
        states = self._read(params, cache, tokens, states, stop)
      q = ctx.warp(self.reader.head(params, states[:, start:]))
      found.append(q)
      draw = functools.partial(levels.children, self.parents, self.law, start)
      tokens = jax.vmap(draw)(tokens, q, keys)
    draft = types.Draft(
        types.tree(tokens, self.parents), levels.joined(found, self.num_nodes),
        jnp.full_like(ctx.lengths, len(found)), self.law, len(spans) - 1)
    return draft, self.kept(state, cache)

  def _read(self, params: Any, cache: Any, tokens: Int[Array, 'B N'],
            states: Float[Array, 'B M E'], stop: int) -> Float[Array, 'B S E']:
    """States of the first `stop` nodes, the root's first; none is kept."""
    before = states[:, jnp.array(self.parents[1:stop])]
    known = cache.replace(static=cache.static.replace(before=before))
    block = types.head_of(types.tree(tokens, self.parents), stop)
    drafted, _ = self.reader.extend(params, known, types.tail_of(block))
    return jnp.concatenate([states[:, :1], drafted], 1)
