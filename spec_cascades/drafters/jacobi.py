"""Jacobi decoding: the verifier's own answers to a block of guesses."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.line import Line
from spec_cascades.drafters.stateless import Stateless


@struct.dataclass
class Jacobi(Line, Stateless):
  """Guesses `length` tokens; the verifier's best ones are the next guesses.

  x_i <- argmax p(. | prefix, x_1 .. x_{i-1}) for all i at once: a fixed-point
  iteration that settles at least one token a round. What has settled is
  accepted; the rest moves up, and its last guess is repeated.

  Attributes:
    length: Guesses a round.

  References: Santilli et al. (2023), https://arxiv.org/abs/2305.10427; as in Fu
    et al. (2024), Alg. 1, https://arxiv.org/abs/2402.02057
  """
  length: int = struct.field(pytree_node=False)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Int[Array, 'B M']:
    """The last token of each prompt, over and over."""
    del params, hidden, capacity
    last = types.pick(prompt.prefix, jnp.maximum(prompt.prefix_lengths - 1, 0))
    return jnp.broadcast_to(last[:, None], (len(last), self.length))

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The guesses, a deterministic chain."""
    del params, keys
    nodes = jnp.concatenate([ctx.root[:, None], state], 1)
    return types.Draft(types.chain(nodes), None, jnp.zeros_like(ctx.lengths),
                       'deterministic', self.length), state

  def observe(self, params: Any, state: Any,
              feedback: types.Feedback) -> Int[Array, 'B M']:
    """What p ranks first behind the guesses that were not accepted."""
    del params
    best = warp_lib.argmax(feedback.logits)
    at = feedback.verdict.count[:, None] + 1 + jnp.arange(self.length)[None]
    new = jnp.take_along_axis(best, jnp.minimum(at, self.length), 1)
    return jnp.where(feedback.live[:, None], new, state)
