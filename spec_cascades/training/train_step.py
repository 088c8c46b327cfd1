"""The state of a training run and one jitted update of it."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from spec_cascades import struct
from spec_cascades.training import losses


@struct.dataclass
class TrainState:
  """Everything that a resumed run needs: parameters, optimiser, step."""
  step: jax.Array
  params: Any
  opt_state: Any


def schedule(*, peak: float, warmup: int, total: int,
             cooldown: int) -> optax.Schedule:
  """Linear warm-up, 1/sqrt(step) decay, linear cool-down to 0 at `total`."""
  rising = max(warmup, 1)

  def rate(step):
    step = jnp.asarray(step, jnp.float32) + 1
    decay = jnp.sqrt(rising / jnp.maximum(step, rising))
    rise = jnp.minimum(step / rising, 1)
    fall = jnp.clip((total - step + 1) / max(cooldown, 1), 0, 1)
    return peak * rise * decay * fall
  return rate


def adafactor(learning_rate: Any) -> optax.GradientTransformation:
  """Adafactor with T5's settings (Shazeer & Stern 2018, Raffel et al. 2020)."""
  return optax.adafactor(learning_rate, multiply_by_parameter_scale=True,
                         clipping_threshold=1.0, decay_rate=0.8)


class Update:
  """(state, batch) -> (state, metrics): teacher-forced cross-entropy, or KL.

  With a `teacher`, the loss is KL(p || q) to its predictions for the same
  prefixes. Its parameters are an argument of the call, in checkpoint layout.
  A batch is one of `data.ParallelText`; what a model makes of it is the
  model's own `teacher_forced`.

  Hashed by identity: make one and jit it once.
  """

  def __init__(self, lm: Any, optimizer: optax.GradientTransformation, *,
               z_loss: float = 1e-4, seed: int = 0, teacher: Any = None):
    self.lm, self.optimizer, self.teacher = lm, optimizer, teacher
    self.z_loss, self.seed = z_loss, seed

  def init(self, params: Any) -> TrainState:
    return TrainState(jnp.int32(0), params, self.optimizer.init(params))

  def loss(self, params: Any, batch: dict[str, jax.Array], *, step=None):
    """Mean loss per token in nats, and the number of tokens.

    Dropout is on where `step` is given; its noise is a function of the step.
    """
    total, count = losses.cross_entropy(
        self._logits(params, batch, step), batch['targets'], batch['weights'],
        z_loss=0.0 if step is None else self.z_loss)
    return total / jnp.maximum(count, 1), count

  def distance(self, params: Any, batch: dict[str, jax.Array], *, step,
               teacher: Any):
    """Mean KL to the teacher, the number of tokens, the share that agrees."""
    total, count, agree = losses.forward_kl(
        self._logits(params, batch, step),
        self.teacher.teacher_forced(teacher, batch), batch['weights'],
        z_loss=self.z_loss)
    many = jnp.maximum(count, 1)
    return total / many, (count, agree / many)

  def _logits(self, params, batch, step):
    noise = None
    if step is not None:
      noise = jax.random.fold_in(jax.random.key(self.seed), step)
    return self.lm.teacher_forced(params, batch, dropout=noise)

  def __call__(self, state: TrainState, batch: dict[str, jax.Array],
               teacher: Any = None):
    if self.teacher is None:
      grad = jax.value_and_grad(self.loss, has_aux=True)
      (loss, count), grads = grad(state.params, batch, step=state.step)
      extra = {}
    else:
      grad = jax.value_and_grad(self.distance, has_aux=True)
      (loss, (count, agree)), grads = grad(
          state.params, batch, step=state.step, teacher=teacher)
      extra = dict(agreement=agree)
    updates, opt_state = self.optimizer.update(
        grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = dict(loss=loss, tokens=count, norm=optax.tree.norm(grads),
                   **extra)
    return TrainState(state.step + 1, params, opt_state), metrics
