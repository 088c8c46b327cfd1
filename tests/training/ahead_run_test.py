"""Heads from a run: trained, saved, calibrated, and drafting."""
import dataclasses
import json
import os
import signal

import jax
import numpy as np
import optax
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import drafting
from spec_cascades.models import heads
from spec_cascades.models import t5
from spec_cascades.training import ahead
from spec_cascades.training import calibrating
from spec_cascades.training import export
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import online
from spec_cascades.training import optimizers
from spec_cascades.training import start
from training.runs import run_of

QUIET = dict(log=lambda line: None)
pytestmark = pytest.mark.usefixtures('promotion')


@pytest.fixture(scope='module')
def verifier(corpus, tmp_path_factory):
  directory = tmp_path_factory.mktemp('verifier')
  return str(tinypair.write(directory / 'x', corpus.vocabulary.path, 0,
                            scale=4.))


def run_with(corpus, directory, verifier, objective=ahead.Ahead(), **changes):
  numbers = dict(steps=30, peak=.03, warmup=2, cooldown=0, log_every=10,
                 save_every=15, eval_every=30, eval_sentences=2, max_length=12)
  lm = heads.Headed(t5.T5(tinypair.config(16, 1)), heads.HeadsConfig(2))
  return dataclasses.replace(
      run_of(corpus, directory, **{**numbers, **changes}), lm=lm,
      init_from=verifier, objective=objective, optimizer=optimizers.adamw)


@pytest.fixture(scope='module')
def trained(corpus, verifier, promotion, tmp_path_factory):
  """A run, its last state and its metrics."""
  run = run_with(corpus, tmp_path_factory.mktemp('run'), verifier,
                 ahead.Ahead(distillation=losses.Distillation()))
  state = loop.train(run, **QUIET)
  lines = open(f'{run.model_dir}/metrics.jsonl').read().splitlines()
  return run, state, list(map(json.loads, lines))


def test_bad_combinations_are_refused(corpus, verifier, tmp_path):
  run = run_with(corpus, tmp_path, verifier)
  for bad, match in (
      (dataclasses.replace(run, objective=None), 'Got a Headed and objective='),
      (dataclasses.replace(run, lm=run.lm.lm), 'Got a T5 and objective='),
      (dataclasses.replace(run, teacher=verifier), 'heads and a teacher'),
      (dataclasses.replace(run, teacher=verifier, online=online.Online(),
                           objective=ahead.Ahead(verifier=1.)),
       'Got online and heads; allowed: a drafter of its own'),
      (dataclasses.replace(run, rates=(('^model/', 4.),)),
       "Nothing that is trained matches '.model/'")):
    with pytest.raises(ValueError, match=match):
      loop.train(bad, **QUIET)
  with pytest.raises(ValueError, match='allowed: one of heads.Headed'):
    calibrating.calibrate(dataclasses.replace(run, lm=run.lm.lm))


@pytest.mark.slow
def test_heads_learn_and_their_verifier_stays(trained, verifier):
  _, state, metrics = trained
  want = checkpoints.load(verifier).params
  jax.tree.map(np.testing.assert_array_equal, state.params['model'], want)
  losses = [x['loss'] for x in metrics if 'loss' in x]
  assert losses[-1] < losses[0] - .5
  assert {'agreement_1', 'acceptance_2'} <= set(metrics[0])


@pytest.mark.slow
def test_heads_come_back_from_a_run_and_from_its_export(trained, tmp_path):
  run, state, _ = trained
  found = checkpoints.load(run.model_dir)
  assert found.lm == run.lm
  jax.tree.map(np.testing.assert_array_equal, found.params, state.params)
  export.export(run, str(tmp_path / 'out'), dtype='float32', sentences=2,
                **QUIET)
  exported = checkpoints.load(str(tmp_path / 'out'))
  assert exported.lm == run.lm
  jax.tree.map(np.testing.assert_array_equal, exported.params['heads'],
               state.params['heads'])


