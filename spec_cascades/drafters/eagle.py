"""Autoregression on the verifier's states: a chain that carries an exact q."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import growing
from spec_cascades.drafters.line import Line
from spec_cascades.models import layered


@struct.dataclass
class Following:
  """What lives from round to round."""
  cache: Any                       # of tokens read with the verifier's states
  before: Float[Array, 'B D E']    # what is made of those before those to read
  count: Int[Array, 'B']           # how many there are to read


class Follower:
  """Reads what was accepted with the verifier's own states; drafts nothing.

  A round begins with a block of the tokens accepted in the last one, up to the
  root, each with the true state before it: what was predicted is forgotten. A
  kind has `features`, a `models.layered.Layered` model.
  """

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

  def validate(self, batch: int | None = None) -> None:
    """Accepts; there are no numbers."""
    del batch

  @property
  def reader(self) -> layered.Reader:
    """The layer as a language model."""
    return layered.Reader(self.features)


@struct.dataclass
class Eagle(Line, Follower):
  """Draws gamma = `length` tokens, one after the other, from predicted states.

  q is the verifier's head on a predicted state, so that every rule works, and
  is exact for the q of the round. That depends on where the round began: states
  before the root are the verifier's, later ones are predicted. For EAGLE-3, who
  decodes is `features.verifier`, which hands out the layers that are read.

  Attributes:
    features: A `models.features.Featured`; parameters are what it packs.
    length: Tokens of a draft.

  References: Li et al. (2024), sec. 4, https://arxiv.org/abs/2401.15077;
    Li et al. (2025), EAGLE-3, sec. 3, https://arxiv.org/abs/2503.01840
  """
  features: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)

  @property
  def max_depth(self) -> int:
    """Of a draft."""
    return self.length

  @property
  def spare(self) -> int:
    """Slots that a round needs beyond those of its nodes."""
    return 0

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q at every node that was visited."""
    hidden, cache = self.first(params, state, ctx)
    draft, cache = growing.grown(self.reader, params, cache, ctx, keys,
                                 self.length, first=hidden)
    return draft, self.kept(state, cache)
