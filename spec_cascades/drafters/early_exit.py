"""The verifier's first layers draft, on the verifier's own cache."""
from __future__ import annotations

from typing import Any

from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.chain import Chain
from spec_cascades.drafters.stateless import Reading


@struct.dataclass
class EarlyExit(Reading):
  """A chain of a model that is the first layers of the verifier and its head.

  Keys and values of those layers are what the verifier has written: there is
  no cache of its own to fill with the prompt, to keep or to roll back. What a
  draft writes is let go, and the verifier reads the draft in all layers. As
  published it would be kept, and verification begin behind those layers.

  Attributes:
    chain: Of the first layers, see `models.skip.shallow`.
    layers: How many of the cache they use.

  Reference: Elhoushi et al. (2024), LayerSkip, sec. 4.3,
    https://arxiv.org/abs/2404.16710
  """
  chain: Chain
  layers: int = struct.field(pytree_node=False)

  def __post_init__(self):
    check.interval('layers of EarlyExit', self.layers, 1, 2**31, whole=True)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.chain.num_nodes

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for what the chain can't use; host only."""
    self.chain.validate(batch)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q at every node that was visited."""
    first = layers_of(self, ctx, self.layers)
    return self.chain.propose(params, first, ctx, keys)[0], state


def layers_of(drafter: Any, ctx: types.Context, count: int) -> Any:
  """The first layers of the verifier's cache, as a shallow model's.

  Raises:
    ValueError: Where the drafter is used, it does not get that cache.
  """
  cache = check.target_cache(drafter, ctx)
  return cache.replace(layers=cache.layers[:count])
