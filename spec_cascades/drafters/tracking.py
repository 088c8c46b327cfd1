"""Drafts that stop where q is in doubt, at a threshold that follows a goal."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.chain import Chain
from spec_cascades.drafters.line import Around
from spec_cascades.drafters.stop import Behind


@struct.dataclass
class Tracked:
  """A chain's cache, and by row its threshold and share of accepted drafts."""
  cache: Any
  threshold: Float[Array, 'B']
  rate: Float[Array, 'B']


@struct.dataclass
class Tracking(Around):
  """A chain that stops behind a token of max q under the row's threshold t.

  After a round that accepted a share r of what it drafted, R is
  slow R + (1 - slow) r. The threshold should be t' = t + step if R <= goal,
  t - step if not, and becomes keep t + (1 - keep) t', within [0, 1].

  goal, slow, step and keep are those of the authors' code. That begins with R
  at 0 and t at 0.8 or 0.5, looks at the probability of the drawn token, not at
  max q, and lowers t only behind a draft that was stopped.

  Attributes:
    chain: Drafts at most `chain.length` tokens; its own stop is not used.
    goal: Share of drafts that should be accepted.
    threshold: Of the first round.
    slow: Weight of earlier rounds' share.
    step: How far the threshold should move.
    keep: Weight of the threshold before.

  Reference: Zhang et al. (2023), Alg. 2 and sec. 3.4,
    https://arxiv.org/abs/2309.08168
  """
  chain: Chain
  goal: float | Float[Array, '*B'] = 0.9
  threshold: float | Float[Array, '*B'] = 0.6
  slow: float | Float[Array, '*B'] = 0.5
  step: float | Float[Array, '*B'] = 0.01
  keep: float | Float[Array, '*B'] = 0.9

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for numbers outside [0, 1]; host only."""
    self.chain.validate(batch)
    for name in ('goal', 'threshold', 'slow', 'step', 'keep'):
      check.interval(f'{name} of Tracking', getattr(self, name), 0, 1,
                     batch=batch, hint='It is a share.')

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Tracked:
    """The chain's state; it begins at its threshold, and at its goal."""
    start = jnp.zeros(len(prompt.prefix))
    return Tracked(self.chain.init(params, prompt, hidden, capacity),
                   start + self.threshold, start + self.goal)

  def propose(self, params: Any, state: Tracked, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Tracked]:
    """A sampled chain of one token or more."""
    chain = self.chain.replace(stop=Behind(state.threshold))
    draft, cache = chain.propose(params, state.cache, ctx, keys)
    return draft, state.replace(cache=cache)

  def observe(self, params: Any, state: Tracked,
              feedback: types.Feedback) -> Tracked:
    """Moves the thresholds of the rows that are live."""
    drafted = feedback.draft.tree.num_drafts
    some, share = drafted > 0, feedback.verdict.count / jnp.maximum(drafted, 1)
    rate = jnp.where(
        some, self.slow * state.rate + (1 - self.slow) * share, state.rate)
    more = jnp.where(some & (rate <= self.goal), self.step, -self.step)
    threshold = jnp.clip(state.threshold + (1 - self.keep) * more, 0, 1)
    live = lambda new, old: jnp.where(feedback.live, new, old)
    return Tracked(self.chain.observe(params, state.cache, feedback),
                   live(threshold, state.threshold), live(rate, state.rate))
