"""Drafts whose later positions come from a cheaper drafter."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import parts
from spec_cascades.drafters.cached import of_caches


@struct.dataclass
class Parts:
  """The state of each drafter, and where its part of the last draft was."""
  first: Any
  second: Any
  lengths: Int[Array, 'B']     # tokens that were committed
  own: Int[Array, 'B']         # drafts of the first one


@struct.dataclass
class Horizontal:
  """A chain of one drafter, and behind it a chain of another one.

  What is late in a draft is seldom accepted, so that it should cost little: a
  small model for the first positions, prompt lookup or n-gram counts for the
  rest. The second reads what the first has drafted; the first does not read
  what the second has, until it is accepted: its next call is on so many more
  tokens. Each token has the law of the drafter that drew it, a point mass
  where that is deterministic; with such a drafter there is no q for rules that
  read it.

  Either may be any drafter of chains with caches of its own or none, such as a
  `Vertical` or another `Horizontal`; the first may use the verifier's cache.
  Parameters are a pair, those of each.

  Reference: Chen et al. (2023), Cascade Speculative Drafting, Alg. 1 (the
    horizontal cascade), https://arxiv.org/abs/2312.11462
  """
  first: Any
  second: Any

  @property
  def num_nodes(self) -> int:
    """The root and the drafts of both."""
    return self.first.num_nodes + self.second.num_nodes - 1

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for what one of them can't use; host only."""
    self.first.validate(batch)
    self.second.validate(batch)

  def lagging(self, tokens: int) -> Horizontal:
    """The same for caches that may lack the last committed tokens."""
    return Horizontal(check.lagging(self, self.first, tokens),
                      check.lagging(self, self.second, tokens))

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Parts:
    """Both read the prompt.

    Raises:
      ValueError: There are no parameters, or a drafter would need more than a
        prompt and tokens to go on behind another one.
    """
    check.params_of(self, params, 2)
    self.lagging(0)                    # can they, and those that they hold?
    zero = jnp.zeros_like(prompt.prefix_lengths)
    return Parts(self.first.init(params[0], prompt, hidden, capacity),
                 self.second.init(params[1], prompt, hidden, capacity), zero,
                 zero)

  def propose(self, params: Any, state: Parts, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Parts]:
    """A chain; without q where both are deterministic."""
    n, m = self.first.num_nodes, self.second.num_nodes
    keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    tokens = jnp.pad(ctx.tokens, ((0, 0), (0, n + m)))
    one, first = self.first.lagging(m - 1).propose(
        params[0], state.first, ctx.replace(tokens=tokens, leaf_q=False,
                                            ends=()), keys[0])
    parts.check(one, ctx)
    own = one.tree.num_drafts
    behind = ctx.replace(
        tokens=parts.put(tokens, one.tree.tokens, ctx.lengths - 1),
        lengths=ctx.lengths + own, target_cache=None)
    ahead = of_caches(lambda cache: cache.truncate(behind.lengths - 1),
                      state.second)
    two, second = self.second.lagging(n - 1).propose(
        params[1], ahead, behind, keys[1])
    parts.check(two, ctx)
    return parts.joined(one, two), Parts(first, second, ctx.lengths, own)

  def observe(self, params: Any, state: Parts,
              feedback: types.Feedback) -> Parts:
    """Each learns what became of its part; caches are as long as the text."""
    own, count = state.own, feedback.verdict.count
    first = self.first.observe(params[0], state.first, parts.part(
        feedback, jnp.zeros_like(own), own, self.first.num_nodes))
    second = self.second.observe(params[1], state.second, parts.part(
        feedback, own, feedback.draft.tree.num_drafts - own,
        self.second.num_nodes))
    length = state.lengths + jnp.where(feedback.live, count, -1)
    fit = lambda cache: cache.truncate(length)
    return Parts(*of_caches(fit, (first, second)), state.lengths, own)
