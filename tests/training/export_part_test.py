"""Runs beside a verifier, exported without it: what drafts, and what may not.
"""
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import besides
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import orbax
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.models import features
from spec_cascades.training import ahead
from spec_cascades.training import export
from spec_cascades.training import follow
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import quality
from spec_cascades.training import train_step
from tests.scripts import cli_test
from training.runs import run_of

QUIET = dict(log=lambda line: None)
pytestmark = [pytest.mark.usefixtures('promotion'), pytest.mark.slow]
KINDS = ('heads', 'features', 'masks')
OBJECTIVES = dict(heads=ahead.Ahead(distillation=losses.Distillation()),
                  masks=ahead.Ahead(1., losses.Distillation()),
                  features=follow.Follow())


@pytest.fixture(scope='module')
def verifier(corpus, tmp_path_factory):
  return besides.write_verifier(tmp_path_factory.mktemp('verifier') / 'x',
                                corpus.vocabulary.path)


def run_with(corpus, directory, verifier, kind, **changes):
  """A run that saves what is beside its verifier as it begins."""
  lm = features.beside(besides.LM, besides.CONFIGS[kind])
  return dataclasses.replace(
      run_of(corpus, directory, steps=0), lm=lm, init_from=verifier,
      objective=OBJECTIVES[kind], optimizer=optimizers.adamw, **changes)


@pytest.fixture(scope='module')
def runs(corpus, verifier, promotion, tmp_path_factory):
  """By kind, a run and the parameters that it has saved."""
  root, found = tmp_path_factory.mktemp('runs'), {}
  for kind in KINDS:
    run = run_with(corpus, root / kind, verifier, kind)
    found[kind] = run, loop.train(run, **QUIET).params
  return found


@pytest.fixture(scope='module')
def parts(runs, tmp_path_factory):
  """By kind, the run's part and what exporting it has found."""
  root = tmp_path_factory.mktemp('parts')
  return {kind: (str(root / kind), export.export_part(
      run, str(root / kind), **QUIET)) for kind, (run, _) in runs.items()}


@pytest.mark.parametrize('kind', KINDS)
def test_a_part_is_that_of_the_run_rounded(kind, runs, parts, verifier):
  run, params = runs[kind]
  path, figures = parts[kind]
  found = beside.read(path)
  want = jax.tree.map(
      lambda x: jnp.asarray(x, jnp.bfloat16).astype(jnp.float32),
      params['heads'])
  jax.tree.map(np.testing.assert_array_equal, found.params, want)
  assert found.heads == run.lm.heads
  assert found.verifier == extras.Owner(pairs.shown(verifier),
                                           pairs.digest(verifier))
  said = json.loads((pathlib.Path(path) / native.CONFIG).read_text())
  assert said['info'] == figures and figures['step'] == 0
  measured = {'validation_agreement', 'validation_acceptance'} if (
      kind == 'features') else {f'validation_{x}_{k}' for k in (1, 2) for x in (
          'agreement', 'acceptance')}
  assert measured <= set(figures)
  assert all(0 <= figures[name] <= 1 for name in measured)
  assert figures['validation_loss'] > 0


def test_figures_are_of_what_was_written(runs, parts):
  run, params = runs['masks']
  update = train_step.Update(run.lm, None, objective=run.objective)
  validation = quality.Validation(update, run.corpus)
  found, other = (validation.means(dict(params, heads=x)) for x in (
      beside.read(parts['masks'][0]).params, params['heads']))
  assert {name: round(x, 4) for name, x in found.items()} == {
      name: x for name, x in parts['masks'][1].items() if name != 'step'}
  assert round(other['validation_loss'], 4) != round(
      found['validation_loss'], 4)


@pytest.mark.parametrize('kind', KINDS)
def test_a_part_drafts_as_its_run_does(kind, runs, verifier, tmp_path):
  """In float32, so that nothing is rounded."""
  run, _ = runs[kind]
  path = str(tmp_path / 'part')
  export.export_part(dataclasses.replace(run, objective=None), path,
                     dtype='float32', **QUIET)
  pair = pairs.load(verifier, None)
  for name in run.lm.heads.drafters:
    (one, params), (two, others) = (
        drafting.make(f'{name}:{x}', pair, 2) for x in (run.model_dir, path))
    assert one == two
    jax.tree.map(np.testing.assert_array_equal, params, others)


def test_a_tree_that_was_chosen_survives_both_exports(runs, verifier, tmp_path):
  """As scripts/calibrate_heads.py writes it beside the checkpoints."""
  run, _ = runs['heads']
  tree = ((0,), (1,), (0, 1))
  folder = pathlib.Path(run.model_dir)
  chosen = dataclasses.replace(run.lm, heads=dataclasses.replace(
      run.lm.heads, paths=tree))
  words = converting.files_of(run.corpus.vocabulary)
  orbax.describe(folder, chosen, words)
  try:
    export.export_part(dataclasses.replace(run, objective=None),
                       str(tmp_path / 'part'), **QUIET)
    export.export(run, str(tmp_path / 'whole'), sentences=1, **QUIET)
  finally:
    orbax.describe(folder, run.lm, words)
  for name in ('part', 'whole'):
    drafter, _ = drafting.make(f'medusa:{tmp_path}/{name}',
                               pairs.load(verifier, None), 2)
    assert drafter.paths == tree != run.lm.heads.paths


