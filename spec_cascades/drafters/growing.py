"""Chains of a language model, drawn token by token."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.models import reduced


def grown(lm: Any, params: Any, cache: Any, ctx: types.Context,
          keys: Key[Array, 'B'], length: int, *, stop: Any = None,
          most: Any = None, first: Array | None = None
          ) -> tuple[types.Draft, Any]:
  """A chain of `length` draws from a model, and the cache with it.

  Behind a token that ends a row nothing could be kept: there a draft stops, and
  counts as full all the same. A verifier that looks at a full draft's tokens
  without asking whether they are there finds the model's token 0 with
  probability 1, so that its law is what it is behind any draft that goes on.
  A batch takes all steps of a full draft: to ask its rows, groups of a mesh
  would have to wait for each other in every step.

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
  b, leaf = len(ctx.lengths), ctx.leaf_steps
  full = stop is None and most is None
  kept = int(getattr(stop, 'keeps', False))
  most = jnp.asarray(length if most is None else most, jnp.int32)
  most = jnp.broadcast_to(most, (b,))
  if not full and ctx.live is not None:    # nobody waits for a row that is done
    most = jnp.where(ctx.live, most, 0)

  # Of all steps at once, since a step is short.
  draws = warp_lib.draws(ctx.warp, keys, length + 1)

  def visit(i, hidden, tokens, q, last):
    """Records q at node i and draws node i + 1."""
    new, child = ctx.warp.drawn(reduced.read(lm, params, hidden), draws[i])
    q = jax.tree.map(lambda all, x: _put(all, x, i), q, new)
    if stop is not None:
      last = jnp.where((i < last) & stop(new), i + kept, last)
    child = reduced.token_of(lm, params, child)
    last = jnp.where((i < last) & types.among(child, ctx.ends), i + 1, last)
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
           types.Prediction(nothing, nothing), most)
  if first is not None:
    carry = (1, cache, *visit(0, first, *carry[2:]))
  steps = lambda last: (length if full and b > 1 else last) + leaf
  _, cache, tokens, q, last = jax.lax.while_loop(
      lambda c: jnp.any(c[0] < steps(c[-1])), body, carry)
  # Steps of a row: a stop looks at q of its last node, too, unless that is
  # behind what it looked at.
  ended = types.among(types.pick(tokens, last), ctx.ends) & (last > 0)
  calls = jnp.where(ended, last + leaf, jnp.minimum(
      last + (leaf if kept else 1), jnp.maximum(most, 1) + leaf))
  if full:
    over = (jnp.arange(length + 1)[None] >= last[:, None]) & ended[:, None]
    q, tokens = _certain(q, tokens, over, reduced.token_of(lm, params, 0))
  draft = types.Draft(types.chain(tokens[:, :-1], last),
                      reduced.widen(lm, params, q), calls, max_depth=length,
                      full=full)
  return draft, cache


def _certain(q, tokens, over, first):
  """The model's first token, with probability 1, behind nodes [B, N] `over`."""
  sure = jax.nn.one_hot(0, q.probs.shape[-1])
  put = lambda new, old: jnp.where(over[..., None], new, old)
  # A batch has logits there, a row alone none; rules read them.
  return (q.replace(probs=put(sure, q.probs), logits=put(0, q.logits)),
          tokens.at[:, 1:].set(jnp.where(over, first, tokens[:, 1:])))


def _put(array, new, i):
  """array[:, i] = new, for a traced i; in place inside a loop."""
  return jax.lax.dynamic_update_slice_in_dim(array, new[:, None], i, 1)
