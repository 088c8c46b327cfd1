"""Autoregressive drafting with a small language model."""
from __future__ import annotations

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.models import prefill


@struct.dataclass
class Below:
  """Stops a draft at a node where max q < threshold (BiLD's fallback)."""
  threshold: float = 0.6

  def __call__(self, probs):
    return probs.max(-1) < self.threshold


@struct.dataclass
class Chain:
  """Draws gamma = `length` tokens from a small model, one after the other.

  Rules that use q need it at the last node too: gamma + 1 steps, the last of
  which also writes the last draft's key/values. Other rules take gamma steps;
  the first call of a round then feeds the last two committed tokens.
  """
  lm: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)
  stop: Any = None

  @property
  def num_nodes(self) -> int:
    return self.length + 1

  def init(self, params, prompt, hidden, capacity):
    del hidden
    return prefill.prefill(self.lm, params, prompt, capacity)[1]

  def propose(self, params, cache, ctx, keys):
    b, gamma, start = len(ctx.lengths), self.length, cache.length
    steps = gamma + ctx.leaf_q

    def visit(i, hidden, tokens, q, last):
      """Records q at node i and draws node i + 1."""
      new = ctx.warp(self.lm.head(params, hidden))
      q = jax.tree.map(lambda all, x: all.at[:, i].set(x), q, new)
      if self.stop is not None:
        last = jnp.where((last == gamma) & self.stop(new.probs), i, last)
      fold = jax.vmap(jax.random.fold_in, (0, None))
      child = jax.vmap(warp_lib.sample)(new.probs, fold(keys, i))
      return tokens.at[:, i + 1].set(child, mode='drop'), q, last

    def body(carry):
      i, cache, tokens, q, last = carry
      node = types.chain(jax.lax.dynamic_slice_in_dim(tokens, i, 1, 1))
      hidden, cache = self.lm.extend(params, cache, node)
      return (i + 1, cache.truncate(cache.length + 1),
              *visit(i, hidden[:, 0], tokens, q, last))

    nothing = jnp.zeros((b, gamma + 1, self.lm.vocab_size))
    tokens = jnp.zeros((b, gamma + 1), jnp.int32).at[:, 0].set(ctx.root)
    carry = (0, cache, tokens, types.Prediction(nothing, nothing),
             jnp.full(b, gamma, jnp.int32))
    if not ctx.leaf_q:
      hidden, cache = prefill.reread(self.lm, params, cache, ctx.tokens)
      carry = (1, cache, *visit(0, hidden, *carry[2:]))
    _, cache, tokens, q, last = jax.lax.while_loop(
        lambda c: (c[0] < steps) & jnp.any(c[0] <= c[-1]), body, carry)
    draft = types.Draft(types.chain(tokens, last), q, jnp.minimum(last + 1, steps),
                        max_depth=gamma, full=self.stop is None)
    return draft, cache.truncate(start)

  def observe(self, params, cache, feedback):
    del params
    return cache.accept(feedback.draft, feedback.verdict, feedback.live)
