"""What makes a verifier settle several tokens in a round of Jacobi decoding."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades.models import segments
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Consistent:
  """verifier L_AR + settled L_G + adjacent L_L, over Jacobi trajectories.

  L_AR is the cross-entropy of a text that the model wrote. A state of its
  trajectory is a place in the text and guesses g_1 .. g_K of the tokens behind
  it; y_1 .. y_K are the text's, the fixed point. L_G is the mean over states of

    sum_i D(p(. | text, y_1 .. y_i), p(. | text, g_1 .. g_i))

  and L_L the same with the state of the next round in place of y; the first p
  of each is held fixed, the second learns. Guesses are read as branches of
  the text, in the same pass. Decoding is then `drafters.jacobi` with as many
  guesses, of the trained model.

  Attributes:
    verifier: Weight of L_AR, above 0: the model is to stay a verifier.
    settled: Weight of L_G, the global loss.
    adjacent: Weight of L_L, the local loss.
    states: Of a text, drawn for each batch; all where it has fewer.
    distillation: D.

  Reference: Kou et al. (2024), CLLM, sec. 3.2 and eq. 4 (L_G),
    https://arxiv.org/abs/2403.00835
  """
  verifier: float = 1.0
  settled: float = 1.0
  adjacent: float = 0.0
  states: int = 4
  distillation: losses.Distillation = losses.Distillation()

  def __post_init__(self):
    check.interval('verifier of Consistent', self.verifier, 0, 1e6, above=True,
                   hint='It is the weight of the text itself.')
    for name in ('settled', 'adjacent'):
      check.interval(f'{name} of Consistent', getattr(self, name), 0, 1e6)
    check.interval('states of Consistent', self.states, 1, 10**6, whole=True)
    if self.distillation.mix:
      raise ValueError(f'Got mix={self.distillation.mix} for Consistent; '
                       'allowed: 0, a divergence alone. L_AR has a weight.')

  def __call__(self, lm: Any, params: Any, batch: Mapping[str, Array], *,
               dropout: Key[Array, ''] | None = None, remat: bool = False,
               z_loss: float = 0.0) -> tuple[Array, dict[str, Array]]:
    """Weighted sum over texts, and sums that say how consistent the model is.

    Args:
      lm: A T5 or a decoder.
      params: Its parameters in checkpoint layout.
      batch: See `lm.states`; and `trajectories.padded`.
      dropout: Of the model's noise, and of which states are read; None: the
        first states, no noise.
      remat: Activations are computed again for the gradient.
      z_loss: Weight of log(Z)^2, in L_AR.

    Returns:
      The summed loss in nats, and sums over the targets: `tokens`, and means
      over guessed positions, times `tokens`, see `losses.Distillation`:
      `agreement` with the fixed point, and `acceptance`.
    """
    targets, weights = batch['targets'], batch['weights']
    chosen = self._chosen(batch['places'], dropout)
    places, guesses = at(batch['places'], chosen), at(batch['guesses'], chosen)
    count, length = places.shape[1], guesses.shape[2]
    read = guesses
    if self.adjacent:
      read = jnp.concatenate([guesses, later(batch, chosen)], 1)
    branches = segments.Branches(
        lm.embed(params, read),
        jnp.tile(jnp.maximum(places, 0), (1, read.shape[1] // count)))
    hidden, states = branches.parted(lm.states(
        params, batch, dropout=dropout, remat=remat, branches=branches))
    own = lm.head(params, hidden)
    loss, tokens = losses.cross_entropy(own, targets, weights, z_loss=z_loss)
    total, own = self.verifier * loss, jax.lax.stop_gradient(own)
    there = (places >= 0).astype(jnp.float32)
    share = there / jnp.maximum(there.sum(1, keepdims=True), 1)
    found = dict.fromkeys(('tokens', 'agreement', 'acceptance'), 0.)
    for k in range(1, length + 1):
      slot = jnp.maximum(places, 0) + k
      inside = slot < targets.shape[1]
      slot = jnp.minimum(slot, targets.shape[1] - 1)
      real = jnp.where(inside, at(weights, slot) * share, 0)

      def part(params, states, k=k, slot=slot, real=real):
        logits = lm.head(params, states[:, :, k - 1])
        against = lambda p: self.distillation(
            logits[:, :count], p, at(targets, slot), real)
        term, sums = against(at(own, slot))
        term *= self.settled
        if self.adjacent:
          fixed = jax.lax.stop_gradient(logits[:, count:])
          term += self.adjacent * against(fixed)[0]
        return term, sums
      term, sums = (jax.checkpoint(part) if remat else part)(params, states)
      total += term
      found = {name: found[name] + sums[name] for name in found}
    many = tokens / jnp.maximum(found['tokens'], 1e-6)
    return total, dict(tokens=tokens, agreement=found['agreement'] * many,
                       acceptance=found['acceptance'] * many)

  def _chosen(self, places, noise):
    """Which states of each text are read, those that there are first."""
    order = jnp.zeros(places.shape)
    if noise is not None:
      order = jax.random.uniform(jax.random.fold_in(noise, 1), places.shape)
    return jax.lax.top_k(jnp.where(places >= 0, order, -1),
                         min(self.states, places.shape[1]))[1]


def at(x: Array, index: Int[Array, 'B G']) -> Array:
  """x[b, index[b, g]] for every row b and every g."""
  return jax.vmap(lambda row, i: row[i])(x, index)


def later(batch: Mapping[str, Array], chosen: Int[Array, 'B G']
          ) -> Int[Array, 'B G K']:
  """The next round's tokens where some states have their guesses.

  Tokens that it has settled by then are the text's; after the last round all
  are. With two settled and then four of 7 8 9 5 6 3, and guesses 9 9 9 of the
  one round and 6 6 6 of the next: 9 9 9 becomes 9 5 6.
  """
  places, targets = batch['places'], batch['targets']
  after = jnp.pad(places[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
  after = jnp.where(after < 0, 2**30, after)
  guesses = jnp.pad(batch['guesses'][:, 1:], ((0, 0), (0, 1), (0, 0)))
  places, after, guesses = (at(x, chosen) for x in (places, after, guesses))
  length = guesses.shape[2]
  slot = jnp.maximum(places, 0)[..., None] + jnp.arange(length)[None, None]
  text = at(targets, jnp.minimum(slot, targets.shape[1] - 1).reshape(
      len(slot), -1)).reshape(slot.shape)
  ahead = slot - after[..., None]
  guessed = jnp.take_along_axis(guesses, jnp.maximum(ahead, 0), 2)
  return jnp.where(ahead < 0, text, guessed)
