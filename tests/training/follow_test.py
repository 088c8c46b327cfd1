"""The loss of a feature layer against one written out, and a run with it."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from spec_cascades import checkpoints
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import drafting
from spec_cascades.models import features
from spec_cascades.models import gemma
from spec_cascades.training import follow
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from training.ahead_run_test import verifier  # noqa: F401, a fixture
from training.ahead_test import BATCH, T5
from training.runs import layer_of, run_of

LAYER = features.FeatureConfig(2, 8, 8)
GEMMA = gemma.Gemma(gemma.GemmaConfig(
    vocab_size=7, emb_dim=8, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=4, mlp_dim=8))


def smooth(x):
  """Huber's loss at 1, mean over the width."""
  x = np.abs(np.asarray(x, np.float64))
  return np.where(x < 1, x**2 / 2, x - .5).mean(-1)


def law(logits):
  weight = np.exp(np.asarray(logits, np.float64))
  return weight / weight.sum(-1, keepdims=True)


@pytest.mark.parametrize('lm', [T5, pytest.param(
    GEMMA, marks=pytest.mark.slow)], ids=['t5', 'gemma'])
def test_the_loss_is_that_of_every_state(lm):
  """Text by text, without padding."""
  lm = features.Featured(lm, LAYER)
  params = jax.jit(lm.init_params)(jax.random.key(0))
  if lm.crosses:
    params['model']['decoder']['decoder_norm']['scale'] *= 3.
  total, sums = jax.jit(lambda x: follow.Follow()(lm, x, BATCH))(params)
  want = dict(distance=0., divergence=0.)
  one, states = layer_of(lm), np.asarray(jax.jit(lm.states)(params, BATCH))
  for row, targets in enumerate(np.asarray(BATCH['targets'])):
    n = int(BATCH['weights'][row].sum())
    given = BATCH['inputs'][row, :BATCH['input_lengths'][row]].tolist()
    text = [0] + targets[:n - 1].tolist()
    true = states[row, :n]
    if not lm.crosses:                # the input's own states come before
      text = given + targets[:n - 1].tolist()
      true = np.asarray(lm.lm.module.apply(
          {'params': params['model']}, jnp.array([text]), method='states'))[0]
    before = np.pad(true, ((1, 0), (0, 0)))[:-1]
    found = one(params, jnp.asarray(before)[None], jnp.array([text]),
                BATCH['inputs'][row:row + 1])[0]
    found, true = found[-n:], true[-n:]
    p, q = (law(lm.head(params, x)) for x in (true, found))
    want['distance'] += smooth(found - true).sum()
    want['divergence'] += (p * np.log(p / q)).sum()
  assert float(sums['distance']) == pytest.approx(want['distance'], rel=1e-4)
  assert float(total) == pytest.approx(
      want['distance'] + .1 * want['divergence'], rel=1e-4)
  assert float(sums['tokens']) == 8


def test_noise_is_uniform_and_on_the_states_that_are_read():
  """The layer reads noised states; what it is compared with has none."""
  x = jnp.zeros((2, 50, 40))
  drawn = np.asarray(follow.noisy(x, .1, jax.random.key(0))).ravel()
  assert scipy.stats.kstest(drawn, 'uniform', (-.1, .2)).pvalue > 1e-6
  assert scipy.stats.kstest(drawn, 'uniform', (-.1, .19)).pvalue < 1e-6
  lm = features.Featured(T5, LAYER)
  params = jax.jit(lm.init_params)(jax.random.key(0))
  loss = lambda noise, key: jax.jit(lambda x: follow.Follow(noise=noise)(
      lm, x, BATCH, dropout=key))(params)
  key = jax.random.key(1)
  (plain, _), (noised, sums) = loss(0., key), loss(.5, key)
  assert float(plain) == float(loss(.5, None)[0]) != float(noised)
  # As if the verifier's states had come with it.
  _, hidden, _, _ = follow.whole(lm, params, BATCH)
  shift = follow.noisy(jnp.zeros_like(
      jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))), .5, key)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(follow, 'noisy', lambda x, noise, key: x + shift)
    assert float(loss(0., None)[0]) == pytest.approx(float(noised), rel=1e-5)
  assert float(sums['tokens']) == 8


def test_bad_texts_and_numbers_are_refused():
  lm = features.Featured(T5, LAYER)
  with pytest.raises(ValueError, match='Got packed texts'):
    follow.Follow()(lm, {}, dict(BATCH, target_segments=BATCH['targets']))
  with pytest.raises(ValueError, match='noise of Follow is -1'):
    follow.Follow(noise=-1.)


@pytest.mark.slow
def test_a_layer_is_trained_saved_and_drafts(corpus, verifier,  # noqa: F811
                                             tmp_path):
  """Loss falls, the verifier stays; what is read back drafts by name."""
  numbers = dict(steps=30, peak=.01, warmup=2, cooldown=0, log_every=10,
                 save_every=30, eval_every=30, eval_sentences=2, max_length=12)
  whole = checkpoints.load(verifier)
  run = dataclasses.replace(
      run_of(corpus, tmp_path, **numbers), init_from=verifier,
      lm=features.Featured(whole.lm, features.FeatureConfig(2, 8, 16)),
      objective=follow.Follow(distillation=losses.Distillation()),
      optimizer=optimizers.adamw)
  said = []
  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    state = loop.train(run, log=said.append)
  jax.tree.map(np.testing.assert_array_equal, state.params['model'],
               whole.params)
  lines = [line for line in said if 'distance' in line]
  read = lambda line: float(line.split('distance ')[1].split()[0])
  assert read(lines[-1]) < read(lines[0])
  pair = pairs.load(verifier, run.model_dir)
  assert pair.drafter.lm == run.lm
  for name in ('eagle', 'eagle_tree'):
    drafter, params = drafting.make(name, pair, 3)
    assert drafter.max_depth == 3 and set(params) == {'model', 'heads'}
  with pytest.raises(ValueError, match='was not trained beside'):
    drafting.make('eagle', pairs.load(verifier, verifier), 2)
