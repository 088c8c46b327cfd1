"""Speculative cascades as models of T5X, for its train, eval and infer.

T5X's `params` are the drafter's: it trains, saves and restores them as those of
any T5. The verifier's are a second collection of the same state, which T5X
calls `flax_mutables`: an argument of every step without gradients or slots of
an optimizer. `WithVerifier` adds it when a checkpoint is restored,
`without_verifier` leaves it out when one is saved. T5X's minimal T5 trains and
scores; decoding is this package's own loop on the same parameters.

This is the only module that imports T5X, of which there is no release: see
requirements-t5x.txt.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, NamedTuple

from clu import metrics as clu_metrics
from flax import core
from flax import traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
import numpy as np
from t5x import losses as t5x_losses
from t5x import models

from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import types
from spec_cascades import warp
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import rules
from spec_cascades.models import t5
from spec_cascades.training import losses

VERIFIER, MUTABLES = 'verifier', 'flax_mutables'
# Of a T5Config, what no shape of a parameter shows.
UNSEEN = 'mlp_activations', 'num_heads', 'head_dim', 'relative_max_distance'
Batch = Mapping[str, Array]


class _Side(NamedTuple):
  """A model and its parameters in decode layout."""
  lm: t5.T5
  params: Any


class _Pair(NamedTuple):
  """As `pairs.Pair`, inside a compiled step."""
  verifier: _Side
  drafter: _Side


class SpeculativeModel(models.EncoderDecoderModel):
  """Decodes from pi = T(q, p); scores are those of the verifier.

  Reference: Narasimhan et al. (2025), Alg. 4, https://arxiv.org/abs/2405.19261
  """

  def __init__(self, module: Any, verifier_module: Any, *,
               rule: str = 'Lossless', alpha: float | None = None,
               temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0,
               drafter: str = drafting.CHAIN, gamma: int = 5, **kwargs: Any):
    """Checks everything; nothing is compiled.

    Args:
      module: The drafter, T5X's minimal `network.Transformer`.
      verifier_module: The verifier, another one.
      rule: T, a name in `rules.RULES`.
      alpha: Its threshold; None for its default, or a rule without one.
      temperature: Of both models; 0 is greedy.
      top_p: Of both models; 1 is off.
      top_k: Of both models; 0 is off.
      drafter: A key of `drafting.KINDS`; some don't use the drafter's module.
      gamma: Tokens drafted a round.
      **kwargs: As of `EncoderDecoderModel`.

    Raises:
      ValueError: A value that is not allowed, or two that don't fit.
    """
    self._rule = rules.make(rule, alpha)
    drafting.check_name(drafter, self._rule, gamma)
    if drafting.split(drafter)[1]:
      rest = ', '.join(x for x, kind in drafting.KINDS.items() if not kind.read)
      raise ValueError(f'The drafter {drafter} reads a file of its own, which '
                       f'T5X has no place for; allowed: {rest}.')
    rules.check_sampling(temperature, top_p, top_k)
    super().__init__(module, **kwargs)
    self.verifier = models.EncoderDecoderModel(verifier_module, **kwargs)
    self._lms = lm_of(verifier_module), lm_of(module)
    large, small = (lm.vocab_size for lm in self._lms)
    if large != small:
      raise ValueError(f'The verifier has vocab_size {large} and the drafter '
                       f'{small}; give both the same.')
    self._warp = warp.Warp(temperature, top_k, top_p)
    self._drafter, self._gamma = drafter, gamma

  def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, Any],
                            input_types: Mapping[str, Any] | None = None
                            ) -> core.FrozenDict:
    """The drafter's `params`, the verifier's as `verifier`, and their axes."""
    own = super().get_initial_variables(rng, input_shapes, input_types)
    other = self.verifier.get_initial_variables(rng, input_shapes, input_types)
    return core.freeze({**own, VERIFIER: other['params'],
                        f'{VERIFIER}_axes': other['params_axes']})

  def predict_batch_with_aux(
      self, params: Any, batch: Batch, rng: Array | None = None, *,
      flax_mutables: Any) -> tuple[Int[Array, 'B L'], dict[str, Array]]:
    """Decodes a batch.

    Args:
      params: The drafter's.
      batch: `encoder_input_tokens` [B, I], and `decoder_input_tokens` [B, L],
        of which only the width is read.
      rng: Of the samples, seed 0 if None. An example's sample depends on this
        and on its input, not on its batch-mates; T5X has another a batch.
      flax_mutables: Holds the verifier's parameters.

    Returns:
      Tokens, 0 after EOS; the counters of `stats.Stats` and `fault` (see
      `decode.State`), per row.
    """
    inputs = batch['encoder_input_tokens']
    b, length = batch['decoder_input_tokens'].shape
    pair = _Pair(*(_Side(lm, lm.pack(core.unfreeze(x), cut=True))
                   for lm, x in zip(self._lms,
                                    (flax_mutables[VERIFIER], params))))
    drafter, draft_params = drafting.make(self._drafter, pair, self._gamma)
    spec = decode.GenSpecSample(
        pair.verifier.lm, drafter, length + 1,
        drafting.split(self._drafter)[0].judge,
        self.output_vocabulary.eos_id)
    prompt = types.Prompt(jnp.zeros((b, 1), jnp.int32), jnp.ones(b, jnp.int32),
                          inputs)
    raw = jax.random.key_data(jax.random.key(0) if rng is None else rng)
    state = decode.run(spec, pair.verifier.params, draft_params, prompt,
                       decode.row_keys(jax.random.wrap_key_data(raw),
                                       fingerprints(inputs)),
                       self._rule, self._warp)
    counters = {f.name: getattr(state.stats, f.name)
                for f in dataclasses.fields(state.stats)}
    return state.tokens[:, 1:], {**counters, 'fault': state.fault}

  def predict_batch(self, params: Any, batch: Batch, rng: Array | None = None,
                    *, flax_mutables: Any) -> Int[Array, 'B L']:
    """The tokens of `predict_batch_with_aux`."""
    return self.predict_batch_with_aux(
        params, batch, rng, flax_mutables=flax_mutables)[0]

  def score_batch(self, params: Any, batch: Batch,
                  return_intermediates: bool = False, *,
                  flax_mutables: Any) -> Any:
    """Log-likelihood [B] of the batch's targets under the verifier."""
    del params
    return self.verifier.score_batch(flax_mutables[VERIFIER], batch,
                                     return_intermediates)


