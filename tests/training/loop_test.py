"""Resuming is exact: killed runs end where uninterrupted ones do."""
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

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
from spec_cascades.training import data
from spec_cascades.training import divergences
from spec_cascades.training import export
from spec_cascades.training import grow
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import policies
from spec_cascades.training import start
from training.data_test import write_corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = dict(vocab_size=tinypair.PIECES, emb_dim=16, num_heads=2, head_dim=8,
             num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16,
             logits_via_embedding=True, dropout_rate=0.1)


def recipe(**changes):
  return loop.Recipe(**{**dict(
      steps=12, warmup=4, cooldown=4, log_every=3, save_every=4, eval_every=12,
      eval_sentences=4, eval_batch=2, max_length=8, gamma=0), **changes})


def run_of(corpus, directory, **changes):
  return loop.Run(t5.T5(t5.T5Config(**SIZES)), corpus, str(directory),
                  recipe(**changes))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  write_corpus(directory)
  vocabulary = text.Vocabulary(str(tinypair.make_vocabulary(directory)))
  return data.ParallelText(str(directory), vocabulary, buckets=(48,),
                           tokens_per_batch=192)


@pytest.fixture(scope='module')
def whole(corpus, tmp_path_factory):
  """An uninterrupted run: its directory and its last state."""
  directory = tmp_path_factory.mktemp('whole')
  lines = []
  state = loop.train(run_of(corpus, directory), log=lines.append)
  return directory, state, lines


def test_a_run_reports_progress_loss_and_bleu(whole):
  directory, state, lines = whole
  assert int(state.step) == 12
  assert any('left' in line and 'tokens/s' in line for line in lines)
  assert any('bleu' in line for line in lines)
  assert len((directory / 'metrics.jsonl').read_text().splitlines()) == 5


def test_checkpoints_are_written_in_chunks(whole, tmp_path, monkeypatch):
  """Or reading one would take a large array three times in memory."""
  _, state, _ = whole
  monkeypatch.setattr(loop, 'CHUNK_BYTES', 1000)
  with ocp.CheckpointManager(tmp_path / 'checkpoints') as saves:
    saves.save(12, args=loop.saved(state))
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


def command_of(directory, corpus, numbers, more=''):
  """Trains in a process of its own, in directory/run; `more` is gin."""
  gin = directory / 'run.gin'
  gin.write_text(f'''
from __gin__ import dynamic_registration
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.training import data
from spec_cascades.training import divergences
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import policies
text.Vocabulary.path = {corpus.vocabulary.path!r}
data.ParallelText.directory = {corpus.directory!r}
data.ParallelText.vocabulary = @text.Vocabulary()
data.ParallelText.buckets = (48,)
data.ParallelText.tokens_per_batch = 192
loop.Run.corpus = @data.ParallelText()
loop.Run.recipe = @loop.Recipe()
loop.train.run = @loop.Run()
t5.T5.config = @t5.T5Config()
loop.Run.lm = @t5.T5()
loop.Run.model_dir = {str(directory / 'run')!r}
''' + ''.join(f't5.T5Config.{k} = {v!r}\n' for k, v in SIZES.items()) + ''.join(
    f'loop.Recipe.{k} = {v!r}\n' for k, v in vars(numbers).items()) + more)
  return [sys.executable, str(ROOT / 'scripts/train.py'), f'--gin_file={gin}']


