"""A run from start to end: what it says, saves, refuses and learns."""
import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil

from flax import traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import orbax
from spec_cascades.checkpoints import stores
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.training import bought
from spec_cascades.training import checks
from spec_cascades.training import divergences
from spec_cascades.training import export
from spec_cascades.training import grow
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import policies
from spec_cascades.training import quality
from spec_cascades.training import saving
from spec_cascades.training import start
from training.runs import SIZES, diverge, recipe, run_of


def test_a_run_reports_progress_loss_and_bleu(whole):
  directory, state, lines = whole
  assert int(state.step) == 12
  assert any('left' in line and 'tokens/s' in line for line in lines)
  assert any('bleu' in line for line in lines)
  assert len((directory / 'metrics.jsonl').read_text().splitlines()) == 5


def test_checkpoints_are_written_in_chunks(whole, tmp_path, monkeypatch):
  """Or reading one would take a large array three times in memory."""
  _, state, _ = whole
  monkeypatch.setattr(saving, 'CHUNK_BYTES', 1000)
  with ocp.CheckpointManager(tmp_path / 'checkpoints') as saves:
    saves.save(12, args=saving.saved(state))
    saves.wait_until_finished()
  found, step = start.restore(tmp_path)
  assert step == 12
  jax.tree.map(np.testing.assert_array_equal, found, state.params)
  item = tmp_path / 'checkpoints/12/default'
  held = stores.arrays(item, {name: x for name, x in stores.tree(item).items()
                              if name.startswith('params/')})
  assert max(x.nbytes for x in held.values()) > 30_000
  want = traverse_util.flatten_dict(dict(params=state.params), sep='/')
  for name, x in held.items():
    assert math.prod(x.chunk) * x.dtype.itemsize <= 1000, name
    np.testing.assert_array_equal(x.open(), want[name])


def test_losses_fall(corpus, tmp_path):
  lines = []
  loop.train(run_of(corpus, tmp_path, steps=60, eval_every=60, save_every=60,
                    log_every=20), log=lines.append)
  losses = [float(re.search(r'loss ([0-9.]+)', line)[1]) for line in lines
            if 'tokens/s' in line]
  assert losses[-1] < losses[0] - 0.3


def test_the_weight_of_the_normaliser_is_in_the_training_loss_alone(
    corpus, tmp_path, monkeypatch):
  """At a rate of 0, so that the parameters are the same."""
  monkeypatch.setattr(quality.Validation, 'quality', lambda *unused: 0.)
  rows = {}
  for weight in (0., .5):
    folder = tmp_path / str(weight)
    loop.train(run_of(corpus, folder, steps=2, peak=0., log_every=2,
                      eval_every=2, z_loss=weight), log=lambda line: None)
    rows[weight] = list(map(json.loads, (
        folder / 'metrics.jsonl').read_text().splitlines()))
  (plain, before), (more, after) = rows[0.], rows[.5]
  assert more['loss'] > plain['loss'] + .5
  assert after['validation_loss'] == before['validation_loss']


def test_a_vocabulary_of_another_size_is_refused(corpus, tmp_path):
  lm = t5.T5(t5.T5Config(**{**SIZES, 'vocab_size': 100}))
  run = dataclasses.replace(run_of(corpus, tmp_path), lm=lm)
  with pytest.raises(ValueError, match='512 pieces.*100'):
    loop.train(run)


@pytest.mark.parametrize('changes,what', [
    (dict(steps=4, warmup=2, cooldown=100), 'rate rises to [345]% of its peak'),
    (dict(steps=4, warmup=2, cooldown=1, max_length=20),
     'measured up to 19 tokens, but targets have up to 48'), ({}, None)])
def test_what_may_surprise_is_said(corpus, tmp_path, changes, what):
  said = []
  run = run_of(corpus, tmp_path, **{
      'warmup': 1, 'cooldown': 1, 'max_length': 49, **changes})
  checks.begins(run, said.append)
  assert what is None or re.search(what, said[0])
  assert len(said) == (what is not None)


def test_no_checkpoint_is_explained(tmp_path):
  with pytest.raises(ValueError, match='No checkpoint'):
    start.restore(str(tmp_path))
  assert not list(tmp_path.iterdir())


def test_export_writes_a_model_that_loads(corpus, whole, tmp_path):
  run = run_of(corpus, whole[0])
  lm = run.lm
  figures = export.export(run, str(tmp_path / 'out'), log=lambda line: None)
  loaded, params, vocabulary = native.load(tmp_path / 'out')
  assert loaded == lm and vocabulary.size == tinypair.PIECES
  for got, want in zip(jax.tree.leaves(params),
                       jax.tree.leaves(whole[1].params)):
    np.testing.assert_allclose(got, want, rtol=2**-7)
  assert 0 <= figures['bleu_software_docs'] <= 100


