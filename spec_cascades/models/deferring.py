"""Two models as one: q's predictions, and p's where q is unsure."""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from spec_cascades import cache as cache_lib
from spec_cascades import check
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades import types
from spec_cascades.models import prefill


@struct.dataclass
class Halves:
  """q's cache, p's as far as p has read, and what p is to read."""
  small: Any
  large: Any
  ready: Bool[Array, '']      # whether p has read the prompts
  prompt: types.Prompt
  tokens: Int[Array, 'B S']
  live: Bool[Array, 'B']      # rows in which p may be asked; set by the caller
  passes: Int[Array, 'B']     # of p, for the token at hand
  calls: Int[Array, 'B']      # of p, for all tokens accepted so far
  deferred: Int[Array, 'B']   # accepted tokens for which p was asked

  @property
  def length(self) -> Int[Array, 'B']:
    """Tokens that q has read."""
    return self.small.length

  def truncate(self, length: Int[Array, 'B']) -> Halves:
    """Forgets what q read from `length` on; p has not read so far."""
    return self.replace(small=self.small.truncate(length))

  def accept(self, draft: types.Draft, verdict: types.Verdict,
             live: Bool[Array, 'B']) -> Halves:
    """Keeps the root, and counts what it took."""
    passes = jnp.where(live, self.passes, 0)
    return self.replace(
        small=self.small.accept(draft, verdict, live),
        calls=self.calls + passes,
        deferred=self.deferred + jnp.minimum(passes, 1))


@dataclasses.dataclass(frozen=True)
class Deferring:
  """q's logits where max q >= 1 - alpha, else p's; one token at a time.

  Parameters are (those of p, those of q, alpha). p is asked in rows that are
  `live` in the cache. It reads the prompts when it is first asked, and what
  was written since its last pass, `block` tokens at most a pass, each time.
  """
  lm: Any
  small: Any
  block: int

  @property
  def vocab_size(self) -> int:
    return self.small.vocab_size

  def init(self, params: Any, prompt: types.Prompt, capacity: int) -> Halves:
    """q reads `prompt.inputs`; of p there is room only."""
    large, small, _ = params
    zero = jnp.zeros(len(prompt.prefix), jnp.int32)
    tokens = jnp.zeros((len(zero), capacity + self.block), jnp.int32)
    shapes = jax.eval_shape(self._start, large, prompt, tokens)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return Halves(self.small.init(small, prompt, capacity), empty,
                  jnp.bool_(False), prompt, tokens, zero > 0, zero, zero, zero)

  def extend(self, params: Any, cache: Halves, tree: types.TokenTree):
    """Logits [B, N, V]; of q wherever a block is part of a prompt."""
    large, small, alpha = params
    hidden, grown = self.small.extend(small, cache.small, tree)
    logits = self.small.head(small, hidden)
    check.head(self.small, logits)
    tokens = cache_lib.write(cache.tokens, tree.tokens, cache.length)
    cache = cache.replace(small=grown, tokens=tokens)
    if tree.tokens.shape[1] > 1:
      return logits, cache
    q = types.Prediction(logits, logits)     # deferral reads no `probs`
    chow = targets.Chow(alpha)
    unsure = chow.defers(q, None, types.rows(alpha, logits[..., 0]))
    unsure &= ~jnp.isnan(q.confidence)       # so that the fault is seen
    return self._ask(large, cache, cache.live & unsure[:, 0], logits)

  def head(self, params: Any, hidden: Array) -> Array:
    """What `extend` returned: logits already."""
    del params
    return hidden

  def _ask(self, params, cache, asks, logits):
    """p's logits after the root in the rows that ask, the given ones else."""
    end = cache.length + 1
    left = lambda large: jnp.where(asks, end - large.length, 0)

    def read(width, carry):
      large, logits, passes = carry
      count = jnp.minimum(left(large), width)
      last, large = self._read(params, cache.tokens, count, width, large)
      arrived = (count > 0) & (left(large) == 0)
      new = self.lm.head(params, last)[:, None]
      return (large, jnp.where(types.rows(arrived, new), new, logits),
              passes + jnp.minimum(count, 1))

    large = jax.lax.cond(
        asks.any() & ~cache.ready,
        lambda _: self._start(params, cache.prompt, cache.tokens),
        lambda large: large, cache.large)
    carry = large, logits, jnp.zeros_like(end)
    # Two loops: a `cond` on the width would copy p's cache.
    for width, enough in ((self.block, 1), (1, 0)):
      carry = jax.lax.while_loop(
          lambda c, enough=enough: jnp.any(left(c[0]) > enough),
          functools.partial(read, width), carry)
    large, logits, passes = carry
    return logits, cache.replace(
        large=large, ready=cache.ready | asks.any(), passes=passes)

  def _start(self, params, prompt, tokens):
    """p's cache of the prompts, with a slot for each of `tokens`."""
    return prefill.prefill(self.lm, params, prompt, tokens.shape[1])[1]

  def _read(self, params, tokens, count, width, large):
    """Feeds `width` tokens and keeps `count`; the last one's state [B, E].

    In:  tokens a b c d, large.length 1, count 2, width 3
    Out: slots a b c d, large.length 3, hidden state at c
    """
    take = lambda row, i: jax.lax.dynamic_slice_in_dim(row, i, width)
    nodes = types.chain(jax.vmap(take)(tokens, large.length))
    hidden, grown = self.lm.extend(params, large, nodes)
    return (types.pick(hidden, jnp.maximum(count - 1, 0)),
            grown.truncate(large.length + count))
