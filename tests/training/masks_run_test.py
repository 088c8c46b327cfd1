"""Runs that train masks, a verifier with them, and a verifier for Jacobi."""
import dataclasses
import json

import jax
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.models import masks
from spec_cascades.training import ahead
from spec_cascades.training import consistent
from spec_cascades.training import distill
from spec_cascades.training import export
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from training.ahead_run_test import verifier  # noqa: F401, a fixture
from training.runs import run_of

QUIET = dict(log=lambda line: None)
NUMBERS = dict(steps=30, warmup=2, cooldown=0, log_every=10, save_every=30,
               eval_every=30, eval_sentences=2, max_length=12)


def run_with(corpus, directory, path, lm, objective, **changes):
  return dataclasses.replace(
      run_of(corpus, directory, **{**NUMBERS, **changes}), lm=lm,
      init_from=path, objective=objective, optimizer=optimizers.adamw)


def lines_of(run):
  with open(f'{run.model_dir}/metrics.jsonl') as file:
    found = [json.loads(line) for line in file]
  return [x for x in found if 'loss' in x]


@pytest.fixture(scope='module')
def trained(corpus, verifier, promotion, tmp_path_factory):  # noqa: F811
  """A run of masks beside a verifier that stays, and its last state."""
  lm = masks.Masked(checkpoints.load(verifier).lm, masks.MasksConfig(3))
  run = run_with(corpus, tmp_path_factory.mktemp('run'), verifier, lm,
                 ahead.Ahead(1., losses.Distillation(), every=3), peak=.1)
  return run, loop.train(run, **QUIET)


def decoded(pair, rows, drafter, params):
  spec = decode.GenSpecSample(pair.verifier.lm, drafter, 20, eos=1)
  return spec(pair.verifier.params, params, pair.prompt(rows, 48),
              decode.row_keys(0, range(len(rows))), targets.Lossless(),
              warp.Warp(0.))


def inputs_of(corpus, count=8):
  rows = [corpus.encode(line['en']) for line in corpus.lines('train')]
  return [row for row in rows if len(row) <= 48][:count]


@pytest.mark.slow
def test_only_masks_learn_and_they_come_back(trained, verifier,  # noqa: F811
                                             tmp_path):
  run, state = trained
  jax.tree.map(np.testing.assert_array_equal, state.params['model'],
               checkpoints.load(verifier).params)
  losses_of = [x['loss'] for x in lines_of(run)]
  assert losses_of[-1] < losses_of[0] - .1
  export.export(run, str(tmp_path / 'out'), dtype='float32', sentences=2,
                **QUIET)
  for path in (run.model_dir, str(tmp_path / 'out')):
    found = checkpoints.load(path)
    assert found.lm == run.lm
    np.testing.assert_array_equal(found.params['heads']['embedding'],
                                  state.params['heads']['embedding'])


@pytest.mark.slow
def test_masks_draft_by_name_and_do_not_change_greedy_texts(
    trained, corpus, verifier):  # noqa: F811
  run, _ = trained
  pair, rows = pairs.load(verifier, None), inputs_of(corpus)
  want = decoded(pair, rows, null.Null(), None)
  for name in ('pass', 'space'):
    drafter, params = drafting.make(f'{name}:{run.model_dir}', pair, 3)
    assert params['model'] is pair.verifier.params
    got = decoded(pair, rows, drafter, params)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert got.stats.accepted.sum() > 0
  for name, gamma, match in (
      (f'space:{run.model_dir}', 4, 'Space with length 4 takes 4 masks'),
      (f'pass:{verifier}', 2, 'has no mask tokens; give a run of'),
      ('space', 2, 'needs a path, space:PATH')):
    with pytest.raises(ValueError, match=match):
      drafting.make(name, pair, gamma)


@pytest.mark.slow
def test_a_verifier_is_trained_with_its_masks(
    trained, corpus, verifier, tmp_path):  # noqa: F811
  run, state = trained
  joint = run_with(corpus, tmp_path, run.model_dir, run.lm,
                   ahead.Ahead(1., verifier=1.), peak=.01, steps=6,
                   save_every=6, eval_every=6, log_every=3)
  joint = dataclasses.replace(joint, teacher=verifier, rates=(('^heads', 4.),))
  after = loop.train(joint, **QUIET).params
  for part in ('model', 'heads'):
    pairs_of = zip(*map(jax.tree.leaves, (after[part], state.params[part])))
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs_of)
  pair, rows = pairs.load(joint.model_dir, None), inputs_of(corpus)
  drafter, params = drafting.make(f'space:{joint.model_dir}', pair, 2)
  got = decoded(pair, rows, drafter, params)
  want = decoded(pair, rows, null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.slow
def test_a_verifier_learns_its_fixed_points(
    corpus, verifier, promotion, tmp_path):  # noqa: F811
  """Not how many rounds that saves: this one settles all drafts untrained."""
  distill.distill(corpus, verifier, str(tmp_path / 'corpus'), guesses=3,
                  sentences=64, batch=32, **QUIET)
  states = dataclasses.replace(corpus, directory=str(tmp_path / 'corpus'),
                               guesses=3, target_width=64,
                               tokens_per_batch=1024)
  batch = states.batch(0)
  assert batch['guesses'].shape == (*batch['places'].shape, 3)
  assert (batch['places'][:, 0] == 0).all()
  before = checkpoints.load(verifier)
  run = run_with(states, tmp_path / 'run', verifier, before.lm,
                 consistent.Consistent(adjacent=.5), peak=.01, steps=40,
                 save_every=40, eval_every=40)
  loop.train(run, **QUIET)
  lines = lines_of(run)
  assert lines[-1]['loss'] < lines[0]['loss']
  assert lines[-1]['agreement'] > lines[0]['agreement']


def test_bad_combinations_are_refused(corpus, verifier, tmp_path):  # noqa: F811
  lm = checkpoints.load(verifier).lm
  marked = masks.Masked(lm, masks.MasksConfig(2))
  states = dataclasses.replace(corpus, guesses=2)
  steady = consistent.Consistent()
  for bad, match in (
      (run_with(corpus, tmp_path, verifier, marked, None),
       'Got a Masked and objective=None'),
      (run_with(states, tmp_path, verifier, marked, steady),
       'Got a Masked and objective=Consistent'),
      (run_with(corpus, tmp_path, verifier, lm, steady),
       'a corpus with guesses=0'),
      (run_with(states, tmp_path, verifier, lm, None),
       'a corpus with guesses=2'),
      (dataclasses.replace(run_with(states, tmp_path, verifier, lm, steady),
                           teacher=verifier), 'Consistent and a teacher')):
    with pytest.raises(ValueError, match=match):
      loop.train(bad, **QUIET)
  with pytest.raises(ValueError, match='guesses=2 and packed texts'):
    dataclasses.replace(states, packed=True)
  with pytest.raises(ValueError, match='with a drafter or a temperature'):
    distill.distill(corpus, verifier, str(tmp_path / 'x'), guesses=2,
                    temperature=1., **QUIET)