@pytest.mark.parametrize('splits,want', [
    (('test', 'validation'), 'test_distinct'),
    (('validation',), 'validation_distinct'), ((), None)],
    ids=['test', 'validation', 'none'])
def test_an_export_is_measured_on_what_is_there(
    corpus, whole, tmp_path, splits, want):
  """And where that is nothing, or damaged, the model is written all the same.
  """
  root, said = tmp_path / 'corpus', []
  root.mkdir()
  for split in splits:
    shutil.copy(f'{corpus.directory}/{split}.jsonl', root)
  run = run_of(dataclasses.replace(corpus, directory=str(root), source='de',
                                   target='en'), whole[0])
  figures = export.export(run, str(tmp_path / 'out'), sentences=2,
                          log=said.append)
  assert set(figures) == {'step', *([f'bleu_{want}'] if want else [])}
  assert said[0] == f'wrote {tmp_path}/out' and said[1].startswith(
      f'{want}: BLEU' if want else 'test_distinct: not measured')
  described = json.loads((tmp_path / 'out' / native.CONFIG).read_text())
  assert described['info'] == figures
  (root / 'test.jsonl').write_text('{')
  with pytest.raises(ValueError, match='line 1 is not JSON'):
    export.export(run, str(tmp_path / 'new'))
  assert native.load(tmp_path / 'new')[0] == run.lm


def test_a_run_directory_loads_as_a_model(corpus, whole, tmp_path):
  found = checkpoints.load(whole[0])
  assert found.lm == run_of(corpus, whole[0]).lm
  assert found.tokenizer.size == tinypair.PIECES
  jax.tree.map(np.testing.assert_array_equal, found.params, whole[1].params)
  old = pathlib.Path(shutil.copytree(whole[0], tmp_path / 'old'))
  (old / orbax.MODEL).unlink()
  with pytest.raises(ValueError, match='No model.json .* train on'):
    checkpoints.load(old)
  loop.train(run_of(corpus, old), log=lambda line: None)
  assert checkpoints.load(old).lm == found.lm


def test_a_run_starts_from_a_shallower_one(corpus, whole, tmp_path):
  deeper = t5.T5(t5.T5Config(**{**SIZES, 'num_decoder_layers': 2}))
  run = dataclasses.replace(run_of(corpus, tmp_path, steps=0), lm=deeper,
                            init_from=str(whole[0]))
  grown = loop.train(run, log=lambda line: None).params['decoder']
  want = whole[1].params['decoder']['layers_0']
  jax.tree.map(np.testing.assert_array_equal, grown['layers_0'], want)
  outputs = {'wo', 'out'}
  for path, got in jax.tree_util.tree_leaves_with_path(grown['layers_1']):
    names = [key.key for key in path]
    source = functools.reduce(lambda tree, name: tree[name], names, want)
    scale = grow.DAMPING if outputs & set(names) else 1.0
    np.testing.assert_allclose(got, scale * source, rtol=1e-6)


def test_a_teacher_is_followed(corpus, teacher, tmp_path):
  lines = []
  run = student_of(corpus, tmp_path / 'run', teacher, steps=120, log_every=20,
                   eval_every=120, save_every=120, cooldown=40)
  loop.train(run, log=lines.append)
  read = lambda name: [float(re.search(name + r' ([0-9.]+)', line)[1])
                       for line in lines if 'tokens/s' in line]
  distance, agreement = read('loss'), read('agreement')
  assert distance[-1] < distance[0] / 2
  assert 0 <= agreement[0] < agreement[-1] <= 1
  other = tinypair.make_vocabulary(tmp_path, pieces=tinypair.PIECES - 8)
  with pytest.raises(ValueError, match='vocabularies'):
    loop.train(dataclasses.replace(
        run, model_dir=str(tmp_path / 'other'),
        lm=t5.T5(t5.T5Config(**{**SIZES, 'vocab_size': tinypair.PIECES - 8})),
        corpus=dataclasses.replace(
            corpus, vocabulary=text.Vocabulary(str(other)))))


def student_of(corpus, directory, teacher, **changes):
  """A smaller model that learns from an exported one."""
  sizes = {**SIZES, 'dropout_rate': 0.0, 'mlp_dim': 24}
  return dataclasses.replace(
      run_of(corpus, directory, **changes), lm=t5.T5(t5.T5Config(**sizes)),
      teacher=str(teacher))