@pytest.mark.slow
def test_calibrated_heads_draft_and_do_not_change_greedy_texts(
    trained, corpus, verifier):
  run, state, _ = trained
  said = []
  tree = calibrating.calibrate(run, nodes=5, ranks=3, sentences=8,
                               log=said.append)
  assert len(tree) == 5 and 'tokens a call decoded' in said[2]
  pair = pairs.load(verifier, run.model_dir)
  drafter, params = drafting.make('medusa', pair, 2)
  assert drafter.paths == tree == pair.drafter.lm.heads.paths
  loop.train(run, **QUIET)           # has nothing left to do, and leaves it
  assert checkpoints.load(run.model_dir).lm.heads.paths == tree
  rows = [corpus.encode(line['en']) for line in corpus.lines('train')]
  rows = [row for row in rows if len(row) <= 48][:8]
  run_one = lambda drafter, params: decode.GenSpecSample(
      pair.verifier.lm, drafter, 20, eos=1)(
          pair.verifier.params, params, pair.prompt(rows, 48),
          decode.row_keys(0, range(8)), targets.Lossless(), warp.Warp(0.))
  got, want = run_one(drafter, params), run_one(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  assert got.stats.accepted.sum() > 0
  with pytest.raises(ValueError, match='was not trained beside'):
    drafting.make('medusa', pairs.load(verifier, verifier), 2)


@pytest.mark.slow
def test_a_verifier_with_a_teacher_and_faster_heads_resumes_bitwise(
    corpus, verifier, tmp_path):
  """Stopped where no checkpoint was due; no small model drafts for it."""
  def joint(name, **fields):
    run = run_with(corpus, tmp_path / name, verifier, ahead.Ahead(verifier=5.),
                   steps=4, save_every=4, eval_every=4, log_every=2, gamma=2)
    return dataclasses.replace(run, teacher=verifier, **fields)

  def stop(line):
    if line.startswith('step 2/'):
      os.kill(os.getpid(), signal.SIGTERM)

  fast = dict(rates=(('^heads/', 4.),))
  plain, want = (loop.train(joint(name, **fields), **QUIET)
                 for name, fields in (('plain', {}), ('whole', fast)))
  assert int(loop.train(joint('part', **fast), log=stop).step) == 2
  got = loop.train(joint('part', **fast), **QUIET)
  jax.tree.map(np.testing.assert_array_equal, got, want)
  begun = start.params(verifier, joint('x').lm, jax.random.key(0), corpus)
  moved = lambda state: float(optax.tree.norm(jax.tree.map(
      lambda a, b: a - b, state.params['heads'], begun['heads'])))
  assert moved(want) > 2 * moved(plain) > 0
  rows = list(map(json.loads, open(f'{tmp_path}/whole/metrics.jsonl')))
  assert .5 < rows[-2]['acceptance_0'] < 1 and 'validation_agreement_0' in (
      rows[-1])
  assert not any('tokens_per_call' in name for row in rows for name in row)


@pytest.mark.slow
def test_a_verifier_is_trained_with_its_heads(trained, corpus, tmp_path):
  run, state, _ = trained
  joint = run_with(corpus, tmp_path, run.model_dir, ahead.Ahead(verifier=5.),
                   steps=4, save_every=4, eval_every=4, log_every=2)
  after = loop.train(joint, **QUIET).params
  moved = lambda tree, old: any(
      (np.asarray(a) != np.asarray(b)).any()
      for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(old)))
  assert moved(after['model'], state.params['model'])
  assert moved(after['heads'], state.params['heads'])
  other = dataclasses.replace(
      joint, model_dir=str(tmp_path / 'x'),
      lm=heads.Headed(run.lm.lm, heads.HeadsConfig(3)))
  with pytest.raises(ValueError, match='The heads in .* are not those of'):
    loop.train(other, **QUIET)
