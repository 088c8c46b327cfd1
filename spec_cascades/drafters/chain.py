"""Autoregressive drafting with a small language model."""
from __future__ import annotations

from typing import Any

from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import growing
from spec_cascades.drafters.cached import Cached, Late
from spec_cascades.drafters.line import Line
from spec_cascades.drafters.stop import Below  # noqa: F401, a stop for it
from spec_cascades.models import prefill


@struct.dataclass
class Chain(Line, Late, Cached):
  """Draws gamma = `length` tokens from a small model, one after the other.

  Rules that use q need it at the last node too: gamma + 1 steps, the last of
  which also writes the last draft's key/values. Other rules take gamma steps;
  the first call of a round then feeds the last two committed tokens, as it does
  where a traced index chooses among rules of both kinds.

  A `stop` may look at q of a node before a child is drawn, never at the child:
  dropping a child for its own q would bias the law. A row drafts at most `most`
  tokens, a number as traced as a threshold, and none behind one that ends it.
  The cache may lack the last `late` committed tokens, see `lagging`.

  Reference: Leviathan et al. (2023), Alg. 1, https://arxiv.org/abs/2211.17192
  """
  lm: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)
  stop: Any = None
  most: int | Int[Array, '*B'] | None = None
  late: int = struct.field(pytree_node=False, default=0)

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for a bad threshold or `most`; host only."""
    if self.most is not None:
      check.interval('most of Chain', self.most, 0, self.length, batch=batch,
                     whole=True, hint='It counts drafted tokens.')
    if self.stop is not None:
      check.instance(self.stop)
      self.stop.validate(batch)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q at every node that was visited."""
    cache, first = state, None
    written = ctx.leaf_q and ctx.leaf_read is None   # the last draft, always
    if unread := self.late + (not written):
      first, cache = prefill.reread(self.lm, params, state, ctx.tokens,
                                    unread + 1)
    draft, cache = growing.grown(
        self.lm, params, cache, ctx, keys, self.length, stop=self.stop,
        most=self.most, first=first)
    return draft, cache.truncate(state.length)
