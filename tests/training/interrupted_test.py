"""Runs that are killed, or that a disk fails, go on as if nothing had been."""
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from spec_cascades.models import t5
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from spec_cascades.training import quality
from spec_cascades.training import settings
from spec_cascades.training import start
from training.runs import SIZES, recipe, run_of

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
from spec_cascades.training import quality
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
  resumed(tmp_path, command_of(tmp_path, corpus, recipe()), whole)


TASK = """
import functools
import json
import seqio
import tensorflow as tf

def rows(split, shuffle_files=False, seed=None):
  with open('{directory}/' + split + '.jsonl', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  return tf.data.Dataset.from_tensor_slices(dict(
      inputs=[x['en'] for x in lines], targets=[x['de'] for x in lines],
      near_duplicate=[x['near_duplicate'] for x in lines]))

feature = seqio.Feature(seqio.SentencePieceVocabulary('{vocabulary}'))
seqio.TaskRegistry.add(
    'killed', source=seqio.FunctionDataSource(
        rows, splits=('train', 'validation')),
    preprocessors=[seqio.preprocessors.tokenize],
    output_features=dict(inputs=feature, targets=feature))
"""
READER = """
from spec_cascades.evaluation import seqio_tasks
from spec_cascades.training import seqio_lines
data.ParallelText.directory = None
data.ParallelText.source = 'inputs'
data.ParallelText.target = 'targets'
data.ParallelText.reader = @seqio_lines.SeqioLines()
seqio_lines.SeqioLines.registered = @seqio_tasks.Registered()
seqio_tasks.Registered.mixture_or_task_name = 'killed'
seqio_tasks.Registered.mixture_or_task_module = 'killed'
"""


@pytest.mark.slow
def test_a_killed_run_on_a_seqio_task_resumes_bitwise(corpus, whole, tmp_path):
  """Its texts are those of the files, so that the whole run is theirs."""
  pytest.importorskip('seqio')
  (tmp_path / 'killed.py').write_text(TASK.format(
      directory=corpus.directory, vocabulary=corpus.vocabulary.path),
      encoding='utf-8')
  resumed(tmp_path, command_of(tmp_path, corpus, recipe(), READER), whole)


