"""SpecTr: several i.i.d. chains of one small model."""
from __future__ import annotations

from typing import Any

from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import tree
from spec_cascades.drafters.cached import Cached, Late


@struct.dataclass
class SpecTr(struct.Fixed, Late, Cached):
  """Draws k = `chains` i.i.d. chains of gamma = `length` tokens from the root.

  Chains that begin alike are one path, and what they draw next are the i.i.d.
  children of its end: a verifier that accepts the beginning chooses among all
  of them. `verify.KSeq` is the paper's, and `verify.Rejection` goes as well. At
  temperature 0 all chains are equal: take a tree of law 'distinct' there.

  A round scores 1 + k gamma nodes, and reads the levels so far again for each
  level, as `Tree` does.

  Attributes:
    lm: The small model, which scores a block under a tree mask.
    chains: k.
    length: gamma.
    late: Committed tokens that the cache may lack; see `lagging`.

  Reference: Sun et al. (2023), SpecTr, whose Alg. 3 is k-SEQ,
    https://arxiv.org/abs/2310.15141
  """
  lm: Any = struct.field(pytree_node=False)
  chains: int = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)
  late: int = struct.field(pytree_node=False, default=0)

  def __post_init__(self):
    check.gamma(self.length)
    check.interval('chains of SpecTr', self.chains, 1, 2**31, whole=True,
                   hint='It is a count.')

  @property
  def parents(self) -> tuple[int, ...]:
    """Nodes by level: two chains of two are (-1, 0, 0, 1, 2)."""
    drafts = self.chains * self.length
    return (-1, *(max(node - self.chains, 0) for node in range(1, drafts + 1)))

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return 1 + self.chains * self.length

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The chains, and q at every node that a target may ask for."""
    apart = tree.Tree(self.lm, self.parents, 'sampled', self.late)
    draft, state = apart.propose(params, state, ctx, keys)
    return draft.replace(tree=types.merged(draft.tree)), state
