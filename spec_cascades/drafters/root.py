"""q beside p at every token, and no drafts."""
from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.cached import Cached


@struct.dataclass
class Root(struct.Fixed, Cached):
  """Proposes nothing, but has q at the root: one step of q a token."""
  lm: Any = struct.field(pytree_node=False)
  num_nodes: ClassVar[int] = 1

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The root and what q says comes after it."""
    del keys
    nodes = types.chain(ctx.root[:, None])
    hidden, state = self.lm.extend(params, state, nodes)
    q = ctx.warp(self.lm.head(params, hidden))
    return types.Draft(nodes, q, jnp.ones_like(ctx.lengths)), state
