"""How far a student q is from a teacher p: (log q, log p) -> nats.

One class each; all are 0 where q = p and take -inf for a token that one of them
can't draw. Another is another class with this `__call__`.

Where q has only a part S of the vocabulary, the forward KL to it is infinite:
it is then that of p given S. The others are of p as it is.

Reference: Zhou et al. (2024), DistillSpec, https://arxiv.org/abs/2310.08461
"""
from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Divergence(Protocol):
  """Of two laws over V tokens, for every position."""

  def __call__(self, log_q: Float[Array, '*N V'], log_p: Float[Array, '*N V']
               ) -> Float[Array, '*N']:
    """D(p, q); differentiable in log q."""


@dataclasses.dataclass(frozen=True)
class ForwardKL:
  """KL(p || q) = sum_x p(x) (log p(x) - log q(x)): q covers p.

  With S the tokens whose log q is not -inf, KL(p(. | S) || q).
  """

  def __call__(self, log_q, log_p):
    inside = log_q > -jnp.inf
    log_p = jnp.where(inside, log_p, -jnp.inf)
    mass = jax.nn.logsumexp(log_p, -1, keepdims=True)      # log p(S)
    # Where S is everything, or p has nothing in it, nothing is divided.
    same = inside.all(-1, keepdims=True) | (mass == -jnp.inf)
    return _kl(log_p - jnp.where(same, 0, mass), log_q)


@dataclasses.dataclass(frozen=True)
class ReverseKL:
  """KL(q || p) = sum_x q(x) (log q(x) - log p(x)): q stays where p is."""

  def __call__(self, log_q, log_p):
    return _kl(log_q, log_p)


@dataclasses.dataclass(frozen=True)
class JSD:
  """b KL(p || m) + (1 - b) KL(q || m) with m = b p + (1 - b) q.

  Over b it tends to the forward KL as b -> 0; over 1 - b to the reverse one as
  b -> 1. Symmetric at 1/2.
  """
  b: float = 0.5

  def __post_init__(self):
    if not 0 < self.b < 1:
      raise ValueError(f'Got JSD with b={self.b}; allowed: 0 < b < 1. At the '
                       'ends use ForwardKL or ReverseKL.')

  def __call__(self, log_q, log_p):
    b, never = self.b, jnp.maximum(log_p, log_q) == -jnp.inf
    # The gradient of logaddexp(-inf, -inf) is NaN.
    finite = lambda x: jnp.where(never, 0, x)
    mean = jnp.logaddexp(math.log(b) + finite(log_p),
                         math.log1p(-b) + finite(log_q))
    return b * _kl(log_p, mean) + (1 - b) * _kl(log_q, mean)


@dataclasses.dataclass(frozen=True)
class TVD:
  """sum_x |p(x) - q(x)| / 2 = 1 - sum_x min(p, q): what is rejected."""

  def __call__(self, log_q, log_p):
    return jnp.abs(jnp.exp(log_p) - jnp.exp(log_q)).sum(-1) / 2


def _kl(log_a, log_b):
  """KL(a || b); tokens that a can't draw add nothing, nor to the gradient."""
  drawn = log_a > -jnp.inf
  safe = jnp.where(drawn, log_a, 0)
  ratio = safe - jnp.where(drawn, log_b, 0)
  return jnp.where(drawn, jnp.exp(safe) * ratio, 0).sum(-1)
