"""For drafters of gamma = `length` tokens, one after the other."""
from __future__ import annotations

from typing import Any

from spec_cascades import check


class Line:
  """Checks `length`, a static field, and counts the nodes."""
  length: int

  def __post_init__(self):
    check.gamma(self.length)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.length + 1


class Around:
  """For drafters whose `chain`, a field, drafts for them: as long, as late."""
  chain: Any

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.chain.num_nodes

  def lagging(self, tokens: int):
    """The same for a cache that may lack the last committed tokens."""
    return self.replace(chain=self.chain.lagging(tokens))
