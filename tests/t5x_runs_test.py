"""T5X's own scripts with the files of gin/t5x, on tiny models."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.checkpoints import t5x as t5x_format
from spec_cascades.drafters import chain
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from tests import tinypair

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH, LENGTH = 16, 24
SIZES = dict(verifier=dict(emb_dim=16, mlp_dim=16, num_heads=2,
                           num_encoder_layers=2, num_decoder_layers=2),
             drafter=dict(emb_dim=8, mlp_dim=8, num_heads=2,
                          num_encoder_layers=1, num_decoder_layers=1))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec('t5x') is None,
                       reason='T5X is not installed (not on the index)')]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  """A vocabulary, and T5X checkpoints of a random verifier and drafter."""
  root = tmp_path_factory.mktemp('t5x')
  tinypair.make_vocabulary(root)
  for seed, (name, sizes) in enumerate(SIZES.items()):
    lm = t5.T5(t5.T5Config(vocab_size=tinypair.PIECES, head_dim=8, **sizes))
    t5x_format.save(root / name, lm.init_params(jax.random.key(seed)))
  return root


def t5x(root, script, **bindings):
  """Runs a file of gin/t5x as its head says, for a small task."""
  vocabulary = str(root / f'{tinypair.PIECES}.model')
  module = 'train' if script in ('finetune', 'distill') else script
  bindings = {
      'VOCABULARY_PATH': vocabulary, 'VOCAB_SIZE': tinypair.PIECES,
      'MIXTURE_OR_TASK_NAME': 't5x_task',
      'MIXTURE_OR_TASK_MODULE': 'tests.t5x_task',
      'TASK_FEATURE_LENGTHS': dict(inputs=WIDTH, targets=LENGTH),
      'network.T5Config.head_dim': 8, **bindings,
      **{f'{part}/network.T5Config.{name}': size
         for part, sizes in SIZES.items() for name, size in sizes.items()}}
  path = os.pathsep.join((str(ROOT), os.environ.get('PYTHONPATH', '')))
  done = subprocess.run(
      [sys.executable, '-m', f't5x.{module}',
       f'--gin_file=gin/t5x/{script}.gin',
       *(f'--gin.{name}={json.dumps(x) if isinstance(x, str) else x}'
         for name, x in bindings.items())],
      cwd=ROOT, text=True, capture_output=True,
      env={**os.environ, 'T5X_TASK_VOCABULARY': vocabulary,
           'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'})
  assert done.returncode == 0, done.stderr[-3000:]


# What takes long, and is on by default.
LEAN = {'train.infer_eval_dataset_cfg': None,
        'train/utils.DatasetConfig.pack': False,
        'train_eval/utils.DatasetConfig.pack': False}


def trained(root, script, start, steps, lean=True, **bindings):
  """The directory of a training run."""
  directory = root / (script if lean else f'{script}_whole')
  t5x(root, script, INITIAL_CHECKPOINT_PATH=str(start), TRAIN_STEPS=steps,
      MODEL_DIR=str(directory), BATCH_SIZE=8, RANDOM_SEED=0, EVAL_STEPS=1,
      EVAL_PERIOD=20, **{
          'utils.SaveCheckpointConfig.period': 20,
          'train/utils.DatasetConfig.seed': 0, **(LEAN if lean else {}),
          **bindings})
  return directory


def inferred(root, drafter, **bindings):
  """The lines that T5X's infer writes."""
  directory = root / f'infer_{pathlib.Path(drafter).name}'
  t5x(root, 'infer', VERIFIER_PATH=str(root / 'verifier'),
      CHECKPOINT_PATH=str(drafter), INFER_OUTPUT_DIR=str(directory), **{
          'utils.DatasetConfig.batch_size': 4,
          'infer.checkpoint_ds_iter': False, **bindings})
  path, = directory.glob('*.jsonl-00000-of-00001')
  return [json.loads(line) for line in path.read_text().splitlines()]


def decoded(root, drafter, lines):
  """Texts and counters of the same inputs from our loop, outside of T5X."""
  vocabulary = text.Vocabulary(str(root / f'{tinypair.PIECES}.model'))
  large, small = (checkpoints.load(x) for x in (root / 'verifier', drafter))
  spec = decode.GenSpecSample(large.lm, chain.Chain(small.lm, 5), LENGTH + 1)
  rows = [vocabulary.encode(x['inputs']['inputs_pretokenized']) for x in lines]
  state = spec(large.lm.pack(large.params), small.lm.pack(small.params),
               text.encoder_prompt(rows, WIDTH),
               decode.row_keys(0, range(len(rows))), targets.Lossless(),
               warp.Warp(0.0))
  tokens = np.asarray(state.tokens)[:, 1:]
  return [vocabulary.decode(row) for row in tokens], state.stats


def test_a_drafter_goes_through_t5x_and_back(root):
  """Fine-tuned, distilled and resumed by T5X; decoded in T5X and here."""
  finetuned = trained(
      root, 'finetune', root / 'drafter' / 'checkpoint_0', 20, **{
          'utils.RestoreCheckpointConfig.fallback_to_scratch': True,
          'utils.RestoreCheckpointConfig.assignment_map':
              [('state/param_states.*', None)]})
  first = checkpoints.load(finetuned)
  assert first.lm.config.emb_dim == 8
  verifier = dict(VERIFIER_PATH=str(root / 'verifier'))
  for steps in (40, 60):
    distilled = trained(root, 'distill', finetuned / 'checkpoint_20', steps,
                        **verifier)
  assert sorted(x.name for x in distilled.glob('checkpoint_*')) == [
      'checkpoint_20', 'checkpoint_40', 'checkpoint_60']
  last = checkpoints.load(distilled)
  assert last.lm == first.lm
  assert any((x != y).any() for x, y in zip(
      jax.tree.leaves(first.params), jax.tree.leaves(last.params)))

  lines = inferred(root, distilled / 'checkpoint_60')
  texts, stats = decoded(root, distilled, lines)
  assert [x['prediction'] for x in lines] == texts and len(texts) == 11
  for name in ('emitted', 'accepted', 'verifier_calls', 'histogram'):
    assert [x['aux'][name] for x in lines] == getattr(stats, name).tolist()

  t5x(root, 'eval', **verifier, CHECKPOINT_PATH=str(
      distilled / 'checkpoint_60'), EVAL_OUTPUT_DIR=str(root / 'eval'),
      RULE='Chow', ALPHA=0.5, GAMMA=3, TEMPERATURE=1.0)
  path, = (root / 'eval').rglob('*-metrics.jsonl')
  assert json.loads(path.read_text())['tokens_per_call'] > 1


def test_a_drafter_is_distilled_as_the_file_has_it(root):
  """Packed examples, and texts that T5X decodes with it as it trains."""
  whole = trained(root, 'distill', root / 'drafter' / 'checkpoint_0', 20, False,
                  VERIFIER_PATH=str(root / 'verifier'), **{
                      'utils.RestoreCheckpointConfig.fallback_to_scratch': True,
                      'utils.RestoreCheckpointConfig.assignment_map':
                          [('state/param_states.*', None)]})
  assert (whole / 'checkpoint_20').is_dir()
  path, = whole.rglob('inference_eval/**/*-metrics.jsonl')
  assert json.loads(path.read_text().splitlines()[-1])['tokens_per_call'] >= 1
