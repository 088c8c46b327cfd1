"""Rates, optimisers, and batches in parts."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spec_cascades.models import t5
from spec_cascades.training import divergences
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import train_step
from tests.models import tiny

LM = t5.T5(t5.T5Config(vocab_size=11, emb_dim=8, num_heads=2, head_dim=4,
                       num_encoder_layers=1, num_decoder_layers=1, mlp_dim=8,
                       logits_via_embedding=True))
PARAMS = LM.init_params(jax.random.key(0))
TEACHER = LM.init_params(jax.random.key(1))
TOKENS = np.asarray(jax.random.randint(jax.random.key(2), (5, 6), 1, 11))
BATCH = dict(inputs=TOKENS, input_lengths=np.full(5, 6, np.int32),
             targets=TOKENS[::-1].copy(),
             weights=(np.arange(6) < [[6], [3], [1], [5], [2]]).astype('f4'))


def test_the_schedule_rises_decays_and_cools_down():
  rate = optimizers.schedule(peak=.02, warmup=10, total=100, cooldown=20)
  np.testing.assert_allclose(rate(4), .01)
  np.testing.assert_allclose(rate(9), .02)
  np.testing.assert_allclose(rate(39), .01)
  assert rate(90) < rate(79) / 1.5 and rate(99) > 0
  np.testing.assert_allclose(rate(100), 0, atol=1e-9)


@pytest.mark.parametrize('decay,middle,end', [
    (optimizers.constant, 1., 1.), (optimizers.linear, .5, 0.),
    (optimizers.cosine, .5, 0.), (optimizers.rsqrt, (10 / 55)**.5, .1**.5)],
    ids=lambda x: getattr(x, '__name__', ''))
def test_decays(decay, middle, end):
  rate = optimizers.schedule(peak=.5, warmup=10, total=100, cooldown=0,
                             decay=decay)
  np.testing.assert_allclose(rate(54), .5 * middle, rtol=1e-6)
  np.testing.assert_allclose(rate(99), .5 * end, rtol=1e-6, atol=1e-7)
  quarter = dict(constant=1., linear=.75, cosine=(1 + .5**.5) / 2,
                 rsqrt=(10 / 32.5)**.5)[decay.__name__]
  np.testing.assert_allclose(rate(31.5), .5 * quarter, rtol=1e-6)


@pytest.mark.parametrize('accumulate,teacher', [(3, None), (5, LM), (7, LM)],
                         ids=['3-text', '5-teacher', '7-teacher'])
def test_parts_of_a_batch_make_the_step_of_the_whole(accumulate, teacher):
  """Also where rows don't divide; gradients are per token, not per part."""
  step = lambda n: train_step.Update(
      LM, optax.sgd(1.), teacher=teacher, accumulate=n,
      distillation=losses.Distillation(divergences.JSD(.3), mix=.2))
  states, metrics = [], []
  for n in (1, accumulate):
    update = step(n)
    state, found = jax.jit(update)(update.init(PARAMS), BATCH,
                                   teacher and TEACHER)
    states.append(state)
    metrics.append(found)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
  jax.tree.map(close, *[state.params for state in states])
  jax.tree.map(close, *metrics)
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), PARAMS,
                       states[0].params)
  assert max(jax.tree.leaves(moved)) > 1e-2


@pytest.mark.parametrize('name', [
    pytest.param('t5_1_1', marks=pytest.mark.slow), 'gemma3'])
