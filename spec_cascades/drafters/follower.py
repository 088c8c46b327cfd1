"""For drafters that follow the verifier's own states."""
from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.models import layered


@struct.dataclass
class Following:
  """What lives from round to round."""
  cache: Any                       # of tokens read with the verifier's states
  before: Float[Array, 'B D E']    # what is made of those before those to read
  count: Int[Array, 'B']           # how many there are to read


class Follower(struct.Fixed):
  """Reads what was accepted with the verifier's own states; drafts nothing.

  A round begins with a block of the tokens accepted in the last one, up to the
  root, each with the true state before it: what was predicted is forgotten. A
  kind has `features`, a `models.layered.Layered` model, and `max_depth`, the
  longest draft; `spare` are the slots that a round needs beyond its nodes'.
  """
  spare: ClassVar[int] = 0

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Following:
    """The prompt but its last token, which is the root."""
    check.own_params(self, params)
    model, (b, p) = self.features, prompt.prefix.shape
    state, last = model.state(params), prompt.prefix_lengths - 1
    before = jnp.zeros((b, p, *state.shape), state.dtype)
    cache = model.cache(params, b, capacity + self.spare)
    if p > 1:
      before = before.at[:, 1:].set(model.given(params, hidden))
      encoded = None
      if model.crosses:
        encoded = model.encoded(model.init(params, prompt, 1))
      _, cache = self.reader.extend(
          params, cache.replace(static=layered.Reading(
              before[:, :-1], encoded)), types.chain(prompt.prefix[:, :-1]))
    root = types.pick(before, jnp.maximum(last, 0))[:, None]
    root = jnp.pad(root, ((0, 0), (0, self.max_depth), (0, 0)))
    return Following(cache.replace(length=jnp.maximum(last, 0), static=None),
                     root, jnp.ones(b, jnp.int32))

  def first(self, params: Any, state: Following, ctx: types.Context
            ) -> tuple[Float[Array, 'B E'], Any]:
    """Reads up to the root: the state predicted there, and the cache."""
    width = ctx.tokens.shape[1]
    at = (ctx.lengths - state.count)[:, None] + jnp.arange(
        state.before.shape[1])[None]
    tokens = jnp.take_along_axis(ctx.tokens, jnp.clip(at, 0, width - 1), 1)
    known = layered.Reading(
        state.before, self.features.encoded(ctx.target_cache))
    hidden, cache = self.reader.extend(
        params, state.cache.replace(static=known), types.chain(tokens))
    hidden = types.pick(hidden, state.count - 1)
    return hidden, cache.replace(
        length=cache.length + state.count,
        static=layered.Reading(hidden[:, None], known.encoded))

  def kept(self, state: Following, cache: Any) -> Following:
    """The state with what a cache has read; drafts in it count for nothing."""
    return state.replace(cache=cache.replace(
        length=state.cache.length, static=None))

  def observe(self, params: Any, state: Following,
              feedback: types.Feedback) -> Following:
    """The verifier's states at the root and at what was accepted."""
    live, verdict = feedback.live, feedback.verdict
    found = self.features.given(params, jnp.take_along_axis(
        feedback.hidden, verdict.path[..., None], 1))
    cache = state.cache
    return Following(
        cache.truncate(cache.length + jnp.where(live, state.count, 0)),
        jnp.where(live[:, None, None], found, state.before),
        jnp.where(live, verdict.count + 1, state.count))

  @property
  def reader(self) -> layered.Reader:
    """The layer as a language model."""
    return layered.Reader(self.features)
