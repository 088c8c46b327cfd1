"""EAGLE-3's and Hydra++'s losses, round by round, and runs with them."""
import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.models import features
from spec_cascades.models import heads
from spec_cascades.models import layered
from spec_cascades.training import ahead
from spec_cascades.training import calibrating
from spec_cascades.training import follow
from spec_cascades.training import following
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import train_step
from training.ahead_run_test import verifier  # noqa: F401, a fixture
from training.ahead_test import BATCH, T5
from training.follow_test import GEMMA, law
from training.runs import layer_of, run_of

EAGLE3 = follow.Follow(1., 0., regression=0., steps=3)
QUIET = dict(log=lambda line: None)
SIZES = layered.Sizes(2, 8, 8)


def made(lm):
  """A verifier with logits of a few units and a random layer beside it."""
  params = jax.jit(lm.init_params)(jax.random.key(0))
  if lm.crosses:
    params['model']['decoder']['decoder_norm']['scale'] *= 3.
  return lm, params


def divergences(lm, params, steps):
  """KL(p, q) summed over the targets, by the step that drafts them.

  Every round on its own: behind its root the layer reads its own states.
  """
  one, total = layer_of(lm), np.zeros(steps)
  hidden = jax.jit(lm.verifier.states)(params['model'], BATCH)
  for row, count in enumerate(np.asarray(BATCH['weights']).sum(1).astype(int)):
    given = BATCH['inputs'][row, :int(BATCH['input_lengths'][row])].tolist()
    text, wide = [0], hidden[row, :count]
    if not lm.crosses:
      text = given
    text = text + np.asarray(BATCH['targets'])[row, :count - 1].tolist()
    first = len(text) - count                # where the first target is said
    if first:
      wide = lm.verifier.module.apply(
          {'params': params['model']}, jnp.array([text]), method='states')[0]
    p = law(lm.head(params, wide[first:]))
    true = np.pad(lm.given(params, wide[:-1]), ((1, 0), (0, 0)))
    for root in range(first, len(text)):
      before = true.copy()
      before[root + 1:] = 0
      for step in range(min(steps, len(text) - root)):
        y = one(params, jnp.asarray(before)[None], jnp.array([text]),
                BATCH['inputs'][row:row + 1])[0]
        q = law(lm.head(params, y[root + step]))
        said = p[root + step - first]
        total[step] += (said * np.log(said / q)).sum()
        if root + step + 1 < len(text):
          before[root + step + 1] = y[root + step]
  return total


@pytest.mark.parametrize('lm', [T5, pytest.param(
    GEMMA, marks=pytest.mark.slow)], ids=['t5', 'gemma'])
def test_each_step_is_trained_on_what_rounds_draft(lm):
  lm, params = made(features.Featured(lm, features.FeatureConfig(
      2, 8, 8, taps=(0,))))
  total, sums = jax.jit(lambda x: EAGLE3(lm, x, BATCH))(params)
  want = divergences(lm, params, 3)
  assert (want > .01).all()
  assert float(total) == pytest.approx(want @ .8**np.arange(3), rel=1e-4)
  assert float(sums['tokens']) == 8 and 'distance' not in sums
  assert 0 < float(sums['acceptance_2']) < 4


@pytest.mark.slow
def test_a_layer_learns_from_its_own_drafts():
  """The loss of every step falls; the verifier stays."""
  lm, params = made(features.Featured(T5, features.FeatureConfig(
      2, 8, 8, taps=(0,))))
  with jax.numpy_dtype_promotion('standard'):
    update = train_step.Update(
        lm, optimizers.adamw(lambda _: .02), objective=EAGLE3)
    state, step = update.init(params), jax.jit(update)
    metrics = []
    for _ in range(25):
      state, found = step(state, BATCH)
      metrics.append(jax.device_get(found))
  assert metrics[-1]['loss'] < .5 * metrics[0]['loss']
  for name in ('acceptance', 'acceptance_1', 'acceptance_2'):
    assert metrics[-1][name] > metrics[0][name]


@pytest.mark.parametrize('lm', [T5, pytest.param(
    GEMMA, marks=pytest.mark.slow)], ids=['t5', 'gemma'])
def test_heads_read_what_the_layer_makes_of_the_text_before(lm):
  config = heads.HeadsConfig(2, sequential=True, prefix=SIZES)
  lm, params = made(heads.Headed(lm, config))
  read = jax.jit(lambda x: ahead.states(lm, x, BATCH))
  own, found = read(params)
  np.testing.assert_array_equal(found, own)             # nothing is added yet
  rng = np.random.default_rng(0)
  noise = lambda x: x + .3 * jnp.asarray(rng.normal(size=x.shape), x.dtype)
  params = dict(params, heads=jax.tree.map(noise, params['heads']))
  own, found = read(params)
  one = layer_of(lm)
  for row, count in enumerate(np.asarray(BATCH['weights']).sum(1).astype(int)):
    before = own[row, :count]
    if not lm.crosses:                # states of the input come before
      given = int(BATCH['input_lengths'][row])
      text = jnp.concatenate([BATCH['inputs'][row, :given],
                              BATCH['targets'][row, :count - 1]])
      before = lm.lm.module.apply({'params': params['model']}, text[None],
                                  method='states')[0]
    for t in range(count):
      known = before[:len(before) - count + t + 1]
      y = one(params, jnp.pad(known, ((1, 0), (0, 0)))[None],
              jnp.zeros((1, len(known) + 1), jnp.int32),
              BATCH['inputs'][row:row + 1])
      np.testing.assert_allclose(found[row, t], y[0, -1], atol=1e-5)
  assert np.abs(np.asarray(found) - np.asarray(own)).max() > .1


