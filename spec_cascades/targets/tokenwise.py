"""Token-specific rules: q on the tokens that it is trusted with."""
from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import struct
from spec_cascades.targets.base import Ruled
from spec_cascades.types import Fused, Prediction, rows


class TokenRule(Ruled):
  """pi(v) = q~(v) (1 - r(v)) + p~(v) eta, eta = sum_u r(u) q~(u)."""

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    r = self.distrusts(q, p.raw, rows(self.alpha, p.probs))
    eta = jnp.where(r, q.probs, 0).sum(-1, keepdims=True)
    pi = jnp.where(r, 0, q.probs) + p.probs * eta
    # Exactly p~ where no token is trusted: q~ may sum to 1 but nearly.
    none = jnp.all(r, -1, keepdims=True)
    return Fused(jnp.where(none, p.probs, pi), eta[..., 0])


@struct.dataclass
class TokenV1(TokenRule):
  """pi(v) = q~(v) (1 - r(v)) + p~(v) eta, r(v) = [q(v) < max p - alpha].

  Lossless at alpha = -1, the drafter alone at 1.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def distrusts(self, q, raw, alpha):
    """r, for every position and token; `raw` is p."""
    return q.raw < raw.max(-1, keepdims=True) - alpha


@struct.dataclass
class TokenV2(TokenRule):
  """pi(v) = q~(v) (1 - r(v)) + p~(v) eta, r(v) = [p(v) < max p - alpha].

  Lossless at alpha = -1, the drafter alone at 1. At alpha = 0 the verifier's
  argmax is trusted whatever q says: not lossless.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def distrusts(self, q, raw, alpha):
    """r, for every position and token; `raw` is p."""
    del q
    return raw < raw.max(-1, keepdims=True) - alpha


@struct.dataclass
class TokenV3(TokenRule):
  """pi(v) = q~(v) (1 - r(v)) + p~(v) eta, r(v) = [p(v) < (1 - alpha) max p].

  Lossless for alpha < 0, the drafter alone at 1. At temperature 0 it is the
  greedy lenience of Leviathan et al. (2023).
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def distrusts(self, q, raw, alpha):
    """r, for every position and token; `raw` is p."""
    del q
    return (alpha < 0) | (raw < (1 - alpha) * raw.max(-1, keepdims=True))
