"""The state of a training run and one jitted update of it."""
from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from spec_cascades import struct
from spec_cascades.training import losses
from spec_cascades.training import policies

Batch = dict[str, jax.Array]


@struct.dataclass
class TrainState:
  """Everything that a resumed run needs: parameters, optimiser, step."""
  step: jax.Array
  params: Any
  opt_state: Any


class Update:
  """(state, batch) -> (state, metrics): teacher-forced, of one batch.

  The loss is cross-entropy; with a `teacher`, `distillation` from its
  predictions for the same prefixes. Its parameters are an argument of the call,
  in checkpoint layout. A batch is one of `data.ParallelText`; what a model
  makes of it is the model's own `teacher_forced`.

  Hashed by identity: make one and jit it once.

  Args:
    lm: The model.
    optimizer: Of its parameters; None to measure losses only.
    z_loss: Weight of log(Z)^2, while training.
    seed: Of dropout.
    teacher: Another model, of the same vocabulary.
    distillation: What is minimised with a teacher.
    accumulate: Parts that a batch is cut into, one after the other in memory;
      gradients are of the whole batch.
    remat: Activations of a layer are computed again for its gradient.
    objective: Another loss, such as `ahead.Ahead`, which the model is given to;
      with a teacher, so is the loss of the model's own logits.
  """

  def __init__(self, lm: Any, optimizer: optax.GradientTransformation | None, *,
               z_loss: float = 1e-4, seed: int = 0, teacher: Any = None,
               distillation: losses.Distillation | losses.Boosted = (
                   losses.Distillation()),
               accumulate: int = 1, remat: bool = False,
               objective: Any = None):
    self.lm, self.optimizer, self.teacher = lm, optimizer, teacher
    self.z_loss, self.seed, self.accumulate = z_loss, seed, accumulate
    self.distillation, self.remat = distillation, remat
    self.objective = objective

  def init(self, params: Any) -> TrainState:
    return TrainState(jnp.int32(0), params, self.optimizer.init(params))

  def loss(self, params: Any, batch: Batch, teacher: Any = None
           ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Summed loss in nats without dropout, and sums over the targets.

    Among the sums are `tokens`, and with a teacher what
    `losses.Distillation` adds.
    """
    return self._loss(params, batch, teacher, None, 0.0)

  def _loss(self, params, batch, teacher, noise, z_loss):
    judged = functools.partial(self._judged, batch, teacher, z_loss)
    numbers = dict(dropout=noise, remat=self.remat)
    if self.objective is None:
      return judged(self.lm.teacher_forced(params, batch, **numbers))
    if self.teacher is not None:
      numbers['judged'] = judged
    return self.objective(self.lm, params, batch, z_loss=z_loss, **numbers)

  def _judged(self, batch, teacher, z_loss, logits):
    """The loss of a model's own logits, and sums over the targets."""
    targets, weights = batch['targets'], batch['weights']
    if self.teacher is None:
      total, tokens = losses.cross_entropy(logits, targets, weights,
                                           z_loss=z_loss)
      return total, dict(tokens=tokens)
    own = {name: batch[name] for name in (policies.WRITTEN,) if name in batch}
    return self.distillation(
        logits, self.teacher.teacher_forced(teacher, batch), targets, weights,
        z_loss=z_loss, **own)

  def __call__(self, state: TrainState, batch: Batch, teacher: Any = None
               ) -> tuple[TrainState, dict[str, jax.Array]]:
    """One step. Metrics are means per token, but for `tokens` and `norm`."""
    noise = jax.random.fold_in(jax.random.key(self.seed), state.step)
    grad = jax.value_and_grad(self._loss, has_aux=True, allow_int=True)

    def part(batch, noise):
      (total, sums), grads = grad(state.params, batch, teacher, noise,
                                  self.z_loss)
      # Ids, those of a reduced vocabulary, have no gradient.
      zero = lambda g: jnp.zeros(g.shape) if g.dtype == jax.dtypes.float0 else g
      return jax.tree.map(zero, grads), dict(sums, loss=total)

    grads, sums = self._whole(part, batch, noise)
    tokens = sums.pop('tokens')
    many = jnp.maximum(tokens, 1)
    grads, means = jax.tree.map(lambda x: x / many, (grads, sums))
    norm = optax.tree.norm(grads)
    grads = jax.tree.map(lambda g, x: g.astype(x.dtype), grads, state.params)
    updates, opt_state = self.optimizer.update(
        grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = dict(means, tokens=tokens, norm=norm)
    return TrainState(state.step + 1, params, opt_state), metrics

  def _whole(self, part, batch, noise):
    """`part` of a batch, summed over `accumulate` parts of its rows."""
    count = self.accumulate
    if count == 1:
      return part(batch, noise)
    rows = len(batch['targets'])
    each = -(-rows // count)
    # Rows that fill up the last part are copies without weight.
    cut = lambda x: jnp.pad(x, ((0, each * count - rows),) + ((0, 0),) * (
        x.ndim - 1), mode='edge').reshape(count, each, *x.shape[1:])
    parts = jax.tree.map(cut, batch)
    own = (jnp.arange(each * count) < rows).reshape(count, each, 1)
    parts['weights'] = jnp.where(own, parts['weights'], 0)
    keys = jax.random.split(noise, count)
    like = jax.eval_shape(part, jax.tree.map(lambda x: x[0], parts), noise)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    add = lambda sums, some: (jax.tree.map(jnp.add, sums, part(*some)), None)
    return jax.lax.scan(add, zeros, (parts, keys))[0]
