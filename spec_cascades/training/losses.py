"""Losses as pure functions of logits and targets.

Those between a teacher p and a student q are `divergences`; q is drafted from,
so what they buy is acceptance: 1 - TVD(p, q) at temperature 1.

A student over part of the vocabulary has logits of -inf elsewhere, see
`models.reduced`. Targets that it can't predict carry no cross-entropy.
"""
from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spec_cascades.training import divergences


def cross_entropy(logits: Float[Array, 'B N V'], targets: Int[Array, 'B N'],
                  weights: Float[Array, 'B N'], *, z_loss: float = 0.0
                  ) -> tuple[Array, Array]:
  """Weighted sum over the targets, and the sum of the weights.

  Targets whose logit is -inf count in neither.

  Args:
    logits: Unnormalised log-probabilities, float32.
    targets: Token ids.
    weights: 1 for a target, 0 for padding, which carries no loss.
    z_loss: Weight of log(Z)^2, which keeps the normaliser near 1.

  Returns:
    The summed loss in nats and the number of tokens.
  """
  log_z = jax.nn.logsumexp(logits, -1)
  loss = _surprise(logits, targets, log_z) + z_loss * jnp.square(log_z)
  weights = jnp.where(_of(logits, targets) > -jnp.inf, weights, 0)
  return (loss * weights).sum(), weights.sum()


@dataclasses.dataclass(frozen=True)
class Distillation:
  """(1 - mix) D(p, q) + mix (-log q(target)), per token.

  On texts that the student has written the loss is D: -log q(x) of x ~ q has no
  gradient in expectation, and that of its best tokens sharpens what it is.

  Attributes:
    divergence: D, of `divergences`.
    mix: Weight of the cross-entropy on the batch's targets, in [0, 1].
    temperature: Of the student, > 0: q is softmax(logits / temperature) in D.
    teacher_temperature: Of the teacher, > 0.

  Reference: Zhou et al. (2024), DistillSpec, https://arxiv.org/abs/2310.08461
  """
  divergence: divergences.Divergence = divergences.ForwardKL()
  mix: float = 0.0
  temperature: float = 1.0
  teacher_temperature: float = 1.0

  def __post_init__(self):
    if not 0 <= self.mix <= 1:
      raise ValueError(f'Got mix={self.mix}; allowed: a weight in [0, 1].')
    for name in ('temperature', 'teacher_temperature'):
      if not getattr(self, name) > 0:
        raise ValueError(f'Got {name}={getattr(self, name)}; allowed: more '
                         'than 0.')

  def __call__(self, logits: Float[Array, 'B N V'],
               teacher: Float[Array, 'B N V'], targets: Int[Array, 'B N'],
               weights: Float[Array, 'B N'], *, z_loss: float = 0.0,
               written: Bool[Array, 'B'] | None = None
               ) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over positions, and sums that say how far q is from p.

    Args:
      logits: Of the student, q; float32.
      teacher: Of the teacher, p; float32.
      targets: Token ids, for `mix`.
      weights: 1 where a target is, 0 for padding, which carries no loss.
      z_loss: Weight of the student's log(Z)^2.
      written: Whether the student wrote a row's text; None: it wrote none.

    Returns:
      The summed loss in nats, and sums over the targets: `tokens`; `agreement`,
      those where both rank the same token first (greedy drafts that are
      accepted); `acceptance`, sum_x min(p, q) (sampled ones that are).
    """
    log_z = jax.nn.logsumexp(logits, -1)
    log_q = jax.nn.log_softmax(logits / self.temperature)
    log_p = jax.nn.log_softmax(teacher / self.teacher_temperature)
    loss = self.divergence(log_q, log_p) if self.mix < 1 else 0.
    if self.mix:
      ce, mix = _surprise(logits, targets, log_z), self.mix
      if written is not None:
        mix = jnp.where(written[:, None], 0., mix)
      loss = (1 - mix) * loss + mix * ce
    loss += z_loss * jnp.square(log_z)
    agree = jnp.argmax(logits, -1) == jnp.argmax(teacher, -1)
    q, p = map(jax.nn.softmax, (jax.lax.stop_gradient(logits), teacher))
    total = lambda x: (x * weights).sum()
    return total(loss), dict(
        tokens=weights.sum(), agreement=total(agree.astype(jnp.float32)),
        acceptance=total(jnp.minimum(p, q).sum(-1)))


@dataclasses.dataclass(frozen=True)
class Boosted:
  """-log q(target) where another drafter's best token is not the target.

  For a second drafter beside a first one (`drafters.specinfer`): the corpus
  holds the verifier's own texts, and the first drafter is given as `teacher`.
  What it gets right carries no loss. The paper chooses whole texts that the
  first has missed; here it is each token.

  Reference: Miao et al. (2023), sec. 3, https://arxiv.org/abs/2305.09781
  """

  def __call__(self, logits: Float[Array, 'B N V'],
               teacher: Float[Array, 'B N V'], targets: Int[Array, 'B N'],
               weights: Float[Array, 'B N'], *, z_loss: float = 0.0
               ) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over the targets that the first drafter misses.

    Args:
      logits: Of the second drafter, q; float32.
      teacher: Of the first one.
      targets: Token ids.
      weights: 1 where a target is, 0 for padding, which carries no loss.
      z_loss: Weight of log(Z)^2.

    Returns:
      The summed loss in nats, and sums over the targets that are missed:
      `tokens`; `agreement`, those that the second ranks first.
    """
    missed = jnp.where(jnp.argmax(teacher, -1) != targets, weights, 0)
    total, tokens = cross_entropy(logits, targets, missed, z_loss=z_loss)
    caught = jnp.argmax(logits, -1) == targets
    return total, dict(tokens=tokens,
                       agreement=jnp.where(caught, missed, 0).sum())


def _surprise(logits, targets, log_z):
  """-log q(target); 0 for a target that q can't predict."""
  found = _of(logits, targets)
  known = found > -jnp.inf
  return jnp.where(known, log_z - jnp.where(known, found, 0), 0)


def _of(logits, targets):
  return jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
