"""Drafts whose length follows what was accepted before, row by row."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.chain import Chain
from spec_cascades.drafters.line import Around


@struct.dataclass
class Record:
  """A chain's cache, and sums over the rounds so far, older ones less."""
  cache: Any
  accepted: Float[Array, 'B']
  judged: Float[Array, 'B']       # drafts accepted, or the first to be rejected


@struct.dataclass
class Adaptive(Around):
  """A chain of the length g <= gamma that pays most at the row's acceptance.

  The rate is a = accepted / judged, of the row's rounds so far; g maximises
  (1 - a^(g+1)) / (1 - a) / (1 + cost * steps), where steps is g, or g + 1 for
  rules that use q. It depends on earlier rounds only, so the law is exact. One
  token is always drafted, or nothing would be learnt.

  Attributes:
    chain: Drafts at most `chain.length` tokens.
    cost: Of a drafter step, in verifier calls on gamma + 1 tokens.
    rate: Before the first round, where it counts as `weight` tokens.
    weight: Of that guess.
    memory: What a round counts when the next one has ended.

  Reference: Leviathan et al. (2023), theorem 3.8,
    https://arxiv.org/abs/2211.17192
  """
  chain: Chain
  cost: float | Float[Array, '*B']
  rate: float | Float[Array, '*B'] = 0.7
  weight: float | Float[Array, '*B'] = 2.0
  memory: float | Float[Array, '*B'] = 0.9

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for numbers outside their domains; host only."""
    self.chain.validate(batch)
    for name, high, hint in (
        ('cost', 1e6, 'It counts verifier calls.'),
        ('rate', 1, 'It is a share of tokens.'),
        ('weight', 1e6, 'It counts tokens.'),
        ('memory', 1, 'It is a share; 1 forgets nothing.')):
      check.interval(f'{name} of Adaptive', getattr(self, name), 0, high,
                     batch=batch, hint=hint)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Record:
    """The chain's state, and the guess."""
    start = jnp.zeros(len(prompt.prefix))
    return Record(self.chain.init(params, prompt, hidden, capacity),
                  start + self.weight * self.rate, start + self.weight)

  def propose(self, params: Any, state: Record, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Record]:
    """A sampled chain, shorter in rows where more is not worth it."""
    chain = self.chain.replace(most=self._length(state, ctx.leaf_steps))
    draft, cache = chain.propose(params, state.cache, ctx, keys)
    return draft, state.replace(cache=cache)

  def observe(self, params: Any, state: Record,
              feedback: types.Feedback) -> Record:
    """Counts what was accepted."""
    count = feedback.verdict.count
    tried = jnp.minimum(count + 1, feedback.draft.tree.num_drafts)
    live = lambda new, old: jnp.where(feedback.live, new, old)
    return Record(
        self.chain.observe(params, state.cache, feedback),
        live(self.memory * state.accepted + count.astype(jnp.float32),
             state.accepted),
        live(self.memory * state.judged + tried.astype(jnp.float32),
             state.judged))

  def _length(self, state: Record, leaf: int | Array) -> Int[Array, 'B']:
    """The best draft length of every row."""
    rate = state.accepted / jnp.maximum(state.judged, 1e-6)
    counts = jnp.arange(self.num_nodes, dtype=jnp.float32)[None]
    # Of drafts of 1, 2, ... tokens.
    tokens = jnp.cumsum(rate[:, None] ** counts, -1)[:, 1:]
    spent = 1 + types.rows(self.cost, tokens) * (
        counts[:, 1:] + jnp.asarray(leaf, jnp.float32))
    return 1 + jnp.argmax(tokens / spent, -1).astype(jnp.int32)
