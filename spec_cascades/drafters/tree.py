"""Static token trees drawn from a small language model."""
from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import levels
from spec_cascades.drafters.cached import Cached, Late
from spec_cascades.models import reduced


@struct.dataclass
class Tree(levels.Static, struct.Fixed, Late, Cached):
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

  References: Miao et al. (2023), https://arxiv.org/abs/2305.09781; without
    replacement Chen et al. (2024), Alg. 2, https://arxiv.org/abs/2402.12374
  """
  lm: Any = struct.field(pytree_node=False)
  parents: tuple[int, ...] = struct.field(pytree_node=False)
  law: Literal['sampled', 'distinct'] = struct.field(
      pytree_node=False, default='distinct')
  late: int = struct.field(pytree_node=False, default=0)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree, and q at every node that a target may ask for."""
    cache, found = state, []
    blank = jnp.zeros((len(ctx.lengths), self.num_nodes), jnp.int32)
    tokens = blank.at[:, 0].set(ctx.root)
    spans = levels.spans(self.parents)
    for start, stop in spans[:len(spans) - (not ctx.leaf_q)]:
      block = types.head_of(types.tree(tokens, self.parents), stop)
      hidden, cache = levels.read(self.lm, params, cache, ctx, block,
                                  self.late)
      q = ctx.warp(reduced.read(self.lm, params, hidden[:, start:]))
      found.append(reduced.widen(self.lm, params, q))
      draw = functools.partial(
          levels.children, self.parents, self.law, start,
          token_of=functools.partial(reduced.token_of, self.lm, params))
      tokens = jax.vmap(draw)(tokens, q, keys)
    q = levels.joined(found, self.num_nodes)
    calls = jnp.full_like(ctx.lengths, len(found))
    return types.Draft(types.tree(tokens, self.parents), q, calls, self.law,
                       len(spans) - 1), cache
