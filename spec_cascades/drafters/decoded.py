"""Chains that a language model decodes speculatively, another drafting for it.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import decode
from spec_cascades import stats
from spec_cascades import targets
from spec_cascades import types
from spec_cascades.drafters.cached import of_caches


def decoded(lm: Any, params: Any, drafter: Any, length: int, cache: Any,
            inner: Any, ctx: types.Context, keys: Key[Array, 'B']
            ) -> tuple[types.Draft, Any, Any]:
  """A chain that a model decodes speculatively, and what was read for it.

  Args:
    lm: The model.
    params: Its parameters, and those of what drafts for it.
    drafter: Drafts for it.
    length: Tokens.
    cache: Of the model, up to the root.
    inner: The drafter's state.
    ctx: What is known.
    keys: Of the rows.

  Returns:
    The chain with q at every node; the cache and the state, both as long as
    they were, with the chain behind their end.
  """
  goal, more, start = length + 1, length + 1 + drafter.num_nodes, cache.length
  tokens = jnp.pad(ctx.tokens, ((0, 0), (0, more)))
  spec = decode.GenSpecSample(lm, drafter, tokens.shape[1], eos=-1)
  zero = jnp.zeros_like(ctx.lengths)
  idle = zero > 0 if ctx.live is None else ~ctx.live   # nobody waits for them
  begun = decode.State(
      tokens, ctx.lengths, idle, zero, keys, zero + tokens.shape[1], cache,
      inner, stats.zeros(len(zero), drafter.num_nodes))

  def body(carry):
    old, logits = carry
    new, seen = spec.step(*params, targets.Lossless(), ctx.warp, old)
    at = jnp.arange(seen.verdict.path.shape[1])[None]
    kept = at < (new.lengths - old.lengths)[:, None]
    at = jnp.where(kept, at + (old.lengths - ctx.lengths)[:, None], goal)
    put = lambda all, i, some, path: all.at[i].set(some[path], mode='drop')
    logits = jax.vmap(put)(logits, at, seen.logits, seen.verdict.path)
    far = new.lengths >= ctx.lengths + goal
    return new.replace(done=new.done | far), logits

  logits = jnp.zeros((len(zero), goal, lm.vocab_size))
  end, logits = jax.lax.while_loop(
      lambda carry: ~carry[0].done.all(), body, (begun, logits))
  # What is not finite must be seen outside, too.
  logits = jnp.where(end.fault[:, None, None] > 0, jnp.nan, logits)
  cut = lambda row, i: jax.lax.dynamic_slice(row, (i - 1,), (goal,))
  nodes = types.chain(jax.vmap(cut)(end.tokens, ctx.lengths))
  draft = types.Draft(nodes, ctx.warp(logits), end.stats.verifier_calls,
                      max_depth=length)
  forget = lambda cache: cache.truncate(start)
  return draft, *of_caches(forget, (end.cache, end.drafter))
