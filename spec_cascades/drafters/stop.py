"""When a drafter stops before its draft is full."""
from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Bool, Float

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types


@struct.dataclass
class Below:
  """Stops a draft where max q, at temperature 1, is under a threshold.

  Reference: the fallback of Kim et al. (2023), https://arxiv.org/abs/2302.07863
  """
  threshold: float | Float[Array, '*B'] = 0.6
  keeps: ClassVar[bool] = False        # the token that is drawn from that q

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for a threshold outside [0, 1]; host only."""
    check.interval('threshold of Below', self.threshold, 0, 1, batch=batch,
                   hint='It is a probability; 0 never stops.')

  def __call__(self, q: types.Prediction) -> Bool[Array, 'B']:
    """Whether to draft nothing after this node."""
    return q.confidence < self.threshold


@struct.dataclass
class Behind(Below):
  """Stops behind the token that was drawn in doubt: no draft is empty.

  Reference: Zhang et al. (2023), Alg. 2, https://arxiv.org/abs/2309.08168
  """
  keeps: ClassVar[bool] = True