def test_a_verifier_that_was_trained_along_is_refused(corpus, verifier, runs,
                                                      tmp_path):
  """Medusa-2: one step moves it; so does another start."""
  joint = dataclasses.replace(
      run_with(corpus, tmp_path / 'run', verifier, 'heads'),
      objective=ahead.Ahead(verifier=5.))
  joint = dataclasses.replace(joint, recipe=dataclasses.replace(
      joint.recipe, steps=1, save_every=1, eval_every=100))
  loop.train(joint, **QUIET)
  other = besides.write_verifier(tmp_path / 'other', corpus.vocabulary.path, 1)
  run, _ = runs['heads']
  for bad, path in ((joint, None), (joint, verifier), (run, other)):
    with pytest.raises(ValueError, match='trained with its part') as error:
      export.export_part(bad, str(tmp_path / 'x'), verifier=path, **QUIET)
    said = str(error.value)
    assert '\n' not in said and '--verifier' in said
    assert bad.model_dir in said and (path or bad.init_from) in said
  assert not (tmp_path / 'x').exists()


def test_the_verifier_may_be_given(corpus, verifier, runs, tmp_path):
  """Of a run that went on from one with masks, say."""
  first, _ = runs['masks']
  later = dataclasses.replace(
      run_with(corpus, tmp_path / 'run', first.model_dir, 'masks'),
      objective=OBJECTIVES['masks'])
  loop.train(later, **QUIET)
  later = dataclasses.replace(later, objective=None)
  out = str(tmp_path / 'x')
  with pytest.raises(ValueError, match='holds more than its verifier'):
    export.export_part(later, out, **QUIET)
  with pytest.raises(ValueError, match='init_from=None'):
    export.export_part(dataclasses.replace(later, init_from=None), out, **QUIET)
  export.export_part(later, out, verifier=verifier, **QUIET)
  drafting.make(f'pass:{out}', pairs.load(verifier, None), 2)


def test_a_verifier_has_one_digest_whatever_it_is_loaded_with(
    runs, verifier, tmp_path):
  """Also with a run, which is no directory of ours: parts belong to it."""
  pair = pairs.load(verifier, runs['features'][0].model_dir)
  assert pair.verifier.sha256 == pairs.digest(verifier)
  export.export_part(dataclasses.replace(runs['heads'][0], objective=None),
                     str(tmp_path / 'x'), **QUIET)
  drafting.make(f'medusa:{tmp_path}/x', pair, 2)


def test_what_is_no_part_is_refused(corpus, verifier, runs, tmp_path):
  run, _ = runs['heads']
  before = pairs.digest(verifier)
  for bad, out, match in (
      (run_of(corpus, tmp_path / 'run'), 'x', 'Got the run of a T5'),
      (dataclasses.replace(run, model_dir=str(tmp_path / 'none')), 'x',
       'No checkpoint under'),
      (dataclasses.replace(run, init_from=str(tmp_path / 'nowhere')), 'x',
       'No checkpoint at'),
      (run, verifier, 'holds a config.json of something else')):
    with pytest.raises(ValueError, match=match) as error:
      export.export_part(bad, str(tmp_path / out), **QUIET)
    assert '\n' not in str(error.value)
  assert pairs.digest(verifier) == before and not (tmp_path / 'x').exists()


def test_another_run_starts_from_a_part(corpus, verifier, runs, parts,
                                        tmp_path):
  """Medusa-2 from the heads that came along."""
  (path, _), (run, params) = parts['heads'], runs['heads']
  after = dataclasses.replace(run, model_dir=str(tmp_path / 'x'), part=path,
                              objective=ahead.Ahead(verifier=5.))
  found = loop.train(after, **QUIET).params
  jax.tree.map(np.testing.assert_array_equal, found, {
      'model': params['model'], 'heads': beside.read(path).params})
  other = besides.write_verifier(tmp_path / 'other', corpus.vocabulary.path,
                                 seed=1)
  for bad, match in (
      (dict(part=verifier), 'is no part of a verifier'),
      (dict(init_from=other), 'was trained beside .* not beside'),
      (dict(init_from=None), 'Got part=.* and init_from=None'),
      (dict(lm=besides.LM, objective=None), 'for a T5; allowed'),
      (dict(part=parts['masks'][0]), 'are not those of')):
    with pytest.raises(ValueError, match=match) as error:
      loop.train(dataclasses.replace(after, model_dir=str(tmp_path / 'y'),
                                     **bad), **QUIET)
    assert '\n' not in str(error.value)


def test_the_script_refuses_in_one_line(tmp_path):
  gin = '--gin_file=gin/train/drafter.gin', '--output', str(tmp_path / 'x')
  cli_test.check('export', [
      ([*gin, '--part', '--sentences', '3'], 'leave --sentences out'),
      ([*gin, '--verifier', 'x'], 'Got --verifier without --part')])
  assert not (tmp_path / 'x').exists()
