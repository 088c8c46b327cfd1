"""Controls: what token-specific rules would be if they only truncated."""
from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import struct
from spec_cascades import warp as warp_lib
from spec_cascades.targets.base import Ruled
from spec_cascades.types import Fused, Prediction, rows


class Truncated(Ruled):
  """For controls: p~ without its tail, whatever q says.

  Token rules cut the tail of p~ too; these show how much of their gain that is.
  """
  uses_q: ClassVar[bool] = False

  def __call__(self, q: Prediction | None, p: Prediction) -> Fused:
    del q
    alpha = rows(jnp.asarray(self.alpha, jnp.float32), p.probs)
    pi = jnp.where(alpha > 0, self.cut(p.probs, alpha), p.probs)
    return Fused(pi, jnp.ones(p.probs.shape[:-1]))


@struct.dataclass
class TruncatedTopP(Truncated):
  """pi = the most probable tokens of p~ that reach mass 1 - alpha, normalised.

  A control: ignores q. Lossless at alpha = 0; the best tokens only at 1.
  """
  alpha: float | Float[Array, '*B'] = 0.1
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def cut(self, probs, alpha):
    """Drops the tail."""
    return warp_lib.keep_top_p(probs, 1 - alpha)


@struct.dataclass
class TruncatedMinP(Truncated):
  """pi = p~ where p~ >= alpha max p~, normalised.

  A control: ignores q. Lossless at alpha = 0; only the best tokens at 1.
  """
  alpha: float | Float[Array, '*B'] = 0.1
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def cut(self, probs, alpha):
    """Drops the tail."""
    return warp_lib.keep_min_p(probs, alpha)


@struct.dataclass
class TruncatedEta(Truncated):
  """pi = p~ where p~ >= min(alpha, sqrt(alpha) exp(-H(p~))), normalised.

  A control: ignores q. Lossless at alpha = 0.

  Reference: Hewitt et al. (2022), https://arxiv.org/abs/2210.15191
  """
  alpha: float | Float[Array, '*B'] = 0.01
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def cut(self, probs, alpha):
    """Drops the tail."""
    return warp_lib.keep_eta(probs, alpha)
