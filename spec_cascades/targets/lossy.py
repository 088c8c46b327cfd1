"""Lenient acceptance: more drafts are kept than p allows."""
from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import struct
from spec_cascades.targets.base import Ruled
from spec_cascades.types import Fused, Prediction, rows
from spec_cascades.warp import residual


@struct.dataclass
class Lossy(Ruled):
  """pi = min(q~, p~/(1-alpha)) + R norm((p~-q~)+), which sums to 1.

  R = sum (q~ - p~/(1-alpha))+.
  The law of accepting x with probability min(1, p~(x) / ((1-alpha) q~(x))) and
  correcting from norm((p~-q~)+): the published rule with beta = 1, made to sum
  to one. Lossless at alpha = 0 and at temperature 0, the drafter alone at 1.

  Reference: Tran-Thien (2023); Zhou et al. (2024),
  https://arxiv.org/abs/2310.08461
  """
  alpha: float | Float[Array, '*B'] = 0.1
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    alpha = rows(self.alpha, p.probs)
    kept, rejected = _lenient(q, p, alpha)
    pi = kept + rejected * residual(p.probs, q.probs)
    return Fused(jnp.where(alpha > 0, pi, p.probs), rejected[..., 0])


@struct.dataclass
class LossyBeta(Ruled):
  """pi = max(min(q~, p~/(1-alpha)), p~/beta), beta such that it sums to 1.

  Lossless at alpha = 0, the drafter alone at 1. Of all laws that lose as few
  drafts as `Lossy`, the one in which no token of p~ falls under p~/beta.

  Reference: Tran-Thien (2023)
  """
  alpha: float | Float[Array, '*B'] = 0.1
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    return _with_beta(q, p, rows(self.alpha, p.probs))


@struct.dataclass
class LossyBudget(Ruled):
  """pi of `LossyBeta` at the largest lenience with KL(p~ || pi) <= alpha nats.

  Lossless at alpha = 0, the drafter alone at inf. Found by bisection, for
  every position: 24 times the work of `LossyBeta`.

  Reference: Tran-Thien (2023), tuned lossy speculative decoding
  """
  alpha: float | Float[Array, '*B'] = 0.1
  domain: ClassVar[tuple[float, float]] = (0., math.inf)

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    budget = rows(self.alpha, p.probs[..., :1])
    fits = lambda x: _divergence(p.probs, _with_beta(q, p, x).pi) <= budget

    def halve(_, bounds):
      low, high = bounds
      middle = (low + high) / 2
      true = fits(middle)
      return jnp.where(true, middle, low), jnp.where(true, high, middle)

    zero = jnp.zeros_like(p.probs[..., :1])
    low = jax.lax.fori_loop(0, 24, halve, (zero, zero + 1))[0]
    lenience = jnp.where(fits(zero + 1), 1., low)
    return _with_beta(q, p, jnp.where(budget > 0, lenience, 0.))


def _lenient(q: Prediction, p: Prediction, alpha):
  """min(q~, p~/(1-alpha)) and what it lacks to 1; all of q~ at alpha = 1."""
  slack = 1 - alpha
  bound = jnp.where(slack > 0, p.probs / jnp.where(slack > 0, slack, 1),
                    jnp.inf)
  kept = jnp.minimum(q.probs, bound)
  lacks = jnp.maximum(1 - kept.sum(-1, keepdims=True), 0)
  return kept, jnp.where(jnp.any(bound < q.probs, -1, keepdims=True), lacks, 0)


def _with_beta(q: Prediction, p: Prediction, alpha) -> Fused:
  """max(min(q~, p~/(1-alpha)), c p~) with c = 1/beta such that it sums to 1.

  Solves g(c) = sum (c p~ - q~)+ - R = 0. g is convex, rising and piecewise
  linear, so Newton's steps from c = 1 fall to the root and end there.
  """
  kept, lacks = _lenient(q, p, alpha)

  def newton(carry):
    c, _, i = carry
    above = c * p.probs > q.probs
    mass = lambda x: jnp.where(above, x, 0).sum(-1, keepdims=True)
    slope = mass(p.probs)
    new = (lacks + mass(q.probs)) / jnp.where(slope > 0, slope, 1)
    new = jnp.where((slope > 0) & (lacks > 0), jnp.minimum(c, new), c)
    return new, jnp.any(new < c), i + 1

  c = jnp.ones_like(lacks)
  c, *_ = jax.lax.while_loop(lambda x: x[1] & (x[2] < 64), newton,
                             (c, jnp.bool_(True), 0))
  pi = jnp.maximum(kept, c * p.probs)
  pi = jnp.where(lacks > 0, pi / pi.sum(-1, keepdims=True), kept)
  return Fused(jnp.where(alpha > 0, pi, p.probs), lacks[..., 0])


def _divergence(p, pi):
  """KL(p || pi) [..., 1], of non-negative terms: small values are exact too."""
  r = jnp.where(p > 0, pi / jnp.where(p > 0, p, 1), 1)
  terms = jnp.where(p > 0, p * (r - 1 - jnp.log(r)), pi)
  return terms.sum(-1, keepdims=True)
