"""T5X's models: our decoding and distillation behind its own interfaces."""
import dataclasses
import functools

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('t5x.models',
                    reason='T5X is not installed (not on the index)')
import seqio  # noqa: E402
from t5x import adafactor  # noqa: E402
from t5x import checkpoints as t5x_checkpoints  # noqa: E402
from t5x import decoding  # noqa: E402
from t5x import models  # noqa: E402
from t5x import partitioning  # noqa: E402
from t5x import trainer  # noqa: E402
from t5x import train_state  # noqa: E402
from t5x import utils  # noqa: E402
from t5x.examples.scalable_t5 import network as scalable  # noqa: E402
from t5x.examples.t5 import network  # noqa: E402

from spec_cascades import checkpoints  # noqa: E402
from spec_cascades import decode  # noqa: E402
from spec_cascades import targets  # noqa: E402
from spec_cascades import types  # noqa: E402
from spec_cascades import warp  # noqa: E402
from spec_cascades import t5x_models  # noqa: E402
from spec_cascades.checkpoints import t5x as t5x_format  # noqa: E402
from spec_cascades.drafters import chain  # noqa: E402
from spec_cascades.training import divergences  # noqa: E402
from spec_cascades.training import losses  # noqa: E402
from tests.models import tiny  # noqa: E402

VOCABULARY = seqio.PassThroughVocabulary(tiny.VOCAB, eos_id=1)
ROWS, WIDTH, LENGTH, GAMMA = 6, 9, 16, 3
SHAPES = dict(encoder_input_tokens=(ROWS, WIDTH),
              decoder_input_tokens=(ROWS, LENGTH))


@pytest.fixture(autouse=True)
def t5x_promotes():
  """T5X's modules mix ranks and dtypes."""
  with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion('standard'):
    yield


def module(layers, **changes):
  sizes = dict(vocab_size=tiny.VOCAB, emb_dim=16, num_heads=2, head_dim=8,
               num_encoder_layers=1, num_decoder_layers=layers, mlp_dim=16,
               mlp_activations=('gelu', 'linear'), dropout_rate=0.0,
               dtype='float32')
  return network.Transformer(network.T5Config(**{**sizes, **changes}))


LARGE, SMALL = module(2), module(1)


def common():
  return dict(input_vocabulary=VOCABULARY, output_vocabulary=VOCABULARY,
              optimizer_def=adafactor.Adafactor(
                  decay_rate=0.8, logical_factor_rules=(
                      adafactor.standard_logical_factor_rules())))


def make(kind=t5x_models.SpeculativeModel, **kwargs):
  kwargs = {**common(), 'gamma': GAMMA, **kwargs}
  return kind(SMALL, LARGE, **kwargs)


@functools.cache
def parameters():
  """Of the verifier, and of a drafter that often agrees with it."""
  lms = [t5x_models.lm_of(x) for x in (LARGE, SMALL)]
  large, small = (tiny.params_of(lm, seed) for seed, lm in enumerate(lms))
  small['decoder']['logits_dense'] = large['decoder']['logits_dense']
  small['token_embedder'] = large['token_embedder']
  return large, small


def batch(seed=0):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(2, WIDTH + 1, ROWS)
  inputs = rng.integers(2, tiny.VOCAB, (ROWS, WIDTH))
  inputs = np.where(np.arange(WIDTH) < lengths[:, None], inputs, 0)
  goal = rng.integers(2, tiny.VOCAB, (ROWS, LENGTH))
  goal = np.where(np.arange(LENGTH) < lengths[:, None] + 4, goal, 0)
  return {name: jnp.asarray(x, jnp.int32) for name, x in dict(
      encoder_input_tokens=inputs, decoder_target_tokens=goal,
      decoder_input_tokens=np.pad(goal[:, :-1], ((0, 0), (1, 0))),
      decoder_loss_weights=goal > 0).items()}


def predict(model, given, rng=None):
  large, small = parameters()
  step = jax.jit(model.predict_batch_with_aux)
  return jax.device_get(step(small, given, rng, flax_mutables={
      t5x_models.VERIFIER: large}))


