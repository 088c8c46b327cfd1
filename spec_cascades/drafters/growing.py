"""Chains of a language model: drawn token by token, or drafted for."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import decode
from spec_cascades import stats
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.cached import of_caches
from spec_cascades.models import reduced


def grown(lm: Any, params: Any, cache: Any, ctx: types.Context,
          keys: Key[Array, 'B'], length: int, *, stop: Any = None,
          most: Any = None, first: Array | None = None
          ) -> tuple[types.Draft, Any]:
  """A chain of `length` draws from a model, and the cache with it.

  Args:
    lm: The model.
    params: Its parameters.
    cache: Of what comes before the root, or of the root, too.
    ctx: What is known.
    keys: Of the rows.
    length: Draws.
    stop: See `chain.Chain`.
    most: Draws of a row, a number or [B]; None: `length`.
    first: The root's hidden state [B, E], if the cache has the root.
  """
  b, steps = len(ctx.lengths), length + ctx.leaf_q
  full = stop is None and most is None
  most = jnp.asarray(length if most is None else most, jnp.int32)
  if not full and ctx.live is not None:    # nobody waits for a row that is done
    most = jnp.where(ctx.live, most, 0)

  def visit(i, hidden, tokens, q, last):
    """Records q at node i and draws node i + 1."""
    new = ctx.warp(reduced.read(lm, params, hidden))
    q = jax.tree.map(lambda all, x: _put(all, x, i), q, new)
    if stop is not None:
      last = jnp.where((i < last) & stop(new), i, last)
    fold = jax.vmap(jax.random.fold_in, (0, None))
    child = jax.vmap(warp_lib.sample)(new.probs, fold(keys, i))
    child = reduced.token_of(lm, params, child)
    return _put(tokens, child, i + 1), q, last

  def body(carry):
    i, cache, tokens, q, last = carry
    node = types.chain(jax.lax.dynamic_slice_in_dim(tokens, i, 1, 1))
    hidden, cache = lm.extend(params, cache, node)
    return (i + 1, cache.truncate(cache.length + 1),
            *visit(i, hidden[:, 0], tokens, q, last))

  nothing = jnp.zeros((b, length + 1, reduced.width(lm)))
  tokens = jnp.zeros((b, length + 2), jnp.int32)  # one for a leaf's own child
  carry = (0, cache, _put(tokens, ctx.root, 0),
           types.Prediction(nothing, nothing), jnp.broadcast_to(most, (b,)))
  if first is not None:
    carry = (1, cache, *visit(0, first, *carry[2:]))
  _, cache, tokens, q, last = jax.lax.while_loop(
      lambda c: (c[0] < steps) & jnp.any(c[0] <= c[-1]), body, carry)
  draft = types.Draft(types.chain(tokens[:, :-1], last),
                      reduced.widen(lm, params, q),
                      jnp.minimum(last + 1, steps), max_depth=length,
                      full=full)
  return draft, cache


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
  begun = decode.State(
      tokens, ctx.lengths, zero > 0, zero, keys, zero + tokens.shape[1], cache,
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


def _put(array, new, i):
  """array[:, i] = new, for a traced i; in place inside a loop."""
  return jax.lax.dynamic_update_slice_in_dim(array, new[:, None], i, 1)