def test_activations_computed_again_change_no_gradient(name):
  """With T5's dropout on: its noise is the same both times."""
  lm = tiny.LMS[name]
  if name == 't5_1_1':
    lm = t5.T5(dataclasses.replace(lm.config, dropout_rate=.1))
  params, gradients, kept = tiny.params_of(lm), [], []
  for remat in (False, True):
    def loss(params, remat=remat):
      logits = lm.teacher_forced(params, BATCH, dropout=jax.random.key(3),
                                 remat=remat)
      return losses.cross_entropy(logits, BATCH['targets'],
                                  BATCH['weights'])[0]
    gradients.append(jax.jit(jax.grad(loss))(params))
    pullback = jax.eval_shape(lambda x, loss=loss: jax.vjp(loss, x)[1], params)
    kept.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pullback)
                    if not jnp.issubdtype(x.dtype, jax.dtypes.extended)))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4,
                                                       atol=1e-5), *gradients)
  assert kept[1] < .75 * kept[0], 'Nothing is computed again.'


@pytest.mark.parametrize('make', [optimizers.adafactor, optimizers.adamw],
                         ids=lambda x: x.__name__)
def test_masters_are_float32_where_activations_are_bfloat16(make):
  """Parameters, the optimiser's arrays, the loss and its sums."""
  narrow = tiny.in_bfloat16(LM)
  update = train_step.Update(narrow, make(lambda step: .05))
  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    state = jax.eval_shape(update.init, PARAMS)
    after = jax.eval_shape(update, state, BATCH)
  kinds = {x.dtype for x in jax.tree.leaves(after)}
  assert kinds == {jnp.dtype('int32'), jnp.dtype('float32')}
  assert jax.tree.map(lambda x: x.dtype, after[0]) == jax.tree.map(
      lambda x: x.dtype, state)
  products = [line for line in str(jax.make_jaxpr(update.loss)(
      PARAMS, BATCH)).splitlines() if 'dot_general' in line]
  assert any(':bf16' in line for line in products)
  assert not any('bf16' in line for line in str(jax.make_jaxpr(
      train_step.Update(LM, None).loss)(PARAMS, BATCH)).splitlines())


@pytest.mark.parametrize('make', [optimizers.adafactor, optimizers.adamw],
                         ids=lambda x: x.__name__)
def test_a_batch_is_learnt_by_heart(make):
  update = train_step.Update(LM, make(lambda step: .05), z_loss=0.)
  state, step = update.init(PARAMS), jax.jit(update)
  losses_seen = []
  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    for _ in range(40):
      state, metrics = step(state, BATCH)
      losses_seen.append(float(metrics['loss']))
  assert losses_seen[-1] < losses_seen[0] / 3


def by_hand(params, gradients, rate):
  """Adafactor in float64, as T5 has it, see `test_adafactor_is_t5s`."""
  x, v = params.astype(np.float64), None
  for t, g in enumerate(gradients, 1):
    beta = 1 - t**-.8
    square = g.astype(np.float64)**2 + 1e-30
    if x.ndim > 1 and min(x.shape) >= 128:           # rows and columns
      new = square.mean(-1), square.mean(-2)
    else:
      new = square,
    v = new if v is None else tuple(
        beta * a + (1 - beta) * b for a, b in zip(v, new))
    whole = (v[0][:, None] * v[1] / v[0].mean() if len(v) == 2 else v[0])
    step = g / np.sqrt(whole)
    step /= max(1, np.sqrt((step**2).mean()))
    x = x - rate(t) * max(1e-3, np.sqrt((x**2).mean())) * step
  return x


@pytest.mark.parametrize('growth', [.5, 4.], ids=['below', 'clipped'])
@pytest.mark.parametrize('shape,scale', [
    ((128, 130), .5), ((127, 130), .5), ((130,), 2.), ((6, 4), 0.)], ids=str)
def test_adafactor_is_t5s(shape, scale, growth):
  """Three steps: second moments by rows and columns from 128 of each, decay
  1 - t^-0.8, updates of an RMS of 1 at most, and as large as the parameters,
  or as 1e-3.
  """
  noise = np.random.default_rng(0)
  params = (scale * noise.normal(size=shape)).astype('f4')
  gradients = [(growth**t * noise.normal(size=shape)).astype('f4')
               for t in range(3)]
  optimizer = optimizers.adafactor(lambda step: .1 / jnp.float32(step + 1))
  found, state = jnp.asarray(params), optimizer.init(jnp.asarray(params))
  for grads in gradients:
    update, state = jax.jit(optimizer.update)(grads, state, found)
    found += update
  want = by_hand(params, gradients, lambda t: .1 / t)
  np.testing.assert_allclose(found - params, want - params, rtol=1e-3,
                             atol=1e-6 * max(scale, .01))