@functools.cache
def greedy_of_t5x():
  """What T5X's own sampler writes with the verifier alone."""
  model = models.EncoderDecoderModel(LARGE, decode_fn=functools.partial(
      decoding.temperature_sample, temperature=0.0), **common())
  return np.asarray(jax.jit(model.predict_batch)(parameters()[0], batch()))


def by_the_engine(target, temperature):
  """What our loop writes outside of T5X, and its state."""
  large, small = parameters()
  lms = [t5x_models.lm_of(x) for x in (LARGE, SMALL)]
  spec = decode.GenSpecSample(lms[0], chain.Chain(lms[1], GAMMA), LENGTH + 1)
  inputs = batch()['encoder_input_tokens']
  prompt = types.Prompt(jnp.zeros((ROWS, 1), jnp.int32),
                        jnp.ones(ROWS, jnp.int32), inputs)
  keys = decode.row_keys(0, t5x_models.fingerprints(inputs))
  state = spec(lms[0].pack(large), lms[1].pack(small), prompt, keys, target,
               warp.Warp(temperature))
  return jax.device_get((state.tokens[:, 1:], state.stats))


def test_some_rows_end_before_the_others():
  ended = (greedy_of_t5x() == 1).any(1)
  assert ended.any() and not ended.all()


SLOW = pytest.mark.slow


@pytest.mark.parametrize('drafter', ['chain', *(
    pytest.param(x, marks=SLOW) for x in ('tree', 'ngram', 'skip', 'null'))])
def test_lossless_greedy_tokens_are_t5x_own_of_the_verifier(drafter):
  tokens, aux = predict(make(drafter=drafter), batch())
  np.testing.assert_array_equal(tokens, greedy_of_t5x())
  np.testing.assert_array_equal(aux['emitted'], [
      LENGTH if 1 not in row else row.tolist().index(1) + 1 for row in tokens])
  assert not aux['fault'].any()


@pytest.mark.parametrize('rule,alpha,target,temperature', [
    ('Chow', 0.4, targets.Chow(alpha=0.4), 0.0),
    pytest.param('Lossless', None, targets.Lossless(), 0.0, marks=SLOW),
    pytest.param('TokenV3', 0.6, targets.TokenV3(alpha=0.6), 0.8, marks=SLOW)])
def test_tokens_and_counters_are_those_of_the_engine(rule, alpha, target,
                                                     temperature):
  model = make(rule=rule, alpha=alpha, temperature=temperature)
  tokens, aux = predict(model, batch())
  want, stats = by_the_engine(target, temperature)
  np.testing.assert_array_equal(tokens, want)
  assert set(aux) == {f.name for f in dataclasses.fields(stats)} | {'fault'}
  for f in dataclasses.fields(stats):
    np.testing.assert_allclose(aux[f.name], getattr(stats, f.name), rtol=1e-5)
    assert len(aux[f.name]) == ROWS
  assert 0 < aux['accepted'].sum() < aux['drafted'].sum()


def test_a_sample_depends_on_its_input_and_on_the_seed_alone():
  model, given = make(temperature=1.0), batch()
  tokens, _ = predict(model, given)
  order = np.array([3, 1, 5, 5, 0, 2])
  moved, _ = predict(model, {name: x[order] for name, x in given.items()})
  np.testing.assert_array_equal(moved, tokens[order])
  other, _ = predict(model, given, jax.random.PRNGKey(1))    # as T5X makes it
  assert (other != tokens).any(1).sum() > 1
  inputs = given['encoder_input_tokens']
  ids = t5x_models.fingerprints(inputs)
  assert len(set(ids.tolist())) == ROWS
  np.testing.assert_array_equal(
      t5x_models.fingerprints(jnp.pad(inputs, ((0, 0), (0, 7)))), ids)