@pytest.mark.slow
def test_noise_is_on_what_heads_read_only_while_they_are_trained():
  lm, params = made(heads.Headed(T5, heads.HeadsConfig(1, prefix=SIZES)))
  loss = jax.jit(lambda noise, key: ahead.states(
      lm, params, BATCH, noise=noise, key=key), static_argnums=0)
  own, plain = loss(.5, None)
  same, noised = loss(.5, jax.random.key(0))
  np.testing.assert_array_equal(own, same)
  assert 0 < np.abs(np.asarray(noised - plain)).max() <= .5


def test_what_can_not_be_trained_is_refused():
  lm, params = heads.Headed(T5, heads.HeadsConfig(1, prefix=SIZES)), {}
  packed = dict(BATCH, target_segments=BATCH['targets'])
  for make, match in (
      (lambda: follow.Follow(steps=0), 'steps of Follow is 0'),
      (lambda: follow.Follow(decay=0.), 'decay of Follow is 0'),
      (lambda: follow.Follow(regression=-1.), 'regression of Follow is -1'),
      (lambda: ahead.Ahead(noise=-1.), 'noise of Ahead is -1'),
      (lambda: ahead.states(lm, params, packed), 'Got packed texts'),
      (lambda: ahead.Ahead(verifier=5.)(lm, params, BATCH), 'allowed: 0')):
    with pytest.raises(ValueError, match=match):
      make()


def greedy(pair, drafter, params, rows):
  """Texts of the pair's verifier with a drafter, and drafts accepted."""
  spec = decode.GenSpecSample(drafting.verifier(pair, drafter), drafter, 20,
                              eos=1)
  state = spec(pair.verifier.params, params, pair.prompt(rows, 48),
               decode.row_keys(0, range(len(rows))), targets.Lossless(),
               warp.Warp(0.))
  return np.asarray(state.tokens), int(state.stats.accepted.sum())


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['eagle3', 'hydra++'])
def test_what_is_trained_is_saved_and_drafts_by_name(
    kind, corpus, verifier, tmp_path):  # noqa: F811
  """Loss falls, the verifier stays, greedy texts are its own."""
  numbers = dict(steps=20, peak=.01, warmup=2, cooldown=0, log_every=5,
                 save_every=20, eval_every=20, eval_sentences=2, max_length=12)
  whole = checkpoints.load(verifier)
  lm, objective = {
      'eagle3': (features.Featured(whole.lm, features.FeatureConfig(
          2, 8, 16, taps=(0,))), EAGLE3),
      'hydra++': (heads.Headed(whole.lm, heads.HeadsConfig(
          2, own=False, sequential=True, prefix=SIZES)), ahead.Ahead(
              distillation=losses.Distillation(), noise=.1))}[kind]
  run = dataclasses.replace(
      run_of(corpus, tmp_path, **numbers), init_from=verifier, lm=lm,
      objective=objective, optimizer=optimizers.adamw)
  with jax.numpy_dtype_promotion('standard'):         # optax's Adam needs it
    state = loop.train(run, **QUIET)
    if kind == 'hydra++':
      tree = calibrating.calibrate(run, nodes=5, ranks=3, sentences=8, **QUIET)
    else:
      said = []
      greedy_, drawn = following.report(run, 2, 6, log=said.append)
      assert abs(greedy_.off) < 1e-3 and f'{drawn}' in said[1]
  jax.tree.map(np.testing.assert_array_equal, state.params['model'],
               whole.params)
  lines = open(f'{run.model_dir}/metrics.jsonl').read().splitlines()
  losing = [x['loss'] for x in map(json.loads, lines) if 'loss' in x]
  assert losing[-1] < losing[0]
  pair = pairs.load(verifier, None)
  rows = [corpus.encode(line['en']) for line in corpus.lines('train')]
  rows = [row for row in rows if len(row) <= 48][:4]
  want, _ = greedy(pair, null.Null(), None, rows)
  for name in dict(eagle3=('eagle3', 'eagle3_tree')).get(kind, (kind,)):
    drafter, params = drafting.make(f'{name}:{run.model_dir}', pair, 2)
    found, accepted = greedy(pair, drafter, params, rows)
    np.testing.assert_array_equal(found, want)
    assert accepted > 0
  if kind == 'hydra++':
    assert drafter.heads.heads.paths == tree
  wrong = dict(eagle3='eagle').get(kind, 'medusa')
  with pytest.raises(ValueError, match=f'allowed with it: {re.escape(kind)}'):
    drafting.make(f'{wrong}:{run.model_dir}', pair, 2)
