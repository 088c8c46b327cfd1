"""What heads, or masks, ahead of a verifier are trained on."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import check
from spec_cascades.models import masks
from spec_cascades.training import follow
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Ahead:
  """L_0 verifier + sum_k decay^k L_k, over heads or masks k.

  Heads are those of a `heads.Headed`, masks those of a `masks.Masked`, which
  are read behind the text in the same pass.

  L_k is `distillation` from what the verifier itself predicts k places further
  in the same text; with `mix` 1 it is the cross-entropy of the token there. L_0
  is the verifier's own cross-entropy, or where a run has a teacher, what the
  verifier was before, its `distillation` from that: Medusa's self-distillation,
  for texts that the verifier wrote itself. Heads that read tokens read the
  text's. Behind a prefix layer (Hydra++) both are trained, one text a row.

  Attributes:
    decay: Of the weight from head to head.
    distillation: Of a head, and how the two are mixed.
    verifier: Weight of L_0. At 0 the verifier stays as it is (Medusa-1, without
      dropout); above, it is trained with its heads (Medusa-2), which have been
      trained alone before: 5 is the paper's 1 / lambda_0. With masks, 0 is
      PaSS, and above is SPACE's semi-autoregressive fine-tuning.
    noise: Uniform noise from -noise to noise is added to the verifier's states
      that heads, or the layer before them, read while training.
    every: While training, heads are read at one place of so many, drawn for
      each batch, and count as many times.

  References: Cai et al. (2024), eqs. 1 and 2 and sec. 2.3.2,
    https://arxiv.org/abs/2401.10774;
    Ankner et al. (2024), https://arxiv.org/abs/2402.05109;
    Monea et al. (2023), https://arxiv.org/abs/2311.13581;
    Yi et al. (2024), https://arxiv.org/abs/2402.11809
  """
  decay: float = 0.8
  distillation: losses.Distillation = losses.Distillation(mix=1.0)
  verifier: float = 0.0
  noise: float = 0.0
  every: int = 1

  def __post_init__(self):
    check.interval('decay of Ahead', self.decay, 0, 1, above=True,
                   hint='It is the weight of head k + 1 beside head k.')
    check.interval('verifier of Ahead', self.verifier, 0, 1e6,
                   hint='0 leaves the verifier as it is.')
    check.interval('noise of Ahead', self.noise, 0, 1e6)
    check.interval('every of Ahead', self.every, 1, 10**6, whole=True)

  def __call__(self, lm: Any, params: Any, batch: Mapping[str, Array], *,
               dropout: Key[Array, ''] | None = None, remat: bool = False,
               z_loss: float = 0.0,
               judged: Callable[[Array], tuple[Array, Any]] | None = None
               ) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over positions, and sums that say how good heads are.

    Args:
      lm: The `heads.Headed` or `masks.Masked`.
      params: Its parameters in checkpoint layout.
      batch: See `lm.lm.states`.
      dropout: Of the noise, of places, and of the verifier's own dropout if it
        is trained.
      remat: Activations are computed again for the gradient.
      z_loss: Weight of log(Z)^2.
      judged: L_0 of the verifier's logits at the targets, and its sums; None:
        cross-entropy.

    Returns:
      The summed loss in nats, and sums over the targets: `tokens`, and for each
      head k `agreement_k` and `acceptance_k`, see `losses.Distillation`; where
      a text ends before k places further, they are 0. Those of L_0 are
      `agreement_0` and `acceptance_0`, with what the verifier was before.

    Raises:
      ValueError: With a prefix layer, rows hold several texts, or the verifier
        is to be trained.
    """
    joint = self.verifier > 0
    if joint and getattr(lm.heads, 'prefix', None) is not None:
      raise ValueError(f'Got verifier={self.verifier} of Ahead and heads '
                       'behind a prefix layer; allowed: 0, which leaves the '
                       'verifier as it is.')
    targets, weights = batch['targets'], batch['weights']
    places, counts = self._places(targets.shape[1], dropout)
    if not joint:
      params = dict(params, model=jax.lax.stop_gradient(params['model']))
    hidden, read = states(
        lm, params, batch, places, noise=self.noise, key=dropout, remat=remat,
        dropout=dropout if joint else None)
    own = lm.head(params, hidden)
    total, sums = jnp.float32(0), dict(tokens=weights.sum())
    if joint:
      loss, found = (losses.cross_entropy(own, targets, weights, z_loss=z_loss)
                     if judged is None else judged(own))
      total += self.verifier * loss
      if judged is not None:
        sums |= {f'{name}_0': x for name, x in found.items()
                 if name != 'tokens'}
    own = jax.lax.stop_gradient(own)
    at = lambda x: x[:, places]
    for k in range(1, lm.heads.count + 1):
      def part(params, read, k=k):
        logits = lm.ahead(params, k, read, at(upcoming(targets, k)))
        return self.distillation(
            logits, at(further(own, k)), at(further(targets, k)),
            at(weights_at(batch, k)) * counts[None], z_loss=z_loss)
      loss, found = (jax.checkpoint(part) if remat else part)(params, read)
      total += self.decay**k * loss
      sums |= {f'{name}_{k}': found[name]
               for name in ('agreement', 'acceptance')}
    return total, sums

  def _places(self, width, noise):
    """Where heads are read, and how often each place counts."""
    if self.every == 1 or noise is None:
      return jnp.arange(width), jnp.ones(width)
    first = jax.random.randint(jax.random.fold_in(noise, 1), (), 0, self.every)
    places = first + self.every * jnp.arange(-(-width // self.every))
    return (jnp.minimum(places, width - 1),
            jnp.where(places < width, float(self.every), 0.))


def states(lm: Any, params: Any, batch: Mapping[str, Array],
           places: Int[Array, ' G'] | None = None, *, noise: float = 0.0,
           key: Key[Array, ''] | None = None,
           dropout: Key[Array, ''] | None = None, remat: bool = False
           ) -> tuple[Float[Array, 'B T E'], Float[Array, 'B G *K E']]:
  """What the verifier's head reads at the targets, and what other heads read.

  Args:
    lm: The `heads.Headed` or `masks.Masked`; K masks have a state each.
    params: Its parameters in checkpoint layout.
    batch: See `lm.lm.states`.
    places: Of the targets, where other heads read; None: everywhere.
    noise: See `Ahead`.
    key: Of the noise; None: none.
    dropout: See `lm.lm.states`.
    remat: Activations are computed again for the gradient.

  Raises:
    ValueError: Noise is to be added before masks, which read no states.
  """
  if places is None:
    places = jnp.arange(batch['targets'].shape[1])
  if isinstance(lm, masks.Masked):
    if noise:
      raise ValueError(f'Got noise={noise} of Ahead and masks; allowed: 0, as '
                       'masks read no states of the verifier.')
    return lm.read(params, batch, places, dropout=dropout, remat=remat)
  if key is not None:
    key = jax.random.fold_in(key, 2)         # not dropout's, or that of places
  if lm.heads.prefix is None:
    own = lm.lm.states(params['model'], batch, dropout=dropout, remat=remat)
    return own, follow.noisy(own, noise, key)[:, places]
  tokens, found, encoded, at = follow.whole(lm, params, batch)
  before = jnp.pad(follow.noisy(found, noise, key), ((0, 0), (1, 0), (0, 0)))
  # The layer is one place behind: at n + 1 it has read the state at n.
  later, = follow.unrolled(lm, params, before, jnp.pad(
      tokens, ((0, 0), (0, 1))), encoded, 1, remat=remat)
  pick = lambda x, at: jnp.take_along_axis(x, at[..., None], 1)
  return pick(found, at), pick(later, at + 1)[:, places]


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
