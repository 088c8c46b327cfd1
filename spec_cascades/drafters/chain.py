"""Autoregressive drafting with a small language model."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.cached import Cached
from spec_cascades.drafters.stop import Below  # noqa: F401, a stop for it
from spec_cascades.models import prefill
from spec_cascades.models import reduced


@struct.dataclass
class Chain(Cached):
  """Draws gamma = `length` tokens from a small model, one after the other.

  Rules that use q need it at the last node too: gamma + 1 steps, the last of
  which also writes the last draft's key/values. Other rules take gamma steps;
  the first call of a round then feeds the last two committed tokens.

  A `stop` may look at q of a node before a child is drawn, never at the child:
  dropping a child for its own q would bias the law.

  Reference: Leviathan et al. (2023), https://arxiv.org/abs/2211.17192
  """
  lm: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)
  stop: Any = None

  def __post_init__(self):
    check.gamma(self.length)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.length + 1

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for a bad stopping threshold; host only."""
    if self.stop is not None:
      check.instance(self.stop)
      self.stop.validate(batch)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q at every node that was visited."""
    cache, first = state, None
    if not ctx.leaf_q:
      first, cache = prefill.reread(self.lm, params, state, ctx.tokens)
    draft, cache = grown(self.lm, params, cache, ctx, keys, self.length,
                         stop=self.stop, first=first)
    return draft, cache.truncate(state.length)


def grown(lm: Any, params: Any, cache: Any, ctx: types.Context,
          keys: Key[Array, 'B'], length: int, *, stop: Any = None,
          first: Array | None = None) -> tuple[types.Draft, Any]:
  """A chain of `length` draws from a model, and the cache with it.

  Args:
    lm: The model.
    params: Its parameters.
    cache: Of what comes before the root, or of the root, too.
    ctx: What is known.
    keys: Of the rows.
    length: Draws.
    stop: See `Chain`.
    first: The root's hidden state [B, E], if the cache has the root.
  """
  b, steps = len(ctx.lengths), length + ctx.leaf_q

  def visit(i, hidden, tokens, q, last):
    """Records q at node i and draws node i + 1."""
    new = ctx.warp(reduced.read(lm, params, hidden))
    q = jax.tree.map(lambda all, x: _put(all, x, i), q, new)
    if stop is not None:
      last = jnp.where((last == length) & stop(new), i, last)
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
           types.Prediction(nothing, nothing), jnp.full(b, length, jnp.int32))
  if first is not None:
    carry = (1, cache, *visit(0, first, *carry[2:]))
  _, cache, tokens, q, last = jax.lax.while_loop(
      lambda c: (c[0] < steps) & jnp.any(c[0] <= c[-1]), body, carry)
  draft = types.Draft(types.chain(tokens[:, :-1], last),
                      reduced.widen(lm, params, q),
                      jnp.minimum(last + 1, steps), max_depth=length,
                      full=stop is None)
  return draft, cache


def _put(array, new, i):
  """array[:, i] = new, for a traced i; in place inside a loop."""
  return jax.lax.dynamic_update_slice_in_dim(array, new[:, None], i, 1)
