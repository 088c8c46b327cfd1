"""What a layer that predicts a verifier's states is trained on."""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
import optax

from spec_cascades import check
from spec_cascades.models import segments
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Follow:
  """SmoothL1(f^, f) + classification D(p, q), of a `features.Featured`.

  Both are of every token of a text, from the verifier's states before it, with
  noise; the first is a mean over the width. With `mix` 0, D is a divergence
  between the verifier's head on f and on f^: the published cross-entropy less
  the entropy of p, which has no gradient. The verifier stays as it is.

  Attributes:
    classification: Weight of D.
    noise: Uniform noise from -noise to noise is added to the states before,
      while training.
    distillation: D.

  Reference: Li et al. (2024), sec. 4.2, https://arxiv.org/abs/2401.15077
  """
  classification: float = 0.1
  noise: float = 0.1
  distillation: losses.Distillation = losses.Distillation()
  verifier: ClassVar[float] = 0.0    # see `ahead.Ahead`

  def __post_init__(self):
    for name in ('classification', 'noise'):
      check.interval(f'{name} of Follow', getattr(self, name), 0, 1e6)

  def __call__(self, lm: Any, params: Any, batch: Mapping[str, Array], *,
               dropout: Key[Array, ''] | None = None, remat: bool = False,
               z_loss: float = 0.0) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over the targets, and sums that say how good it is.

    Args:
      lm: The `features.Featured`.
      params: Its parameters in checkpoint layout.
      batch: See `lm.lm.states`; one text a row.
      dropout: Of the noise; None: none.
      remat: Activations are computed again for the gradient.
      z_loss: Weight of log(Z)^2.

    Returns:
      The summed loss, and sums over the targets: `tokens`, `distance` (the
      first term), `agreement` and `acceptance`, see `losses.Distillation`.

    Raises:
      ValueError: Rows hold several texts.
    """
    if 'target_segments' in batch:
      raise ValueError('Got packed texts to train a feature layer on; allowed: '
                       'one text a row. Set data.ParallelText.packed = False.')
    params = dict(params, model=jax.lax.stop_gradient(params['model']))
    read = _encoded if lm.crosses else _joined
    tokens, states, encoded, at = jax.lax.stop_gradient(
        read(lm, params['model'], batch))
    before = jnp.pad(states[:, :-1], ((0, 0), (1, 0), (0, 0)))
    if dropout is not None:
      before += jax.random.uniform(dropout, before.shape, before.dtype,
                                   -self.noise, self.noise)
    found = _follow(lm, params, before, tokens, encoded, remat)
    pick = lambda x: jnp.take_along_axis(x, at[..., None], 1)
    found, states = pick(found), pick(states)
    wide = lambda x: x.astype(jnp.float32)
    distance = optax.losses.huber_loss(wide(found), wide(states)).mean(-1)
    distance = (distance * batch['weights']).sum()
    loss, sums = self.distillation(
        lm.head(params, found), lm.head(params, states), batch['targets'],
        batch['weights'], z_loss=z_loss)
    return distance + self.classification * loss, dict(sums, distance=distance)


def _follow(lm, params, before, tokens, encoded, remat):
  """The layer on whole texts; what is padded is behind what is not."""
  i = jnp.arange(tokens.shape[1])
  distance = i[:, None] - i[None]
  mask = jnp.broadcast_to(distance >= 0, (len(tokens), *distance.shape))
  run = lambda params, before: lm.follow(
      params, before, tokens, distance[None], mask, encoded)[0]
  return (jax.checkpoint(run) if remat else run)(params, before)


def _encoded(lm, model, batch):
  """Decoder inputs, states, what is read of the encoder, and the targets'."""
  targets = batch['targets']
  tokens = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
  memory = lm.lm.apply(model, batch['inputs'], method='memory')[-1]
  at = jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape)
  return tokens, lm.lm.states(model, batch), (memory, batch['inputs']), at


def _joined(lm, model, batch):
  """The same of a model that reads inputs and targets as one text."""
  tokens, at = segments.behind(batch['inputs'], batch['input_lengths'],
                               batch['targets'])
  states = lm.lm.module.apply({'params': model}, tokens, method='states')
  return tokens, states, None, at
