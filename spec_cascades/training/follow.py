"""What a layer that predicts a verifier's states, or its tokens, is trained on.
"""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
import optax

from spec_cascades import check
from spec_cascades.models import segments
from spec_cascades.training import losses


@dataclasses.dataclass(frozen=True)
class Follow:
  """sum_j decay^j (regression SmoothL1(y_j, f) + classification D(p, q_j)).

  Of a `features.Featured`, at every token of a text. y_0 is what the layer
  makes of the verifier's states before the token, with noise, and y_j what it
  drafts there in a round that began j tokens before, see `unrolled`. f is the
  verifier's own state and p its prediction; the first term is a mean over the
  width. With `mix` 0, D is a divergence between the verifier's head on f and on
  y: the published cross-entropy less the entropy of p, which has no gradient.
  The verifier stays as it is.

  EAGLE is the default; EAGLE-3 is regression 0, classification 1, noise 0 and
  `steps` as long as drafts are.

  Attributes:
    classification: Weight of D.
    noise: Uniform noise from -noise to noise is added to what the layer reads
      of the verifier, while training.
    distillation: D.
    regression: Weight of SmoothL1; at 0 states may be anything.
    steps: How many tokens are drafted from each position.
    decay: Of the weight from step to step.

  References: Li et al. (2024), sec. 3.2, https://arxiv.org/abs/2401.15077;
    Li et al. (2025), EAGLE-3, sec. 3.2, https://arxiv.org/abs/2503.01840
  """
  classification: float = 0.1
  noise: float = 0.1
  distillation: losses.Distillation = losses.Distillation()
  regression: float = 1.0
  steps: int = 1
  decay: float = 0.8
  verifier: ClassVar[float] = 0.0    # see `ahead.Ahead`

  def __post_init__(self):
    for name in ('classification', 'noise', 'regression'):
      check.interval(f'{name} of Follow', getattr(self, name), 0, 1e6)
    check.interval('steps of Follow', self.steps, 1, 1000, whole=True,
                   hint='It counts tokens of a draft.')
    check.interval('decay of Follow', self.decay, 0, 1, above=True,
                   hint='It is the weight of step j + 1 beside step j.')

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
      The summed loss, and sums over the targets: `tokens`, `distance` (SmoothL1
      of y_0, unless its weight is 0), and `agreement` and `acceptance` of y_0,
      see `losses.Distillation`; of y_j `agreement_j` and `acceptance_j`, which
      are 0 at the first j targets, where no round has begun.

    Raises:
      ValueError: Rows hold several texts.
    """
    tokens, hidden, encoded, at = whole(lm, params, batch)
    params = dict(params, model=jax.lax.stop_gradient(params['model']))
    before = jnp.pad(lm.given(params, hidden[:, :-1]),
                     ((0, 0), (1, 0), (0, 0)))
    drafted = unrolled(lm, params, noisy(before, self.noise, dropout), tokens,
                       encoded, self.steps, remat=remat)
    true = _pick(hidden, at)
    total, sums = jnp.float32(0), {}
    for j, states in enumerate(drafted):
      found = _pick(states, at)
      begun = jnp.arange(at.shape[1]) >= j
      weights = jnp.where(begun[None], batch['weights'], 0)
      loss, said = self.distillation(
          lm.head(params, found), lm.head(params, true), batch['targets'],
          weights, z_loss=z_loss)
      loss *= self.classification
      if self.regression:
        said['distance'] = _distance(found, true, weights)
        loss += self.regression * said['distance']
      total += self.decay**j * loss
      if j:
        said = {f'{name}_{j}': said[name]
                for name in ('agreement', 'acceptance')}
      sums |= said
    return total, sums


def whole(lm: Any, params: Any, batch: Mapping[str, Array]
          ) -> tuple[Int[Array, 'B N'], Float[Array, 'B N W'], Any,
                     Int[Array, 'B T']]:
  """Texts as the verifier reads them; without a gradient.

  Args:
    lm: A `layered.Layered` model.
    params: Its parameters in checkpoint layout.
    batch: One text a row, see `lm.lm.states`.

  Returns:
    Tokens, the states that `lm.verifier` has at them, what the layer reads of
    an encoder, and where the targets are predicted.

  Raises:
    ValueError: Rows hold several texts.
  """
  if 'target_segments' in batch:
    raise ValueError('Got packed texts to train a layer beside a verifier on; '
                     'allowed: one text a row. Set data.ParallelText.packed = '
                     'False.')
  read = _encoded if lm.crosses else _joined
  return jax.lax.stop_gradient(read(lm.verifier, params['model'], batch))


def noisy(x: Float[Array, 'B N E'], noise: float,
          key: Key[Array, ''] | None) -> Float[Array, 'B N E']:
  """x with uniform noise from -noise to noise; as it is without a key."""
  if key is None or not noise:
    return x
  return x + jax.random.uniform(key, x.shape, x.dtype, -noise, noise)


def unrolled(lm: Any, params: Any, before: Float[Array, 'B N E'],
             tokens: Int[Array, 'B N'], encoded: Any, steps: int, *,
             remat: bool = False) -> list[Float[Array, 'B N E']]:
  """y_j [B, N, E] for j = 0 .. steps - 1: drafts from every position at once.

  y_j[i] is the layer's state at token i in a round whose root is token i - j,
  when its drafts are the text: what `eagle.Eagle` computes at its node j. At
  tokens up to the root it has read what the verifier made of the tokens before
  (step 0), behind it y of the step before. So at step j, token i sees

      keys of step 0         at 0 .. i - j
      keys of step m, 1..j   at i - j + m

  Every step attends to the keys of all before it, with j + 1 times the scores
  of step 0. With i < j there is no such round, and y_j[i] means nothing.

  Args:
    lm: A `layered.Layered` model.
    params: Its parameters in checkpoint layout.
    before: g before each token, see `models.layered`; zeros before the first.
    tokens: Texts; what is padded is behind what is not.
    encoded: See `lm.encoded`.
    steps: Tokens of a draft.
    remat: Activations are computed again for the gradient.

  Reference: Li et al. (2025), EAGLE-3, sec. 3.2 (training-time test)
  """
  i = jnp.arange(tokens.shape[1])
  apart = i[:, None] - i[None]
  keys, found = (), []
  for j in range(steps):
    seen = [apart >= j] + [apart == j - m for m in range(1, j + 1)]
    mask = jnp.broadcast_to(jnp.concatenate(seen, 1),
                            (len(tokens), len(i), (j + 1) * len(i)))

    def step(params, before, keys, mask=mask, j=j):
      join = lambda *xs: jnp.concatenate(xs, 2)              # [B, H, N, D]
      write = lambda block: jax.tree.map(join, keys, block) if j else block
      return lm.follow(params, before, tokens,
                       jnp.tile(apart, (1, j + 1))[None], mask, encoded, write)

    states, keys = (jax.checkpoint(step) if remat else step)(
        params, before, keys)
    found.append(states)
    before = jnp.pad(states[:, :-1], ((0, 0), (1, 0), (0, 0)))
  return found


def _distance(found, true, weights):
  """SmoothL1, a mean over the width and a sum over targets."""
  wide = lambda x: x.astype(jnp.float32)
  true = true[..., :found.shape[-1]]
  distance = optax.losses.huber_loss(wide(found), wide(true)).mean(-1)
  return (distance * weights).sum()


def _pick(x, at):
  return jnp.take_along_axis(x, at[..., None], 1)


def _encoded(verifier, model, batch):
  """Decoder inputs, states, what is read of the encoder, and the targets'."""
  targets = batch['targets']
  tokens = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
  memory = verifier.apply(model, batch['inputs'], method='memory')[-1]
  at = jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape)
  return (tokens, verifier.states(model, batch), (memory, batch['inputs']), at)


def _joined(verifier, model, batch):
  """The same of a model that reads inputs and targets as one text."""
  tokens, at = segments.behind(batch['inputs'], batch['input_lengths'],
                               batch['targets'])
  states = verifier.module.apply({'params': model}, tokens, method='states')
  return tokens, states, None, at
