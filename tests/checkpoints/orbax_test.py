"""Run directories of the training loop, as Orbax writes them."""
import json
import os
import pathlib
import shutil

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from checkpoints.t5x_faults_test import fuzz
from checkpoints.t5x_test import assert_equal
from spec_cascades import checkpoints
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import orbax
from spec_cascades.models import t5
from tests.models import tiny
import tinypair

SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1,
             num_decoder_layers=1, mlp_dim=24, relative_buckets=8)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run directory of two steps, as the training loop leaves it."""
  folder = tmp_path_factory.mktemp('run')
  vocabulary = tinypair.make_vocabulary(tmp_path_factory.mktemp('words'))
  lm = t5.T5(t5.T5Config(vocab_size=tinypair.PIECES, **SIZES))
  orbax.describe(folder, lm, {native.VOCABULARY: vocabulary.read_bytes()})
  with ocp.CheckpointManager(folder / 'checkpoints') as saves:
    for step in (8, 12):
      params = tiny.params_of(lm, step)
      state = dict(step=jnp.int32(step), params=params,
                   opt_state=(params['decoder']['decoder_norm'], None))
      saves.save(step, args=ocp.args.StandardSave(state))
    saves.wait_until_finished()
  return folder, lm


@pytest.fixture
def copy(run, tmp_path):
  return pathlib.Path(shutil.copytree(run[0], tmp_path / 'run'))


def test_a_run_is_its_newest_step(run):
  folder, lm = run
  for path, step in (('', 12), ('checkpoints', 12), ('checkpoints/8', 8),
                     ('checkpoints/8/default', 8)):
    found = checkpoints.load(folder / path)
    assert found.lm == lm and found.tokenizer.size == tinypair.PIECES
    assert_equal(found.params, tiny.params_of(lm, step))


def test_a_run_that_is_converted_keeps_its_vocabulary(run, tmp_path):
  converting.convert(run[0], tmp_path / 'a')
  assert checkpoints.load(tmp_path / 'a').tokenizer.size == tinypair.PIECES


def test_a_step_that_is_not_complete_is_passed_over(copy):
  shutil.rmtree(copy / 'checkpoints/12/default')
  (copy / 'checkpoints/20.orbax-checkpoint-tmp-3/default').mkdir(parents=True)
  assert orbax.source(copy).path == copy / 'checkpoints/8/default'


ITEM = pathlib.Path('checkpoints/12/default')


def metadata(copy, change):
  path = copy / ITEM / '_METADATA'
  found = json.loads(path.read_text())
  change(found['tree_metadata'])
  path.write_text(json.dumps(found))


def entry(*keys):
  return {str(keys): dict(
      key_metadata=[dict(key=key, key_type=2) for key in keys],
      value_metadata=dict(value_type='jax.Array', skip_deserialize=False))}


def data(copy):
  """The largest file of the store: arrays lie in it."""
  return max((copy / ITEM).rglob('d/*'), key=lambda x: x.stat().st_size)


FAULTS = {
    'model': (lambda x: (x / 'model.json').unlink(), 'No model.json beside'),
    'json': (lambda x: os.truncate(x / 'model.json', 30), 'model.json is dam'),
    'family': (lambda x: (x / 'model.json').write_text(
        '{"format": 1, "family": "gpt"}'), "family 'gpt'; allowed: 1, t5"),
    'field': (lambda x: (x / 'model.json').write_text(json.dumps(dict(
        format=1, family='t5', config=dict(depth=3)))), 'sets depth'),
    'type': (lambda x: (x / 'model.json').write_text(json.dumps(dict(
        format=1, family='t5', config=dict(mlp_activations=3)))), 'damaged'),
    'size': (lambda x: (x / 'model.json').write_text(json.dumps(dict(
        format=1, family='t5', config=SIZES | dict(
            vocab_size=tinypair.PIECES, mlp_dim=25)))), 'wrong shape'),
    'vocabulary': (lambda x: (x / native.VOCABULARY).write_text('x'),
                   'is not a SentencePiece model'),
    'no vocabulary': (lambda x: (x / native.VOCABULARY).unlink(),
                      'No vocabulary at'),
    'pieces': (lambda x: shutil.copy(tinypair.make_vocabulary(
        x / 'checkpoints', tinypair.PIECES + 8), x / native.VOCABULARY),
               '520 tokens, but the model has 512'),
    'tree': (lambda x: os.truncate(x / ITEM / '_METADATA', 300), 'cut off'),
    'array': (lambda x: metadata(x, lambda t: t.update(entry(
        'params', 'decoder', 'more'))), 'lacks the arrays params.decoder.more'),
    'missing': (lambda x: metadata(x, lambda t: t.pop(
        "('params', 'decoder', 'decoder_norm', 'scale')")),
                'missing: decoder/decoder_norm/scale'),
    'other': (lambda x: metadata(x, lambda t: t.pop(
        "('params', 'token_embedder', 'embedding')")), 'neither a run'),
    'manifest': (lambda x: os.truncate(x / ITEM / 'manifest.ocdbt', 40),
                 'damaged'),
    'data': (lambda x: os.truncate(data(x), 99), 'damaged'),
    'gone': (lambda x: shutil.rmtree(x / ITEM / 'ocdbt.process_0'), 'damaged'),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_damage_is_one_clear_line(fault, copy):
  change, what = FAULTS[fault]
  change(copy)
  with pytest.raises(ValueError, match=what) as error:
    checkpoints.load(copy)
  assert '\n' not in str(error.value) and str(copy) in str(error.value)


def test_fuzzed_metadata_of_a_run_is_an_error_or_a_load(copy, monkeypatch):
  names = [ITEM / '_METADATA', ITEM / 'manifest.ocdbt',
           data(copy).relative_to(copy), pathlib.Path('model.json')]
  assert fuzz(copy, names, monkeypatch, 100) < 40
  # Some of these are of no use any more, how many is for Orbax to say.
  fuzz(copy, [x.relative_to(copy) for x in sorted((copy / ITEM).rglob('d/*'))
              if x.stat().st_size < 8000], monkeypatch, 100)