class DistillModel(SpeculativeModel):
  """Trains the drafter towards the verifier.

  Reference: Zhou et al. (2024), DistillSpec, https://arxiv.org/abs/2310.08461
  """

  def __init__(self, *args: Any,
               distillation: losses.Distillation = losses.Distillation(),
               label_smoothing: float = 0.0, **kwargs: Any):
    """A `SpeculativeModel` with a loss, in which labels can't be smoothed."""
    if label_smoothing:
      raise ValueError(f'Got label_smoothing={label_smoothing}; allowed: 0, '
                       'since the targets are the laws of the verifier.')
    super().__init__(*args, **kwargs)
    self._distillation = distillation

  def loss_fn(self, params: Any, batch: Batch, dropout_rng: Array | None,
              flax_mutables: Any) -> tuple[Array, tuple[Any, Any]]:
    """Loss over a batch's targets; T5X's metrics and the collections.

    `agreement` is how often both rank the same token first (greedy drafts that
    are accepted), `acceptance` is 1 - TVD (sampled ones that are).
    """
    logits = self._compute_logits(params, batch, dropout_rng)
    teacher = self.verifier._compute_logits(
        jax.lax.stop_gradient(flax_mutables[VERIFIER]), batch)
    factor, weights = t5x_losses.get_loss_normalizing_factor_and_weights(
        self._loss_normalizing_factor, batch)
    goal = batch['decoder_target_tokens']
    loss, sums = self._distillation(logits, teacher, goal, weights,
                                    z_loss=self._z_loss)
    loss = loss if factor is None else loss / factor
    metrics = self._compute_metrics(logits, goal, weights, loss)
    for name in ('agreement', 'acceptance'):
      metrics[name] = clu_metrics.Average(total=sums[name],
                                          count=sums['tokens'])
    return loss, (metrics, flax_mutables)

  def eval_fn(self, params: Any, batch: Batch, flax_mutables: Any
              ) -> tuple[Array, Any]:
    """The same without dropout, and without the collections."""
    loss, (metrics, _) = self.loss_fn(params, batch, None, flax_mutables)
    return loss, metrics


