"""Static token trees drawn from a small language model."""
from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import levels
from spec_cascades.drafters.cached import Cached, Late
from spec_cascades.models import reduced


@struct.dataclass
class Tree(struct.Fixed, Late, Cached):
  """Draws a static tree from a small model, level by level.

  Children are i.i.d. draws from q at their parent (law 'sampled'), or drawn one
  after the other without replacement ('distinct'); where q is exhausted, as on
  a greedy row, the next best logits follow. On a chain, and at temperature 0,
  prefer 'distinct': equal siblings are wasted.

  Attributes:
    lm: The small model, which scores a block under a tree mask.
    parents: Nodes by level, each with its parent's index: (-1, 0, 0, 1, 1, 2)
      is a root with children 1 and 2, of which 1 has two children and 2 one.
      `evaluation.sequoia` finds those that pay most.
    law: 'sampled' or 'distinct'.
    late: Committed tokens that the cache may lack; see `lagging`.

  Reference: Miao et al. (2023), https://arxiv.org/abs/2305.09781; without
  replacement Chen et al. (2024), https://arxiv.org/abs/2402.12374
  """
  lm: Any = struct.field(pytree_node=False)
  parents: tuple[int, ...] = struct.field(pytree_node=False)
  law: Literal['sampled', 'distinct'] = struct.field(
      pytree_node=False, default='distinct')
  late: int = struct.field(pytree_node=False, default=0)

  def __post_init__(self):
    check.tree(self.parents)
    levels.check_law(self)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return len(self.parents)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree, and q at every node that a target may ask for."""
    cache, depth, n = state, types.depths(self.parents), self.num_nodes
    blank = jnp.zeros((len(ctx.lengths), n), jnp.int32)
    tokens = blank.at[:, 0].set(ctx.root)
    for level in range(depth[-1] + ctx.leaf_q):
      block = types.head_of(types.tree(tokens, self.parents),
                            sum(d <= level for d in depth))
      hidden, cache = levels.read(self.lm, params, cache, ctx, block,
                                  self.late)
      q = ctx.warp(reduced.read(self.lm, params, hidden))
      draw = jax.vmap(self._children, (0, 0, 0, None))
      tokens = draw(tokens, q, keys, params)
    q = reduced.widen(self.lm, params, q)
    pad = lambda x: jnp.pad(x, ((0, 0), (0, n - x.shape[1]), (0, 0)))
    calls = jnp.full_like(ctx.lengths, depth[-1] + ctx.leaf_q)
    return types.Draft(types.tree(tokens, self.parents), jax.tree.map(pad, q),
                       calls, self.law, depth[-1]), cache

  def _children(self, tokens, q, key, params):
    """Draws the children of every node that has a q; one sequence."""
    known = {child: up for child, up in enumerate(self.parents)
             if 0 <= up < len(q.probs)}
    for child, token, _ in levels.drawn(q, key, known, self.law):
      tokens = tokens.at[child].set(reduced.token_of(self.lm, params, token))
    return tokens
