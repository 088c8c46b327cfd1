"""Drafts that are drafted: a small model decodes them speculatively."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import stats
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades import types
from spec_cascades.drafters.cached import of_caches
from spec_cascades.drafters.line import Line
from spec_cascades.models import prefill


@struct.dataclass
class Levels:
  """The small model's cache, and the state of what drafts for it."""
  cache: Any
  inner: Any


@struct.dataclass
class Vertical(Line):
  """A chain of a small model, which another drafter drafts for the model.

  The model judges the inner drafts as a verifier would, losslessly: the chain
  has the law of q, as if it was drawn token by token, in fewer calls. Goes on
  until q is known behind the last token.

  Attributes:
    lm: The small model.
    drafter: Drafts for it, a `Vertical` or a `Horizontal`, say. Parameters are
      a pair: the model's, and this one's.
    length: Tokens of a draft, gamma.
    late: Committed tokens that the caches may lack; see `lagging`.

  Reference: Chen et al. (2023), Cascade Speculative Drafting, vertical cascade,
    https://arxiv.org/abs/2312.11462
  """
  lm: Any = struct.field(pytree_node=False)
  drafter: Any
  length: int = struct.field(pytree_node=False)
  late: int = struct.field(pytree_node=False, default=0)

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for what the inner drafter can't use; host only."""
    self.drafter.validate(batch)

  def lagging(self, tokens: int) -> Vertical:
    """The same for caches that may lack the last committed tokens.

    The model reads them in one more call a round.
    """
    return self.replace(late=self.late + tokens,
                        drafter=self.drafter.lagging(tokens))

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Levels:
    """Both levels read the prompt."""
    del hidden
    check.own_params(self, params)
    room = capacity + self.length + self.drafter.num_nodes
    hidden, cache = prefill.prefill(self.lm, params[0], prompt, room)
    return Levels(cache, self.drafter.init(params[1], prompt, hidden, room))

  def propose(self, params: Any, state: Levels, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Levels]:
    """A chain, and q at every node."""
    cache = state.cache
    if self.late:
      _, read = prefill.reread(self.lm, params[0], cache, jnp.pad(
          ctx.tokens, ((0, 0), (0, self.late))), self.late + 1)
      cache = read.truncate(cache.length)
    draft, cache, inner = decoded(self.lm, params, self.drafter, self.length,
                                  cache, state.inner, ctx, keys)
    return draft.replace(calls=draft.calls + int(self.late > 0)), Levels(
        cache, inner)

  def observe(self, params: Any, state: Levels,
              feedback: types.Feedback) -> Levels:
    """Both levels keep what was accepted."""
    del params
    return of_caches(lambda cache: cache.accept(
        feedback.draft, feedback.verdict, feedback.live), state)


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
      tokens, ctx.lengths, zero > 0, zero, keys, cache, inner,
      stats.zeros(len(zero), drafter.num_nodes))

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
