"""The next token as an intermediate layer of the verifier ranks it."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.early_exit import layers_of
from spec_cascades.drafters.stateless import Reading


@struct.dataclass
class Pipelined(Reading):
  """The k best tokens of the verifier's first layers, side by side.

  Predictive Pipelined Decoding starts the next token from each of them while
  the layers above still compute the one at hand, and goes on with the one that
  was right. On one device the k starts and the layers above are one call on a
  tree: a call yields two tokens where one of the k is right, and no draft is
  longer. What pipelining itself would take is `theory.pipelined`, at the rate
  that this drafter's acceptance measures.

  Attributes:
    lm: The first layers and the head, see `models.skip.shallow`.
    layers: How many of the verifier's cache they use.
    choices: k.

  Reference: Yang et al. (2023), https://arxiv.org/abs/2307.05908
  """
  lm: Any = struct.field(pytree_node=False)
  layers: int = struct.field(pytree_node=False)
  choices: int = struct.field(pytree_node=False, default=3)

  def __post_init__(self):
    check.interval('layers of Pipelined', self.layers, 1, 2**31, whole=True)
    check.interval('choices of Pipelined', self.choices, 1, self.lm.vocab_size,
                   whole=True, hint='They are tokens.')

  @property
  def num_nodes(self) -> int:
    """The root and its k children."""
    return 1 + self.choices

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """k deterministic drafts; q at them, too, for rules that read it."""
    del keys
    cache, root = layers_of(self, ctx, self.layers), ctx.root[:, None]
    logits = self._read(params, cache, types.chain(root))
    _, best = jax.lax.top_k(logits[:, 0], self.choices)
    nodes = types.tree(jnp.concatenate([root, best], 1),
                       (-1, *(0,) * self.choices))
    q = ctx.warp(self._read(params, cache, nodes)) if ctx.leaf_q else None
    calls = jnp.full_like(ctx.lengths, 1 + ctx.leaf_q)
    return types.Draft(nodes, q, calls, 'deterministic', 1), state

  def _read(self, params, cache, nodes):
    return self.lm.head(params, self.lm.extend(params, cache, nodes)[0])