def test_only_matrices_decay():
  still = jax.tree.map(jnp.zeros_like, PARAMS)
  optimizer = optimizers.adamw(1., weight_decay=.5)
  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    moved, _ = optimizer.update(still, optimizer.init(PARAMS), PARAMS)
  for x, by in zip(jax.tree.leaves(PARAMS), jax.tree.leaves(moved)):
    np.testing.assert_allclose(by, -.5 * x if x.ndim > 1 else 0 * x)


@pytest.mark.parametrize('patterns,match', [
    (['no_such_layer'], "matches 'no_such_layer'.*parameters are decoder"),
    (['er'], 'freezes every parameter'),
    (['*x'], r"Got '\*x' to freeze \(nothing to repeat"),
    ('er', "Got 'er' to freeze; allowed: a tuple of regular expressions")])
def test_what_can_not_be_frozen_is_refused(patterns, match):
  with pytest.raises(ValueError, match=match):
    optimizers.frozen(optax.sgd(1.), patterns, PARAMS)


@pytest.mark.parametrize('make', [
    optimizers.adafactor, functools.partial(optimizers.adamw, weight_decay=.1)],
                         ids=['adafactor', 'adamw'])
def test_a_rate_of_its_own_is_that_rate(make):
  """Of what the first pattern matches; the state is as without."""
  noise = np.random.default_rng(0)
  gradients = [jax.tree.map(lambda x: noise.normal(size=x.shape).astype('f4'),
                            PARAMS) for _ in range(3)]
  at = lambda by: make(lambda step: by * .02 / (step + 1))

  def steps(optimizer):
    update, state, found = jax.jit(optimizer.update), optimizer.init(PARAMS), []
    for grads in gradients:
      step, state = update(grads, state, PARAMS)
      found.append(step)
    return found, state

  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    once, fast, slow = (steps(at(by)) for by in (1., 4., .5))
    got = steps(optimizers.scaled(
        at(1.), [('^encoder/', 4.), ('^..coder/', .5)], PARAMS))
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)

  def compare(path, found, one, four, half):
    part = optimizers.name(path).split('/')[1]
    close(found, dict(encoder=four, decoder=half).get(part, one))
    assert np.abs(one).max() > 0

  jax.tree_util.tree_map_with_path(compare, got[0], once[0], fast[0], slow[0])
  jax.tree.map(close, got[1], once[1])


@pytest.mark.parametrize('rates,still,match', [
    ([('^heads/', 4.)], [], r"trained matches '\^heads/'.*train are decoder/"),
    ([('^encoder/', 4.)], ['coder/'], "Nothing that is trained matches '.enc"),
    ([('*x', 4.)], [], r"Got '\*x' of rates \(nothing to repeat"),
    (('^encoder/', 4.), [], r"Got rates=\('.encoder/', 4.0\); allowed: a tup"),
    ([('er', 0.)], [], "The rate of 'er' is 0.0; allowed: above 0 .* freeze"),
    ([('er', '4')], [], "The rate of 'er' is '4'; allowed: a number")])
def test_what_can_not_have_a_rate_is_refused(rates, still, match):
  with pytest.raises(ValueError, match=match):
    optimizers.scaled(optax.sgd(1.), rates, PARAMS, still)


def test_frozen_parameters_have_no_state():
  optimizer = optimizers.frozen(optimizers.adamw(1.), ['encoder/', 'token'],
                                PARAMS)
  shapes = {x.shape for x in jax.tree.leaves(optimizer.init(PARAMS))}
  assert PARAMS['token_embedder']['embedding'].shape not in shapes
