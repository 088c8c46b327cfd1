"""Hydra's trees from states that one more layer makes of the text: Hydra++."""
from __future__ import annotations

from typing import Any

from jaxtyping import Array, Key

from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import medusa
from spec_cascades.drafters.follower import Follower, Following


@struct.dataclass
class HydraPlus(Follower):
  """Drafts as `medusa.Medusa` does, from the layer's state before the root.

  The layer has a cache of its own, of the verifier's states: once a round it
  reads those of the tokens that were accepted.

  Attributes:
    heads: A `models.heads.Headed` with a prefix layer.
    paths: See `medusa.Medusa`.

  Reference: Ankner et al. (2024), Hydra++, https://arxiv.org/abs/2402.05109
  """
  heads: Any = struct.field(pytree_node=False)
  paths: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)

  def __post_init__(self):
    if self.heads.heads.prefix is None:
      raise ValueError('Got heads without a prefix layer for HydraPlus; '
                       'allowed: those with HeadsConfig.prefix. Take Medusa.')
    _ = self.tree                      # checks the paths

  @property
  def tree(self) -> medusa.Medusa:
    """What drafts, given a state."""
    return medusa.Medusa(self.heads, self.paths)

  @property
  def features(self) -> Any:
    """The model whose layer is read with."""
    return self.heads

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.tree.num_nodes

  @property
  def has_q(self) -> bool:
    """Whether a head is left for q at the deepest drafts."""
    return self.tree.has_q

  @property
  def max_depth(self) -> int:
    """Of a draft."""
    return len(self.paths[-1])

  def propose(self, params: Any, state: Following, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree, level by level; q if it is asked for and there is a head."""
    hidden, cache = self.first(params, state, ctx)
    draft, _ = self.tree.propose(params, hidden, ctx, keys)
    return draft.replace(calls=draft.calls + 1), self.kept(state, cache)