def test_scores_are_those_of_the_verifier():
  large, small = parameters()
  alone = models.EncoderDecoderModel(LARGE, **common())
  got = jax.jit(make().score_batch)(small, batch(), flax_mutables={
      t5x_models.VERIFIER: large})
  want = jax.jit(alone.score_batch)(large, batch())
  np.testing.assert_allclose(got, want, rtol=1e-6)


def distilling(**kwargs):
  return make(t5x_models.DistillModel, **kwargs)


def test_the_loss_is_the_distillation_of_our_models():
  loss = losses.Distillation(divergences.JSD(0.3), mix=0.25)
  model, (large, small), given = distilling(
      distillation=loss, z_loss=1e-3), parameters(), batch()
  got, (metrics, kept) = jax.jit(model.loss_fn)(
      small, given, None, {t5x_models.VERIFIER: large})
  pair = dict(inputs=given['encoder_input_tokens'],
              targets=given['decoder_target_tokens'])
  forward = lambda x, params: jax.jit(t5x_models.lm_of(x).teacher_forced)(
      params, pair)
  want, sums = loss(forward(SMALL, small), forward(LARGE, large),
                    pair['targets'], given['decoder_loss_weights'], z_loss=1e-3)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  for name in ('agreement', 'acceptance'):
    np.testing.assert_allclose(metrics[name].compute(),
                               sums[name] / sums['tokens'], rtol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, kept[t5x_models.VERIFIER], large)


def state_of(model):
  """T5X's state of fresh variables, with our parameters in them."""
  large, small = parameters()
  variables = model.get_initial_variables(jax.random.key(0), SHAPES)
  state = train_state.FlaxOptimTrainState.create(model.optimizer_def, variables)
  state = state.replace_flax_mutables({t5x_models.VERIFIER: large})
  return state.replace_params(small)


@functools.cache
def trained(steps, microbatches=None):
  """The model, its state before and after steps of T5X, and the losses."""
  model, values = distilling(), []
  before = state = state_of(model)
  step = jax.jit(functools.partial(
      trainer.train_with_lr, model=model, learning_rate=0.01,
      num_microbatches=microbatches, data_partition_spec=None))
  for i in range(steps):
    state, metrics = step(state, batch(), dropout_rng=jax.random.key(i))
    values.append(float(metrics['loss_per_nonpadding_target_token'].compute()))
  return model, before, state, values


def test_steps_of_t5x_train_the_drafter_and_leave_the_verifier():
  _, before, after, values = trained(8)
  assert values[-1] < 0.8 * values[0]
  jax.tree.map(np.testing.assert_array_equal,
               after.flax_mutables[t5x_models.VERIFIER], parameters()[0])
  changed = jax.tree.map(lambda x, y: bool((x != y).any()), before.params,
                         after.params)
  assert all(jax.tree.leaves(changed))
  slots = traverse_util.flatten_dict(after.state_dict()['state'], sep='/')
  assert any('decoder/' in name for name in slots)
  assert not any(t5x_models.VERIFIER in name for name in slots)


@SLOW
def test_microbatches_give_the_step_of_the_whole():
  """The loss is a sum, so parts add up."""
  whole, parts = (trained(1, n)[2].params for n in (None, 2))
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5),
               parts, whole)


def manager(model, directory):
  start = utils.TrainStateInitializer(
      model.optimizer_def, model.get_initial_variables, SHAPES,
      partitioning.PjitPartitioner(num_partitions=1))
  return t5x_checkpoints.OrbaxCheckpointManagerInterface(
      str(directory), start.global_train_state_shape, start._partitioner)


def test_checkpoints_hold_the_drafter_and_are_restored_with_the_verifier(
    tmp_path):
  model, _, state, _ = trained(8)
  saves = manager(model, tmp_path)
  saves.save(state, [t5x_models.without_verifier])
  saves.wait_until_finished()
  found = checkpoints.load(tmp_path)
  assert found.lm == t5x_models.lm_of(SMALL)
  jax.tree.map(np.testing.assert_array_equal, found.params,
               jax.device_get(state.params))
  verifier = t5x_format.save(tmp_path / 'verifier', parameters()[0])
  back = saves.restore(path=str(tmp_path / 'checkpoint_8'),
                       state_transformation_fns=[
                           t5x_models.WithVerifier(str(verifier))])
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(
      back.state_dict()), jax.device_get(state.state_dict()))


