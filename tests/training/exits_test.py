"""LayerSkip's loss against shallow models, and a run whose exits learn."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import tiny
import tinypair
from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.models import skip
from spec_cascades.training import exits
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from training.runs import run_of

BATCH = dict(
    inputs=jnp.array([[3, 4, 5, 1], [2, 6, 1, 0]]),
    input_lengths=jnp.array([4, 3]),
    targets=jnp.array([[3, 2, 6, 5, 1], [4, 4, 1, 0, 0]]),
    weights=jnp.array([[1., 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
T5 = dataclasses.replace(tiny.LMS['t5_1_1'], config=dataclasses.replace(
    tiny.LMS['t5_1_1'].config, num_decoder_layers=4))
KEY = jax.random.key(7)


def surprise(lm, params, depth, batch=BATCH):
  """Cross-entropy of the model's first layers alone."""
  shallow, own = skip.shallow(lm, params, range(depth))
  return losses.cross_entropy(shallow.teacher_forced(own, batch),
                              batch['targets'], batch['weights'])[0]


def test_rates_and_weights_are_the_papers():
  np.testing.assert_allclose(exits.rates(4), [
      0, 2**(1 / 3) - 1, 2**(2 / 3) - 1, 1], rtol=1e-6)
  np.testing.assert_allclose(exits.scales(4, .2), [0, .2, .6, 3 + .6],
                             rtol=1e-6)


@pytest.mark.parametrize('lm', [T5, tiny.LMS['gemma3']], ids=['t5', 'gemma3'])
def test_every_exit_is_a_shallow_model(lm):
  params, depth = tiny.params_of(lm), skip.layers_of(lm)
  got, sums = jax.jit(lambda x: exits.Exits(scale=.5)(lm, x, BATCH))(params)
  weights = exits.scales(depth, .5)
  want = sum(w / weights.sum() * surprise(lm, params, i + 1)
             for i, w in enumerate(weights))
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert sums['tokens'] == 8 and 0 < sums['acceptance'] < 8
  assert 0 <= sums['agreement'] <= 8


def test_a_step_reads_one_exit_of_several_and_the_last():
  params, seen = tiny.params_of(T5), set()
  weights = exits.scales(4, 1.)
  each = [float(surprise(T5, params, i + 1)) for i in range(4)]
  loss = jax.jit(lambda key: exits.Exits(0., 1., 2)(
      T5, params, BATCH, dropout=key)[0])
  of = lambda *some: (sum(weights[i] * each[i] for i in (*some, 3))
                      / sum(weights[i] for i in (*some, 3)))
  for i in range(12):
    got = float(loss(jax.random.key(i)))
    near = [abs(got - of(*some)) < 1e-3 for some in ((0, 2), (1,))]
    assert sum(near) == 1
    seen.add(near.index(True))
  assert seen == {0, 1}


def test_later_layers_are_left_out_more_often():
  """At a rate of 1 the last layer always; at 0.5, half as often, the first
  never."""
  params, two = tiny.params_of(T5), tiny.LMS['t5_1_1']
  shallow, own = skip.shallow(T5, params, range(2))
  assert shallow == two
  got = exits.Exits(1.)(two, own, BATCH, dropout=KEY)[0]
  np.testing.assert_allclose(got, surprise(two, own, 1), rtol=1e-5)

  @jax.jit
  def gone(key):
    thin = exits.Exits(.5)._thinned(T5, params, key)['decoder']
    return jnp.stack([(thin[f'layers_{i}']['mlp']['wo']['kernel'] == 0).all()
                      for i in range(4)])
  found = np.mean(jax.vmap(gone)(jax.random.split(KEY, 2000)), 0)
  np.testing.assert_allclose(found, .5 * exits.rates(4), atol=.035)
  assert found[0] == 0


def test_what_has_no_exits_is_refused():
  lm = tinypair.config(8, 1)
  with pytest.raises(ValueError, match='a decoder of 1 layer'):
    exits.Exits()(dataclasses.replace(T5, config=lm), {}, BATCH)
  for bad, match in ((dict(layer_dropout=1.5), 'layer_dropout of Exits'),
                     (dict(scale=0.), 'scale of Exits'),
                     (dict(every=0), 'every of Exits')):
    with pytest.raises(ValueError, match=match):
      exits.Exits(**bad)


@pytest.mark.slow
def test_exits_learn_and_draft_without_changing_greedy_texts(
    corpus, promotion, tmp_path):
  path = str(tinypair.write(tmp_path / 'x', corpus.vocabulary.path, 0, layers=3,
                            scale=4.))
  run = dataclasses.replace(
      run_of(corpus, tmp_path / 'run', steps=40, peak=.01, warmup=2, cooldown=0,
             log_every=10, save_every=40, eval_every=40, eval_sentences=2,
             max_length=12),
      lm=checkpoints.load(path).lm, init_from=path, optimizer=optimizers.adamw,
      objective=exits.Exits(every=2))
  with pytest.raises(ValueError, match='Exits and a teacher'):
    loop.train(dataclasses.replace(run, teacher=path), log=lambda line: None)
  after = loop.train(run, log=lambda line: None).params
  batch, before = corpus.batch(0), checkpoints.load(path).params
  for depth in (2, 3):                 # the first exit has no weight
    assert surprise(run.lm, after, depth, batch) < .95 * surprise(
        run.lm, before, depth, batch)
  pair = pairs.load(run.model_dir, None)
  rows = [row for row in (corpus.encode(line['en'])
                          for line in corpus.lines('train'))
          if len(row) <= 48][:8]

  def decoded(drafter, params):
    spec = decode.GenSpecSample(pair.verifier.lm, drafter, 20, eos=1)
    return spec(pair.verifier.params, params, pair.prompt(rows, 48),
                decode.row_keys(0, range(len(rows))), targets.Lossless(),
                warp.Warp(0.))
  got = decoded(*drafting.make('exit', pair, 2))
  np.testing.assert_array_equal(got.tokens,
                                decoded(null.Null(), None).tokens)
