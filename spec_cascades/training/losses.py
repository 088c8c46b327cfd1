"""Losses as pure functions of logits and targets."""
from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, 'B N V'], targets: Int[Array, 'B N'],
                  weights: Float[Array, 'B N'], *, z_loss: float = 0.0
                  ) -> tuple[Array, Array]:
  """Weighted sum over the targets, and the sum of the weights.

  Args:
    logits: Unnormalised log-probabilities, float32.
    targets: Token ids.
    weights: 1 for a target, 0 for padding, which carries no loss.
    z_loss: Weight of log(Z)^2, which keeps the normaliser near 1.

  Returns:
    The summed loss in nats and the number of tokens.
  """
  log_z = jax.nn.logsumexp(logits, -1)
  score = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
  loss = log_z - score + z_loss * jnp.square(log_z)
  return (loss * weights).sum(), weights.sum()


def forward_kl(logits: Float[Array, 'B N V'], teacher: Float[Array, 'B N V'],
               weights: Float[Array, 'B N'], *, z_loss: float = 0.0
               ) -> tuple[Array, Array, Array]:
  """Weighted sum of KL(p || q) over positions, and the sum of the weights.

  Args:
    logits: Of the student, q; float32.
    teacher: Of the teacher, p; float32.
    weights: 1 where a target is, 0 for padding, which carries no loss.
    z_loss: Weight of the student's log(Z)^2.

  Returns:
    The summed loss in nats, the number of tokens, and the number of those where
    both models rank the same token first: greedy drafts that are accepted.

  Reference: Zhou et al. (2024), DistillSpec, https://arxiv.org/abs/2310.08461
  """
  log_z = jax.nn.logsumexp(logits, -1)
  log_p, log_q = jax.nn.log_softmax(teacher), logits - log_z[..., None]
  loss = (jnp.exp(log_p) * (log_p - log_q)).sum(-1) + z_loss * jnp.square(log_z)
  agree = jnp.argmax(logits, -1) == jnp.argmax(teacher, -1)
  agree = agree.astype(jnp.float32) * weights
  return (loss * weights).sum(), weights.sum(), agree.sum()
