"""What makes the first layers of a verifier good drafters: LayerSkip."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
import numpy as np

from spec_cascades import check
from spec_cascades.models import skip
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Exits:
  """sum_l w_l CE_l: each layer's states, read by the head, say the next token.

  Exits are behind the layers l = 0 .. L - 1 of the decoder, the last of which
  is the model itself. Of the L - 1 others a step reads one in `every`, drawn
  for each batch, where the paper takes turns. With S_l = 0 + 1 + .. + l,

    w_l = scale S_l for l < L - 1,   w_{L-1} = L - 1 + scale S_{L-2},

  over their sum. While training, layer l is left out with the probability
  layer_dropout (2^(l / (L - 1)) - 1), S(t) = 1 in the paper; here for a whole
  batch at once, not for each of its rows. Decoding is then
  `drafters.early_exit` with any number of layers, of the trained model.

  Attributes:
    layer_dropout: p_max, the probability for the last layer.
    scale: e_scale, of the weight of all exits but the last.
    every: R, the distance of the exits that a step reads.

  Reference: Elhoushi et al. (2024), LayerSkip, sec. 4.1,
    https://arxiv.org/abs/2404.16710
  """
  layer_dropout: float = 0.1
  scale: float = 0.2
  every: int = 1
  verifier: ClassVar[float] = 1.0    # all of it is trained, see `ahead.Ahead`

  def __post_init__(self):
    check.interval('layer_dropout of Exits', self.layer_dropout, 0, 1)
    check.interval('scale of Exits', self.scale, 0, 1, above=True,
                   hint='It is the weight of exits beside the last layer.')
    check.interval('every of Exits', self.every, 1, 10**6, whole=True)

  def __call__(self, lm: Any, params: Any, batch: Mapping[str, Array], *,
               dropout: Key[Array, ''] | None = None, remat: bool = False,
               z_loss: float = 0.0) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over the targets, and sums that say how good exits are.

    Args:
      lm: A T5 or a decoder.
      params: Its parameters in checkpoint layout.
      batch: See `lm.states`.
      dropout: Of the model's noise, of which layers are left out and which
        exits are read; None: no noise, all layers, the first exits.
      remat: Activations are computed again for the gradient.
      z_loss: Weight of log(Z)^2.

    Returns:
      The summed loss in nats, and sums over the targets: `tokens`, and means
      over the exits that were read, see `losses.Distillation`: `agreement` with
      the last layer, and `acceptance`.

    Raises:
      ValueError: The model has one layer.
    """
    depth, key = skip.layers_of(lm), dropout
    if depth < 2:
      raise ValueError(f'Got a decoder of {depth} layer and exits; allowed: 2 '
                       'or more.')
    targets, weights = batch['targets'], batch['weights']
    lm = dataclasses.replace(lm, taps=tuple(range(depth - 1)))
    states = lm.states(self._thinned(lm, params, key), batch, dropout=dropout,
                       remat=remat)
    own, *left = jnp.split(states, depth, -1)
    own, left = lm.head(params, own), jnp.stack(left)
    read, there, shares = self._read(depth, key)
    total = shares[-1] * losses.cross_entropy(own, targets, weights,
                                              z_loss=z_loss)[0]
    compare, fixed = losses.Distillation(mix=1.), jax.lax.stop_gradient(own)

    def part(params, states):
      logits = lm.head(params, lm.exit(params, states))
      return compare(logits, fixed, targets, weights, z_loss=z_loss)

    def add(total, exit):              # one after the other: compiled once
      states, share, there = exit
      loss, sums = (jax.checkpoint(part) if remat else part)(params, states)
      return total + share * loss, {name: there * sums[name] for name in (
          'agreement', 'acceptance')}

    total, found = jax.lax.scan(add, total, (left[read], shares[:-1], there))
    means = {name: x.sum() / there.sum() for name, x in found.items()}
    return total, dict(tokens=weights.sum(), **means)

  def _thinned(self, lm, params, key):
    """Parameters of which left-out layers add nothing."""
    if key is None or not self.layer_dropout:
      return params
    depth = skip.layers_of(lm)
    stays = 1 - jax.random.bernoulli(
        jax.random.fold_in(key, 1),
        self.layer_dropout * jnp.asarray(rates(depth))).astype(jnp.float32)
    return skip.weighted(lm, params, {
        (i, name): stays[i] for i, name in skip.sublayers(lm)})

  def _read(self, depth, key):
    """Exits but the last, which of them there are, and weights of all."""
    first = 0
    if key is not None:
      first = jax.random.randint(jax.random.fold_in(key, 2), (), 0,
                                 min(self.every, depth - 1))
    read = first + self.every * jnp.arange(-(-(depth - 1) // self.every))
    there = (read < depth - 1).astype(jnp.float32)
    read = jnp.minimum(read, depth - 2)
    each = jnp.asarray(scales(depth, self.scale))
    shares = jnp.append(there * each[read], each[-1])
    return read, there, shares / shares.sum()


def rates(depth: int) -> Float[np.ndarray, ' L']:
  """Of layer dropout beside the last layer's: D(l) = e^(l ln 2 / (L - 1)) - 1.
  """
  return np.expm1(np.arange(depth) * math.log(2) / (depth - 1)).astype('f4')


def scales(depth: int, scale: float) -> Float[np.ndarray, ' L']:
  """Weights of exits, e(l), before they are made to sum to 1."""
  sums = np.cumsum(np.arange(depth))
  last = depth - 1 + scale * sums[-2]
  return np.append(scale * sums[:-1], last).astype('f4')
