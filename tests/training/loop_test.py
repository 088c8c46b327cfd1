"""Resuming is exact: killed runs end where uninterrupted ones do."""
import dataclasses
import functools
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
from spec_cascades.training import data
from spec_cascades.training import export
from spec_cascades.training import grow
from spec_cascades.training import loop
from spec_cascades.training import start
from spec_cascades.training import train_step
from training.data_test import write_corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = dict(vocab_size=tinypair.PIECES, emb_dim=16, num_heads=2, head_dim=8,
             num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16,
             logits_via_embedding=True, dropout_rate=0.1)


def recipe(**changes):
  return loop.Recipe(**{**dict(
      steps=12, warmup=4, cooldown=4, log_every=3, save_every=4, eval_every=12,
      eval_sentences=4, eval_batch=2, max_length=8), **changes})


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


def test_a_killed_run_resumes_bitwise(corpus, whole, tmp_path):
  """SIGKILL in the middle of a real process; the same call goes on."""
  gin = tmp_path / 'run.gin'
  gin.write_text(f'''
from __gin__ import dynamic_registration
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.training import data
from spec_cascades.training import loop
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
loop.Run.model_dir = {str(tmp_path / 'run')!r}
''' + ''.join(f't5.T5Config.{k} = {v!r}\n' for k, v in SIZES.items()) + ''.join(
    f'loop.Recipe.{k} = {v!r}\n' for k, v in vars(recipe()).items()))
  command = [sys.executable, str(ROOT / 'scripts/train.py'),
             f'--gin_file={gin}']
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


def test_a_teacher_is_followed(corpus, whole, tmp_path):
  export.export(run_of(corpus, whole[0]), str(tmp_path / 'teacher'),
                log=lambda line: None)
  lines, sizes = [], {**SIZES, 'dropout_rate': 0.0, 'mlp_dim': 24}
  run = run_of(corpus, tmp_path / 'run', steps=120, log_every=20,
               eval_every=120, save_every=120, cooldown=40)
  run = dataclasses.replace(run, lm=t5.T5(t5.T5Config(**sizes)),
                            teacher=str(tmp_path / 'teacher'))
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
        lm=t5.T5(t5.T5Config(**{**sizes, 'vocab_size': tinypair.PIECES - 8})),
        corpus=dataclasses.replace(
            corpus, vocabulary=text.Vocabulary(str(other)))))


def test_the_schedule_rises_decays_and_cools_down():
  rate = train_step.schedule(peak=.02, warmup=10, total=100, cooldown=20)
  np.testing.assert_allclose(rate(4), .01)
  np.testing.assert_allclose(rate(9), .02)
  np.testing.assert_allclose(rate(39), .01)
  assert rate(90) < rate(79) / 1.5 and rate(99) > 0
  np.testing.assert_allclose(rate(100), 0, atol=1e-9)