def test_the_verifier_is_sharded_like_any_model():
  model = distilling()
  start = utils.TrainStateInitializer(
      model.optimizer_def, model.get_initial_variables, SHAPES,
      partitioning.PjitPartitioner(num_partitions=1))
  axes = start.train_state_axes.flax_mutables[t5x_models.VERIFIER]
  mlp = axes['decoder']['layers_1']['mlp']
  assert mlp['wo']['kernel'] == jax.sharding.PartitionSpec('model', None)
  assert mlp['wi_0']['kernel'] == jax.sharding.PartitionSpec(None, 'model')


def test_a_verifier_of_another_size_is_refused(tmp_path):
  small = t5x_format.save(tmp_path, parameters()[1])
  wanted = {t5x_models.MUTABLES: {t5x_models.VERIFIER: parameters()[0]}}
  with pytest.raises(ValueError, match='layers_1.* of shape None, but the'):
    t5x_models.WithVerifier(str(small))({}, wanted)
  with pytest.raises(ValueError, match='No checkpoint at'):
    t5x_models.WithVerifier(str(tmp_path / 'nowhere'))({}, wanted)


def test_a_drafter_that_lacks_parameters_is_refused(tmp_path):
  """Not drawn at random, as `fallback_to_scratch` would; slots may lack."""
  small = t5x_format.save(tmp_path, parameters()[0])
  drafter = jax.tree.map(np.asarray, dict(parameters()[1]))
  wanted = {'target': drafter, 'state': {'slots': 1},
            t5x_models.MUTABLES: {t5x_models.VERIFIER: parameters()[0]}}
  there = {**drafter, 'decoder': {**drafter['decoder']}}
  read = t5x_models.WithVerifier(str(small))
  read({'target': there}, wanted)
  del there['decoder']['decoder_norm']
  with pytest.raises(ValueError, match="drafter's checkpoint lacks decoder/deco"
                     'der_norm/scale; give'):
    read({'target': there}, wanted)


def test_a_verifier_that_computes_otherwise_is_refused(tmp_path):
  """Its shapes are the module's."""
  path = t5x_format.save(tmp_path, parameters()[0])
  wanted = {t5x_models.MUTABLES: {t5x_models.VERIFIER: parameters()[0]}}
  read = lambda module: t5x_models.WithVerifier(str(path), module)({}, wanted)
  read(None)
  read(LARGE)
  for name, value in (('mlp_activations', ['relu', 'linear']),
                      ('num_heads', 1), ('head_dim', 16)):
    with pytest.raises(ValueError, match=f'has {name} .*module=None'):
      read(module(2, **{name: value}))


@pytest.mark.parametrize('kwargs,message', [
    (dict(rule='Chau'), "Unknown rule 'Chau'"),
    (dict(rule='Chow', alpha=2.0), 'alpha'),
    (dict(rule='Chow', drafter='ngram'), "reads the drafter's"),
    (dict(gamma=0), 'gamma'), (dict(temperature=-1.0), 'temperature'),
    (dict(drafter='dream'), "Unknown drafter 'dream'")])
def test_settings_that_do_not_fit_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    make(**kwargs)


def test_modules_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match='vocab_size 31 and the drafter 32'):
    t5x_models.SpeculativeModel(module(1, vocab_size=32), LARGE, **common())
  with pytest.raises(ValueError, match='Got the module Dense'):
    t5x_models.lm_of(nn.Dense(3))
  stacked = scalable.Transformer(scalable.T5Config(vocab_size=tiny.VOCAB))
  with pytest.raises(ValueError, match='Got the module Transformer'):
    t5x_models.lm_of(stacked)
  with pytest.raises(ValueError, match='allowed: 0'):
    distilling(label_smoothing=0.1)