def resumed(directory, command, whole):
  """Kills a run behind step 4; resumed, it ends as the whole run did."""
  environment = {**os.environ, 'PYTHONPATH': f'{ROOT}:{directory}'}
  process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
  saved = directory / 'run' / 'checkpoints' / '4'
  limit = time.time() + 120
  while not saved.exists() and process.poll() is None and time.time() < limit:
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  output, _ = process.communicate()
  assert saved.exists(), output
  result = subprocess.run(command, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
  assert result.returncode == 0, result.stderr
  params, step = start.restore(str(directory / 'run'))
  assert step == 12
  for got, want in zip(jax.tree.leaves(params),
                       jax.tree.leaves(whole[1].params)):
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_a_full_disk_keeps_what_was_saved(corpus, tmp_path):
  """In a process whose files may not grow: as when there is no room."""
  command = command_of(tmp_path, corpus, recipe(steps=4, save_every=2))
  limited = [sys.executable, '-c', f'''
import resource, runpy, signal, sys, threading
from spec_cascades.training import saving
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
whole = saving.saved
def saved(state):
  if int(state.step) == 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
  return whole(state)
saving.saved = saved
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
  assert failed.stderr.splitlines()[-1] == line
  # TensorStore's threads may complain of an event loop; nothing else does.
  assert not re.search('File ".*(orbax|spec_cascades)/', failed.stderr)
  assert start.restore(tmp_path / 'run')[1] == 2
  result = subprocess.run(command, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
  assert 'resuming at step 2' in result.stdout, result.stderr
  assert start.restore(tmp_path / 'run')[1] == 4


def test_sigterm_saves_and_ends_the_run(corpus, whole, tmp_path):
  """Where no checkpoint was due; it goes on bitwise, and later signals end.

  An evaluation that was due waits until the run goes on.
  """
  before, lines = signal.getsignal(signal.SIGTERM), []

  def tell(line):
    lines.append(line)
    if line.startswith('step 6/'):
      os.kill(os.getpid(), signal.SIGTERM)

  state = loop.train(run_of(corpus, tmp_path, eval_every=6), log=tell)
  assert int(state.step) == start.restore(tmp_path)[1] == 6
  assert signal.getsignal(signal.SIGTERM) is before
  assert not any(line.startswith('step 6 ') for line in lines)
  assert lines[-1] == 'stopped at step 6; the same command goes on'
  again = loop.train(run_of(corpus, tmp_path, eval_every=6), log=lines.append)
  assert int(again.step) == 12
  assert any(line.startswith('step 6 ') for line in lines)
  jax.tree.map(np.testing.assert_array_equal, again.params, whole[1].params)


@pytest.mark.parametrize('ends', [
    pytest.param(True, marks=pytest.mark.slow), False])
def test_sigterm_in_an_evaluation_loses_no_step(
    corpus, whole, tmp_path, monkeypatch, ends):
  """Where no checkpoint was due, and be it that the evaluation never ends."""
  def told(*unused):
    os.kill(os.getpid(), signal.SIGTERM)
    if not ends:
      raise KeyboardInterrupt           # as good as a SIGKILL behind it
    return {}, []

  run, lines = run_of(corpus, tmp_path, save_every=9, eval_every=6), []
  with monkeypatch.context() as patched:
    patched.setattr(quality.Validation, '__call__', told)
    with contextlib.suppress(KeyboardInterrupt):
      loop.train(run, log=lines.append)
  assert start.restore(tmp_path)[1] == 6
  stopped = 'stopped at step 6; the same command goes on' in lines
  assert stopped == ends
  again = loop.train(run, log=lines.append)
  assert 'resuming at step 6' in lines and int(again.step) == 12
  assert any(line.startswith('step 6  validation') for line in lines) != ends
  assert 'stopped' not in lines[-1]
  jax.tree.map(np.testing.assert_array_equal, again.params, whole[1].params)


def test_a_full_disk_is_named_and_checkpoints_stay(
    corpus, tmp_path, monkeypatch):
  """What was saved at step 1 is whole, whatever could not be written then."""
  numbers = dict(save_every=1, eval_every=9, log_every=9)
  loop.train(run_of(corpus, tmp_path, steps=1, **numbers),
             log=lambda line: None)
  full = run_of(corpus, tmp_path, steps=2, **{**numbers, 'log_every': 2})
  (tmp_path / 'metrics.jsonl').unlink()
  (tmp_path / 'metrics.jsonl').mkdir()           # as little to write to
  with pytest.raises(ValueError, match=(
      r"metrics.jsonl can't be written at step 2 \(.*\); checkpoints are "
      'whole. Make room')):
    loop.train(full, log=lambda line: None)
  (tmp_path / 'metrics.jsonl').rmdir()
  usage = shutil.disk_usage(tmp_path)._replace(free=1000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(ValueError, match=(
      r"of step 2 in .* can't be written \(OSError: 0 MB are free, up to 0 MB "
      r'are needed\); those before it are whole. Make room')):
    loop.train(full, log=lambda line: None)
  assert [x.name for x in (tmp_path / 'checkpoints').iterdir()] == ['1']
  assert start.restore(tmp_path)[1] == 1


def test_a_checkpoint_of_another_model_or_optimiser_stays(
    corpus, whole, tmp_path):
  """What is other is said, not that a good checkpoint be deleted."""
  run = run_of(corpus, shutil.copytree(whole[0], tmp_path / 'run'))
  wider = t5.T5(t5.T5Config(**{**SIZES, 'mlp_dim': 24}))
  deeper = t5.T5(t5.T5Config(**{**SIZES, 'num_decoder_layers': 2}))
  for changes, match in (
      (dict(lm=wider), r'lm.config.mlp_dim was 16, is 24\.'),
      (dict(lm=deeper), r'lm.config.num_decoder_layers was 1, is 2\.'),
      (dict(optimizer=optimizers.adamw), 'was .*adafactor, is .*adamw'),
      (dict(freeze=('token_',)), r"freeze was \(\), is \('token_',\)")):
    with pytest.raises(ValueError, match=match) as error:
      loop.train(dataclasses.replace(run, **changes), log=lambda line: None)
    assert 'delete' not in str(error.value)
    assert f'{tmp_path}/run/checkpoints/12 is of another' in str(error.value)
  place = tmp_path / 'run' / settings.FILE
  assert settings.TEXTS in place.read_text()
  place.unlink()
  with pytest.raises(ValueError, match=r'iser: .*/kernel there \(16, 16\), '
                     r'here \(.*24.*\)\. Give those'):
    loop.train(dataclasses.replace(run, lm=wider), log=lambda line: None)


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
