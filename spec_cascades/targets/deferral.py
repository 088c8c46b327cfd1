"""Deferral rules: q or p, position by position."""
from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import struct
from spec_cascades.targets.base import Ruled
from spec_cascades.types import Fused, Prediction, rows
from spec_cascades.warp import argmax

ANY = (-math.inf, math.inf)


class Deferral(Ruled):
  """pi = (1 - r) q~ + r p~, where r in {0, 1} is the rule of a subclass."""

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    r = self.defers(q, p, rows(self.alpha, p.probs[..., 0]))
    pi = jnp.where(r[..., None], p.probs, q.probs)
    return Fused(pi, r.astype(jnp.float32))


@struct.dataclass
class Chow(Deferral):
  """r = [max q < 1 - alpha].

  Lossless for any alpha < 0, where p decides however sure q is (at 0 a float32
  max q of 1.0 keeps q); the drafter alone at 1.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def defers(self, q, p, alpha):
    """r, for every position."""
    del p
    return (alpha < 0) | (q.confidence < 1 - alpha)


@struct.dataclass
class Diff(Deferral):
  """r = [max q < max p - alpha].

  Lossless at alpha = -1, the drafter alone at 1.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def defers(self, q, p, alpha):
    """r, for every position."""
    return q.confidence < p.confidence - alpha


@struct.dataclass
class OPT(Deferral):
  """r = [max q < max p - alpha TV(p~, q~)].

  Lossless at alpha = -inf, the drafter alone at inf; Diff at temperature 0.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = ANY

  def defers(self, q, p, alpha):
    """r, for every position."""
    return q.confidence < p.confidence - _times_tv(alpha, q, p)


@struct.dataclass
class ChowLog(Deferral):
  """r = [H(q) > alpha], entropy H in nats.

  Lossless for alpha < 0, the drafter alone at log V.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = ANY

  def defers(self, q, p, alpha):
    """r, for every position."""
    del p
    return _entropy(q) > alpha


@struct.dataclass
class DiffLog(Deferral):
  """r = [H(q) > H(p) + alpha], entropy H in nats.

  Lossless for alpha < -log V, the drafter alone at log V.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = ANY

  def defers(self, q, p, alpha):
    """r, for every position."""
    return _entropy(q) > _entropy(p) + alpha


@struct.dataclass
class OPTLog(Deferral):
  """r = [H(q) > H(p) + alpha TV(p~, q~)], entropy H in nats.

  Lossless at alpha = -inf, the drafter alone at inf.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = ANY

  def defers(self, q, p, alpha):
    """r, for every position."""
    return _entropy(q) > _entropy(p) + _times_tv(alpha, q, p)


@struct.dataclass
class BiLD(Deferral):
  """r = [-log p(argmax q) > alpha].

  The rollback rule of BiLD as a distribution: lossless for alpha < 0, the
  drafter alone at inf.

  Reference: Kim et al. (2023), https://arxiv.org/abs/2302.07863
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = ANY

  def defers(self, q, p, alpha):
    """r, for every position."""
    best = argmax(q.logits)[..., None]
    logp = jnp.take_along_axis(jax.nn.log_softmax(p.logits), best, -1)
    return -logp[..., 0] > alpha


@struct.dataclass
class Lenience(Deferral):
  """r = [p(argmax q) < (1 - alpha) max p].

  Leviathan et al. (2023), appendix A.5: at temperature 0 a draft stands if the
  verifier finds it almost as good as its own best. Lossless for alpha < 0, the
  drafter alone at 1. For sampling their lenience is `Lossy`.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def defers(self, q, p, alpha):
    """r, for every position."""
    best = argmax(q.logits)[..., None]
    peak = p.logits.max(-1)
    ratio = jnp.exp(jnp.take_along_axis(p.logits, best, -1)[..., 0] - peak)
    return (alpha < 0) | (ratio < 1 - alpha)


def _entropy(x: Prediction):
  """In [0, log V]: rounding must not cross the ends of a rule."""
  logs = jax.nn.log_softmax(x.logits)
  total = -jnp.where(jnp.isfinite(logs), jnp.exp(logs) * logs, 0).sum(-1)
  return jnp.clip(total, 0, math.log(logs.shape[-1]))


def _times_tv(alpha, q: Prediction, p: Prediction):
  """alpha TV(p~, q~); an infinite alpha itself, also where TV rounds to 0."""
  tv = jnp.maximum(p.probs - q.probs, 0).sum(-1)
  endless = jnp.isinf(alpha)
  return jnp.where(endless, alpha, jnp.where(endless, 0, alpha) * tv)