STUDENT = '''
loop.Run.teacher = {teacher!r}
loop.Run.optimizer = @optimizers.adamw
loop.Run.freeze = ('token_embedder/',)
loop.Run.distillation = @losses.Distillation()
losses.Distillation.divergence = @divergences.JSD()
losses.Distillation.mix = 0.1
loop.Run.on_policy = @policies.OnPolicy()
policies.OnPolicy.share = 0.5
'''


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_bitwise(corpus, teacher, tmp_path):
  """SIGKILL at 10 random steps of a student that writes its own texts."""
  numbers, rng = recipe(steps=24, save_every=2, accumulate=2, gamma=2), (
      np.random.default_rng(0))
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}

  def run(name, until=None):
    """Trains; killed once metrics.jsonl or a checkpoint has step `until`."""
    (tmp_path / name).mkdir(exist_ok=True)
    command = command_of(tmp_path / name, corpus, numbers,
                         STUDENT.format(teacher=str(teacher)))
    process = subprocess.Popen(command, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    saves = tmp_path / name / 'run' / 'checkpoints'
    while until is not None and process.poll() is None:
      if (saves / str(until)).exists():
        time.sleep(rng.uniform(0, .2))          # somewhere in what follows
        process.kill()
      time.sleep(.002)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == (0 if until is None else -signal.SIGKILL), (
        output)
    return start.restore(tmp_path / name / 'run')

  want, step = run('whole')
  assert step == 24
  for i, until in enumerate(rng.integers(1, 10, 10) * 2):
    _, reached = run(f'killed{i}', until)
    assert until - 2 <= reached < 24, 'The kill came too late to test anything.'
    got, step = run(f'killed{i}')
    assert step == 24
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_killed_run_resumes_bitwise(corpus, whole, tmp_path):
  """SIGKILL in the middle of a real process; the same call goes on."""
  command = command_of(tmp_path, corpus, recipe())
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
  saved = tmp_path / 'run' / 'checkpoints' / '4'
  limit = time.time() + 120
  while not saved.exists() and process.poll() is None and time.time() < limit:
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert saved.exists()
  result = subprocess.run(command, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
  assert result.returncode == 0, result.stderr
  params, step = start.restore(str(tmp_path / 'run'))
  assert step == 12
  for got, want in zip(jax.tree.leaves(params),
                       jax.tree.leaves(whole[1].params)):
    np.testing.assert_array_equal(got, want)


def test_a_vocabulary_of_another_size_is_refused(corpus, tmp_path):
  lm = t5.T5(t5.T5Config(**{**SIZES, 'vocab_size': 100}))
  run = dataclasses.replace(run_of(corpus, tmp_path), lm=lm)
  with pytest.raises(ValueError, match='512 pieces.*100'):
    loop.train(run)


def test_no_checkpoint_is_explained(tmp_path):
  with pytest.raises(ValueError, match='No checkpoint'):
    start.restore(str(tmp_path))


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


@pytest.fixture(scope='module')
def teacher(corpus, whole, tmp_path_factory):
  directory = tmp_path_factory.mktemp('teacher')
  export.export(run_of(corpus, whole[0]), str(directory),
                log=lambda line: None)
  return directory


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


def test_a_full_disk_keeps_what_was_saved(corpus, tmp_path):
  """In a process whose files may not grow: as when there is no room."""
  command = command_of(tmp_path, corpus, recipe(steps=4, save_every=2))
  limited = [sys.executable, '-c', f'''
import resource, runpy, signal, sys, threading
from spec_cascades.training import loop
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
whole = loop.saved
def saved(state):
  if int(state.step) == 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
  return whole(state)
loop.saved = saved
sys.argv = {command[1:]!r}
sys.path.insert(0, {str(ROOT / 'scripts')!r})
runpy.run_path(sys.argv[0], run_name='__main__')
''']
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  failed = subprocess.run(limited, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
  assert failed.returncode == 2, failed.stderr
  line, = (x for x in failed.stderr.splitlines() if x.startswith('train.py: '))
  assert 'checkpoint of step 4' in line and 'Make room' in line
  assert start.restore(tmp_path / 'run')[1] == 2
  result = subprocess.run(command, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
  assert 'resuming at step 2' in result.stdout, result.stderr
  assert start.restore(tmp_path / 'run')[1] == 4


def test_too_little_room_is_seen_before_writing(corpus, tmp_path, monkeypatch):
  usage = shutil.disk_usage(tmp_path)._replace(free=1000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(ValueError, match=(
      r"of step 1 in .* can't be written \(OSError: 0 MB are free, up to 0 MB "
      r'are needed\); those before it are whole. Make room')):
    loop.train(run_of(corpus, tmp_path, steps=1, eval_every=2, log_every=2),
               log=lambda line: None)
  assert not list((tmp_path / 'checkpoints').iterdir())


def test_a_damaged_checkpoint_is_named(corpus, tmp_path):
  numbers = dict(steps=2, save_every=1, eval_every=9)
  loop.train(run_of(corpus, tmp_path, **numbers), log=lambda line: None)
  store = tmp_path / 'checkpoints' / '2' / 'default'
  for path in store.rglob('*'):
    if path.is_file() and path.parent.name == 'd':
      path.write_bytes(b'damaged')
  again = run_of(corpus, tmp_path, **{**numbers, 'steps': 3})
  with pytest.raises(ValueError, match="of step 2 in .* can't be read.*delete"):
    loop.train(again, log=lambda line: None)
  shutil.rmtree(tmp_path / 'checkpoints' / '2')
  lines = []
  loop.train(again, log=lines.append)
  assert lines[0] == 'resuming at step 1'


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
