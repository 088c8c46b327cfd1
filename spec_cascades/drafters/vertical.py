"""Drafts that are drafted: a small model decodes them speculatively."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import decoded
from spec_cascades.drafters.cached import Keeping
from spec_cascades.drafters.line import Line
from spec_cascades.models import prefill


@struct.dataclass
class Levels:
  """The small model's cache, and the state of what drafts for it."""
  cache: Any
  inner: Any


@struct.dataclass
class Vertical(Line, Keeping):
  """A chain of a small model, which another drafter drafts for the model.

  The model judges the inner drafts as a verifier would, losslessly: the chain
  has the law of q, as if it was drawn token by token, in fewer calls. Goes on
  until q is known behind the last token.

  Attributes:
    lm: The small model.
    drafter: Drafts for it, a `Tree` or `Horizontal`, say, but none that follows
      its verifier's states. Parameters are a pair: the model's, and this one's.
    length: Tokens of a draft, gamma.
    late: Committed tokens that the caches may lack; see `lagging`.

  Reference: Chen et al. (2023), Cascade Speculative Drafting, Alg. 1 (the
    vertical cascade), https://arxiv.org/abs/2312.11462
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
                        drafter=check.lagging(self, self.drafter, tokens))

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Levels:
    """Both levels read the prompt."""
    del hidden
    check.params_of(self, params, 2)
    self.lagging(0)                    # has the inner one more than tokens?
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
    draft, cache, inner = decoded.decoded(
        self.lm, params, self.drafter, self.length, cache, state.inner, ctx,
        keys)
    return draft.replace(calls=draft.calls + int(self.late > 0)), Levels(
        cache, inner)
