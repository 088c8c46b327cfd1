"""What heads ahead of a verifier's own are trained on."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades.training import follow
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Ahead:
  """L_0 verifier + sum_k decay^k L_k, over the heads k of a `heads.Headed`.

  L_k is `distillation` from what the verifier itself predicts k places further
  in the same text; with `mix` 1 it is the cross-entropy of the token there. L_0
  is the verifier's own cross-entropy. Heads that read tokens read the text's.
  Behind a prefix layer (Hydra++) both are trained, one text a row.

  Attributes:
    decay: Of the weight from head to head.
    distillation: Of a head, and how the two are mixed.
    verifier: Weight of L_0. At 0 the verifier stays as it is (Medusa-1, without
      dropout); above, it is trained with its heads (Medusa-2), which have been
      trained alone before: 5 is the paper's 1 / lambda_0.
    noise: Uniform noise from -noise to noise is added to the verifier's states
      that heads, or the layer before them, read while training.

  References: Cai et al. (2024), sec. 2.2, https://arxiv.org/abs/2401.10774;
    Ankner et al. (2024), sec. 4, https://arxiv.org/abs/2402.05109
  """
  decay: float = 0.8
  distillation: losses.Distillation = losses.Distillation(mix=1.0)
  verifier: float = 0.0
  noise: float = 0.0

  def __post_init__(self):
    check.interval('decay of Ahead', self.decay, 0, 1, above=True,
                   hint='It is the weight of head k + 1 beside head k.')
    check.interval('verifier of Ahead', self.verifier, 0, 1e6,
                   hint='0 leaves the verifier as it is.')
    check.interval('noise of Ahead', self.noise, 0, 1e6)

  def __call__(self, lm: Any, params: Any, batch: Mapping[str, Array], *,
               dropout: Key[Array, ''] | None = None, remat: bool = False,
               z_loss: float = 0.0) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over positions, and sums that say how good heads are.

    Args:
      lm: The `heads.Headed`.
      params: Its parameters in checkpoint layout.
      batch: See `lm.lm.states`.
      dropout: Of the noise, and of the verifier's if it is trained.
      remat: Activations are computed again for the gradient.
      z_loss: Weight of log(Z)^2.

    Returns:
      The summed loss in nats, and sums over the targets: `tokens`, and for each
      head k `agreement_k` and `acceptance_k`, see `losses.Distillation`; where
      a text ends before k places further, they are 0.

    Raises:
      ValueError: With a prefix layer, rows hold several texts, or the verifier
        is to be trained.
    """
    joint = self.verifier > 0
    if joint and lm.heads.prefix is not None:
      raise ValueError(f'Got verifier={self.verifier} of Ahead and heads '
                       'behind a prefix layer; allowed: 0, which leaves the '
                       'verifier as it is.')
    if not joint:
      params = dict(params, model=jax.lax.stop_gradient(params['model']))
    model = params['model']
    read, hidden = states(
        lm, params, batch, noise=self.noise, key=dropout, remat=remat,
        dropout=dropout if joint else None)
    own = lm.lm.head(model, read)
    targets, weights = batch['targets'], batch['weights']
    total, sums = jnp.float32(0), dict(tokens=weights.sum())
    if joint:
      loss, _ = losses.cross_entropy(own, targets, weights, z_loss=z_loss)
      total += self.verifier * loss
    own = jax.lax.stop_gradient(own)
    for k in range(1, lm.heads.count + 1):
      def part(params, hidden, k=k):
        logits = lm.ahead(params, k, hidden, upcoming(targets, k))
        return self.distillation(
            logits, further(own, k), further(targets, k),
            weights_at(batch, k), z_loss=z_loss)
      loss, found = (jax.checkpoint(part) if remat else part)(params, hidden)
      total += self.decay**k * loss
      sums |= {f'{name}_{k}': found[name]
               for name in ('agreement', 'acceptance')}
    return total, sums


def states(lm: Any, params: Any, batch: Mapping[str, Array], *,
           noise: float = 0.0, key: Key[Array, ''] | None = None,
           dropout: Key[Array, ''] | None = None, remat: bool = False
           ) -> tuple[Float[Array, 'B T E'], Float[Array, 'B T E']]:
  """What the verifier's head reads at the targets, and what other heads read.

  Args:
    lm: The `heads.Headed`.
    params: Its parameters in checkpoint layout.
    batch: See `lm.lm.states`.
    noise: See `Ahead`.
    key: Of the noise; None: none.
    dropout: See `lm.lm.states`.
    remat: Activations are computed again for the gradient.
  """
  if key is not None:
    key = jax.random.fold_in(key, 1)             # not the verifier's dropout
  if lm.heads.prefix is None:
    own = lm.lm.states(params['model'], batch, dropout=dropout, remat=remat)
    return own, follow.noisy(own, noise, key)
  tokens, found, encoded, at = follow.whole(lm, params, batch)
  before = jnp.pad(follow.noisy(found, noise, key), ((0, 0), (1, 0), (0, 0)))
  # The layer is one place behind: at n + 1 it has read the state at n.
  later, = follow.unrolled(lm, params, before, jnp.pad(
      tokens, ((0, 0), (0, 1))), encoded, 1, remat=remat)
  pick = lambda x, at: jnp.take_along_axis(x, at[..., None], 1)
  return pick(found, at), pick(later, at + 1)


def further(x: Array, k: int) -> Array:
  """x[:, t + k] at every t; what is behind the end is from the beginning."""
  return jnp.roll(x, -k, 1)


def upcoming(targets: Int[Array, 'B T'], k: int) -> Int[Array, 'B T k']:
  """The k targets from t on, at every t."""
  return jnp.stack([further(targets, i) for i in range(k)], -1)


def weights_at(batch: Mapping[str, Array], k: int) -> Float[Array, 'B T']:
  """Weights of the targets k places further, 0 outside of a text."""
  weights = further(batch['weights'], k)
  inside = jnp.arange(weights.shape[1]) < weights.shape[1] - k
  if 'target_segments' in batch:
    texts = batch['target_segments']
    return jnp.where(inside[None] & (texts == further(texts, k)), weights, 0)
  return jnp.where(inside[None], weights, 0)
