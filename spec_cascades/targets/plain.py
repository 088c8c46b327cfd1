"""Rules that mix q and p without deciding: none, all, a traced choice."""
from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from spec_cascades import check
from spec_cascades import struct
from spec_cascades.targets.base import Ruled
from spec_cascades.types import Fused, Prediction, rows


@struct.dataclass
class Lossless(struct.Fixed):
  """pi = p~: plain speculative decoding (Leviathan et al. 2023)."""
  uses_q: ClassVar[bool] = False
  domain: ClassVar[None] = None        # it has no alpha
  plain: ClassVar[bool] = True         # pi is p: what any verifier takes

  def __call__(self, q: Prediction | None, p: Prediction) -> Fused:
    del q
    return Fused(p.probs, jnp.ones(p.probs.shape[:-1]))


@struct.dataclass
class Ensemble(Ruled):
  """pi = (1 - alpha) p~ + alpha q~.

  Lossless at alpha = 0, the drafter alone at 1. What deferral rules mix by
  token, mixed everywhere.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  domain: ClassVar[tuple[float, float]] = (0., 1.)

  def __call__(self, q: Prediction, p: Prediction) -> Fused:
    alpha = rows(self.alpha, p.probs)
    pi = (1 - alpha) * p.probs + alpha * q.probs
    share = jnp.broadcast_to(1 - alpha[..., 0], p.probs.shape[:-1])
    return Fused(pi, share.astype(jnp.float32))


@struct.dataclass
class Choice:
  """pi = rules[index](q, p): a sweep over rules that compiles once."""
  rules: tuple[Any, ...]
  index: int | Array = 0

  @property
  def uses_q(self) -> bool:
    """Whether any of the rules does."""
    return any(rule.uses_q for rule in self.rules)

  @property
  def reads_q(self) -> Bool[Array, ''] | None:
    """Whether the chosen one does; None where all do or none does."""
    each = [rule.uses_q for rule in self.rules]
    return jnp.array(each)[self.index] if len(set(each)) > 1 else None

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for no rules, a bad index or alpha; host only."""
    if not isinstance(self.rules, tuple) or not self.rules:
      raise ValueError(f'Choice of {self.rules or "no rules"}; allowed: a '
                       'tuple of one or more.')
    check.scalar('index of Choice', self.index)
    check.interval('index of Choice', self.index, 0, len(self.rules) - 1,
                   whole=True, hint='It counts the rules from 0.')
    for rule in self.rules:
      check.target(rule)
      rule.validate(batch)

  def __call__(self, q: Prediction | None, p: Prediction) -> Fused:
    # `switch` hashes its branches; a rule with a traced alpha has no hash.
    branches = [lambda q, p, rule=rule: rule(q, p) for rule in self.rules]
    return jax.lax.switch(self.index, branches, q, p)