def test_a_student_learns_from_its_own_texts(corpus, teacher, tmp_path):
  """Every batch is its own; how far it is from the teacher there falls."""
  lines = []
  run = student_of(corpus, tmp_path, teacher, steps=60, log_every=20,
                   eval_every=60, save_every=60, cooldown=20)
  run = dataclasses.replace(
      run, on_policy=policies.OnPolicy(share=1.),
      distillation=losses.Distillation(divergences.TVD()))
  loop.train(run, log=lines.append)
  read = lambda name: [float(re.search(name + r' ([0-9.]+)', line)[1])
                       for line in lines if 'tokens/s' in line]
  distance, acceptance = read('loss'), read('acceptance')
  np.testing.assert_allclose(np.add(distance, acceptance), 1, atol=.01)
  assert acceptance[-1] > acceptance[0] + .05


def test_an_evaluation_says_what_a_student_buys(corpus, teacher, tmp_path):
  """As many tokens a call as are predicted, but for chance at T = 1."""
  lines = []
  run = student_of(corpus, tmp_path, teacher, steps=4, eval_every=4, gamma=2)
  loop.train(run, log=lines.append)
  row = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert row['predicted_T0'] == pytest.approx(row['tokens_per_call_T0'])
  assert row['predicted_T1'] == pytest.approx(row['tokens_per_call_T1'], .3)
  assert 1 <= row['tokens_per_call_T0'] <= 3
  assert 0 <= row['validation_acceptance'] <= 1
  assert any('T=0, gamma 2: ' in line for line in lines)
  off = bought.Bought(0., 2, predicted=2., decoded=1.5)
  assert 'warning' in off.warning and '2.00' in off.warning
  assert bought.Bought(0., 2, predicted=1.52, decoded=1.5).warning is None


def test_what_diverges_stops_and_names_its_batch(corpus, tmp_path):
  run = run_of(corpus, tmp_path, save_every=1, log_every=12)
  loop.train(dataclasses.replace(run, recipe=recipe(steps=2, save_every=1)),
             log=lambda line: None)
  wild = dataclasses.replace(
      run, optimizer=lambda rate: optimizers.adafactor(lambda step: 1e30))
  with pytest.raises(ValueError, match=(
      r'is (nan|inf) at step \d \(batch \d of epoch \d, 4 pairs of up to 48 '
      r"tokens, the first '.*'\). The last checkpoint is that of step \d")):
    loop.train(wild, log=lambda line: None)
  params, _ = start.restore(tmp_path)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


def test_parameters_that_are_not_finite_are_not_kept(
    corpus, tmp_path, monkeypatch):
  """The step before them is, of which the line speaks."""
  run = run_of(corpus, tmp_path, steps=4, save_every=1, log_every=9)
  loop.train(dataclasses.replace(run, recipe=recipe(steps=2, save_every=1)),
             log=lambda line: None)
  diverge(monkeypatch, loss=False)
  with pytest.raises(ValueError, match=(
      'Parameters are not finite behind step 3, and no checkpoint of it is '
      'kept; that of step 2 is whole. Lower the')):
    loop.train(run, log=lambda line: None)
  params, step = start.restore(tmp_path)
  assert step == 2
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


def test_a_checkpoint_that_fails_behind_the_step_is_named_by_its_own(
    tmp_path, monkeypatch):
  """Orbax writes beside the steps; its error shows as the next one begins."""
  with ocp.CheckpointManager(tmp_path / 'checkpoints') as manager:
    saver, params = saving.Saver(manager), dict(x=np.ones(3, np.float32))
    saver(1, params, params)
    saver.wait()
    saver(2, params, params)

    def fail():
      raise OSError('No space left on device')

    with monkeypatch.context() as failing:
      failing.setattr(manager, 'wait_until_finished', fail)
      with pytest.raises(ValueError, match=(
          r"checkpoint of step 2 in .* can't be written \(OSError: No space")):
        saver(3, params, params)


@pytest.mark.parametrize('loss,match', [
    (True, r'The loss is nan at step 1 \(batch 0 of .*\). There is no check'),
    (False, r"texts of step 2 \(batch 1 of .*\) can't be written: Text 0 stop"
     '.* There is no checkpoint yet; lower the learning rate')],
    ids=['loss', 'parameters'])