def lm_of(module: Any) -> t5.T5:
  """The `LanguageModel` with the parameters of a T5X module.

  Raises:
    ValueError: The module is not like T5X's minimal T5.
  """
  known = {f.name for f in dataclasses.fields(t5.T5Config)}
  given = getattr(module, 'config', None)
  config = {name: getattr(given, name) for name in known
            if hasattr(given, name)}
  scanned = getattr(given, 'scan_layers', False)
  if scanned or not {'num_decoder_layers', 'head_dim', 'dtype'} <= set(config):
    raise ValueError(f'Got the module {type(module).__name__}; allowed: the '
                     "Transformer of T5X's minimal T5, with its T5Config.")
  config['dtype'] = jnp.dtype(config['dtype']).name
  config['mlp_activations'] = tuple(config['mlp_activations'])
  return t5.T5(t5.T5Config(**config))


def fingerprints(inputs: Int[Array, 'B I']) -> Int[Array, 'B']:
  """A number for each row of tokens, whatever its padding."""
  powers = np.cumprod(np.full(inputs.shape[1], 0x9E3779B1, np.uint32),
                      dtype=np.uint32)
  return (inputs * powers.view(np.int32)).sum(1, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class WithVerifier:
  """Adds the verifier to a drafter's checkpoint as T5X restores it.

  One of `RestoreCheckpointConfig.state_transformation_fns`.

  Attributes:
    path: The verifier's checkpoint, in any format of `checkpoints`; every host
      reads all of it.
    module: T5X's module of the verifier, to be compared with what the files
      say of what no shape shows (`UNSEEN`); None compares nothing.
  """
  path: str
  module: Any = None

  def __call__(self, state: Any, wanted: Any, *, is_resuming: bool = False
               ) -> dict[str, Any]:
    """The state with `flax_mutables`, resuming or not.

    Raises:
      ValueError: The checkpoint can't be read, or is of another size; or the
        drafter's lacks parameters, which `fallback_to_scratch` would draw.
    """
    del is_resuming
    if missing := list(_lacking(wanted.get('target', {}),
                                state.get('target', {}))):
      raise ValueError(
          f"The drafter's checkpoint lacks {', '.join(missing[:3])}"
          f'{" and more" * (len(missing) > 3)}; give `module` the sizes of the '
          'checkpoint, or another checkpoint.')
    source = checkpoints.source_of(self.path)
    flat = traverse_util.flatten_dict(wanted[MUTABLES][VERIFIER], sep='/')
    shapes = {name: tuple(x.shape) for name, x in flat.items()}
    found = {name: tuple(x.shape) for name, x in source.leaves.items()}
    for name in sorted({*shapes, *found}):
      if shapes.get(name) != found.get(name):
        raise ValueError(
            f'{self.path} has {name} of shape {found.get(name)}, but the '
            f'verifier_module {shapes.get(name)}; give its T5Config the sizes '
            'of the checkpoint.')
    self._compare(source)
    read = {name: np.asarray(leaf.read()).astype(flat[name].dtype)
            for name, leaf in source.leaves.items()}
    return {**state, MUTABLES: {VERIFIER: traverse_util.unflatten_dict(
        read, sep='/')}}

  def _compare(self, source):
    """Refuses what has the shapes of the module, but computes otherwise."""
    if source.tokens is not None:
      raise ValueError(f'{self.path} predicts {len(source.tokens)} of its '
                       'tokens; allowed: a verifier of all.')
    if self.module is None:
      return
    ours, theirs = lm_of(self.module).config, source.lm.config
    for name in UNSEEN:
      there, here = getattr(theirs, name), getattr(ours, name)
      if there != here:
        raise ValueError(
            f'{self.path} has {name} {there!r}, but the verifier_module '
            f'{here!r}; give its T5Config that of the checkpoint. (A T5X '
            'checkpoint does not say; if the module is right, set '
            't5x_models.WithVerifier.module=None.)')


def _lacking(wanted, found, path=()):
  """Names in a tree that another has not; its arrays may be there unread."""
  if isinstance(wanted, Mapping):
    for name, inner in wanted.items():
      there = found.get(name) if isinstance(found, Mapping) else None
      yield from _lacking(inner, there, (*path, name))
  elif found is None:
    yield '/'.join(path)


def without_verifier(state: Any, infos: Any) -> tuple[Any, Any]:
  """Leaves the verifier out of what T5X saves.

  One of `SaveCheckpointConfig.state_transformation_fns`.
  """
  return tuple({name: x for name, x in tree.items() if name != MUTABLES}
               for tree in (state, infos))
