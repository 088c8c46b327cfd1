"""Autoregression on the verifier's states: a chain that carries an exact q."""
from __future__ import annotations

from typing import Any

from jaxtyping import Array, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import growing
from spec_cascades.drafters.follower import Follower, Following
from spec_cascades.drafters.line import Line


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

  References: Li et al. (2024), sec. 3.1, https://arxiv.org/abs/2401.15077;
    Li et al. (2025), EAGLE-3, sec. 3.1, https://arxiv.org/abs/2503.01840
  """
  features: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)

  @property
  def max_depth(self) -> int:
    """Of a draft."""
    return self.length

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q at every node that was visited."""
    hidden, cache = self.first(params, state, ctx)
    draft, cache = growing.grown(self.reader, params, cache, ctx, keys,
                                 self.length, first=hidden)
    return draft, self.kept(state, cache)