def test_what_diverges_is_named_before_it_writes_texts(
    corpus, teacher, tmp_path, monkeypatch, loss, match):
  run = dataclasses.replace(student_of(corpus, tmp_path, teacher),
                            on_policy=policies.OnPolicy(share=1.))
  diverge(monkeypatch, loss=loss)
  with pytest.raises(ValueError, match=match) as error:
    loop.train(run, log=lambda line: None)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('lines,match', [
    (None, 'no split validation, on which it is evaluated; it has train, test'),
    ([], 'split validation, .* has no pair of up to 48 tokens; give'),
    ([dict(en='Open it.', de='Auf.', near_duplicate=True)],
     'up to 48 tokens without a near-duplicate in train'),
    ([dict(en='Open it.')], 'line 1 has no text en or no text de')],
    ids=['absent', 'empty', 'near-duplicates', 'damaged'])
def test_what_can_not_be_evaluated_is_refused_before_a_step(
    corpus, tmp_path, lines, match):
  root = pathlib.Path(shutil.copytree(corpus.directory, tmp_path / 'corpus'))
  (root / 'validation.jsonl').unlink()
  if lines is not None:
    (root / 'validation.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  run = run_of(dataclasses.replace(corpus, directory=str(root)),
               tmp_path / 'run')
  with pytest.raises(ValueError, match=match) as error:
    loop.train(run, log=lambda line: None)
  assert '\n' not in str(error.value) and not (tmp_path / 'run').exists()


def test_an_evaluation_that_fails_loses_no_step_and_is_made_later(
    corpus, tmp_path, monkeypatch):
  run = run_of(corpus, tmp_path, steps=2, save_every=9, eval_every=2)

  def fail(*args):
    raise ValueError('No room.')

  with monkeypatch.context() as failing:
    failing.setattr(quality.Validation, '__call__', fail)
    with pytest.raises(ValueError, match='No room'):
      loop.train(run, log=lambda line: None)
  assert start.restore(tmp_path)[1] == 2
  for times in (1, 0):                  # then there is nothing left to do
    said = []
    loop.train(run, log=said.append)
    assert sum('bleu' in line for line in said) == times
    assert not any('tokens/s' in line for line in said)


@pytest.mark.parametrize('freeze,match', [
    (('*x',), r"Got '\*x' to freeze \(nothing to repeat"),
    ('abc', "Got 'abc' to freeze; allowed: a tuple"), ((3,), r'Got \(3,\) to')])
def test_what_is_no_pattern_is_refused(corpus, tmp_path, freeze, match):
  with pytest.raises(ValueError, match=match):
    dataclasses.replace(run_of(corpus, tmp_path), freeze=freeze)


@pytest.mark.parametrize('loss', [
    losses.Distillation(mix=1.), losses.Boosted()])
def test_own_texts_have_no_targets_to_learn_from(corpus, teacher, tmp_path,
                                                 loss):
  run = dataclasses.replace(student_of(corpus, tmp_path, teacher),
                            on_policy=policies.OnPolicy(.5), distillation=loss)
  with pytest.raises(ValueError, match='learns nothing from targets that it'):
    loop.train(run)


def test_own_texts_need_a_teacher(corpus, tmp_path):
  run = dataclasses.replace(run_of(corpus, tmp_path),
                            on_policy=policies.OnPolicy(.5))
  with pytest.raises(ValueError, match='share of 0.5 and no teacher'):
    loop.train(run)


def test_frozen_parameters_stay(corpus, whole, tmp_path):
  run = dataclasses.replace(run_of(corpus, tmp_path, steps=2),
                            freeze=('token_embedder/',),
                            init_from=str(whole[0]))
  params = loop.train(run, log=lambda line: None).params
  same = jax.tree_util.tree_map_with_path(
      lambda path, a, b: (optimizers.name(path), (a == b).all()),
      params, whole[1].params)
  same = dict(jax.tree.leaves(same, is_leaf=lambda x: isinstance(x, tuple)))
  assert [name for name, x in same.items() if x] == ['token_embedder/embedding']


def test_tensorboard_gets_what_the_metrics_file_gets(corpus, tmp_path):
  pytest.importorskip('tensorboard')
  loop.train(run_of(corpus, tmp_path, steps=3, eval_every=3, tensorboard=True),
             log=lambda line: None)
  from tensorboard.backend.event_processing import event_accumulator
  events = event_accumulator.EventAccumulator(
      str(tmp_path / 'tensorboard'), {'tensors': 0})
  events.Reload()
  rows = [json.loads(line) for line in
          (tmp_path / 'metrics.jsonl').read_text().splitlines()]
  names = {name for row in rows for name in row} - {'step', 'time'}
  assert {'loss', 'bleu', 'validation_loss'} <= names
  assert names == set(events.Tags()['tensors'])
