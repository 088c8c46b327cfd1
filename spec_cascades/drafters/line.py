"""For drafters of gamma = `length` tokens, one after the other."""
from __future__ import annotations

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
