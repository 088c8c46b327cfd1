"""Damaged T5X checkpoints: one clear line, or a load."""
import functools
import os
import pathlib
import shutil
import time

from flax import serialization
from flax import traverse_util
import numpy as np
import pytest

from checkpoints.t5x_test import SMALL, write
from spec_cascades import checkpoints
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import t5x
from tests.models import tiny


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A checkpoint of the small model; copy it before changing it."""
  return t5x.save(tmp_path_factory.mktemp('saved'), tiny.params_of(SMALL), 20)


@pytest.fixture
def copy(saved, tmp_path):
  return pathlib.Path(shutil.copytree(saved, tmp_path / saved.name))


def edit(folder, change):
  """Changes the index's tree in place."""
  index = serialization.msgpack_restore((folder / 'checkpoint').read_bytes())
  change(index)
  (folder / 'checkpoint').write_bytes(serialization.msgpack_serialize(index))


def renamed(index, old, new):
  target = index['optimizer']['target']
  flat = traverse_util.flatten_dict(
      target, sep='/', is_leaf=lambda _, x: 'kvstore' in x)
  index['optimizer']['target'] = traverse_util.unflatten_dict(
      {new if k == old else k: x for k, x in flat.items()}, sep='/')


NORM = 'target.encoder.encoder_norm.scale'
SPEC = ('optimizer', 'target', 'encoder', 'encoder_norm', 'scale')
at = lambda index: functools.reduce(lambda x, k: x[k], SPEC, index)
FAULTS = {
    'array': (lambda x: shutil.rmtree(x / NORM), f'lacks the arrays {NORM}'),
    'header': (lambda x: (x / NORM / '.zarray').unlink(), 'lacks the arrays'),
    'chunk': (lambda x: (x / NORM / '0').unlink(), 'scale is damaged'),
    'truncated': (lambda x: os.truncate(x / 'checkpoint', 900), 'cut off'),
    'truncated chunk': (lambda x: os.truncate(x / NORM / '0', 20),
                        'damaged'),
    'flipped chunk': (lambda x: (x / NORM / '0').write_bytes(
        bytes(b ^ (i == 30) for i, b in enumerate(
            (x / NORM / '0').read_bytes()))), 'damaged'),
    'shape': (lambda x: edit(x, lambda i: at(i)['metadata'].update(
        shape=[17])), r'says that .* \(17,\), but its array is .* \(16,\)'),
    'dtype': (lambda x: edit(x, lambda i: at(i).update(dtype='bfloat16')),
              'says that .* bfloat16'),
    'outside': (lambda x: edit(x, lambda i: at(i)['kvstore'].update(
        path='../other')), 'lacks the arrays ../other'),
    'version': (lambda x: edit(x, lambda i: i.update(version=1)),
                'version 1; allowed: 2, 3'),
    'missing': (lambda x: edit(x, lambda i: i['optimizer']['target'][
        'encoder'].pop('encoder_norm')), 'missing: encoder/encoder_norm'),
    'scanned': (lambda x: edit(x, lambda i: renamed(
        i, 'encoder/encoder_norm/scale', 'encoder/encoder/mlp/wo/kernel')),
                'stacks its layers'),
    'umt5': (lambda x: edit(x, lambda i: renamed(
        i, 'encoder/relpos_bias/rel_embedding',
        'encoder/layers_0/relpos_bias/rel_embedding')), 'umT5'),
    'no encoder': (lambda x: edit(x, lambda i: i['optimizer']['target'].pop(
        'encoder')), 'is no T5'),
    'tensorflow': (lambda x: (x / 'checkpoint').write_text(
        'model_checkpoint_path: "model.ckpt-0"'), 'TensorFlow'),
    'json': (lambda x: (x / 'config.json').write_text('[1]'), 'damaged'),
    'field': (lambda x: (x / 'config.json').write_text('{"depth": 1}'),
              'sets depth; allowed: '),
    'activation': (lambda x: (x / 'config.json').write_text(
        '{"mlp_activations": ["sine"]}'), "Unknown activation 'sine'"),
    'vocabulary': (lambda x: (x / 'sentencepiece.model').write_text('x'),
                   'not a SentencePiece model'),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_damage_is_one_clear_line(fault, copy):
  change, what = FAULTS[fault]
  change(copy)
  with pytest.raises(ValueError, match=what) as error:
    checkpoints.load(copy)
  assert '\n' not in str(error.value) and str(copy) in str(error.value)


def test_other_dtypes_are_refused(tmp_path):
  path = lambda name: dict(kvstore=dict(driver='file', path=name))
  write(tmp_path, tiny.params_of(SMALL), path, kind=np.uint16)
  with pytest.raises(ValueError, match='is <u2; allowed: bfloat16, float16'):
    checkpoints.load(tmp_path)


def mutated(raw, rng):
  """A few bytes changed, cut out, doubled or dropped at the end."""
  raw = bytearray(raw)
  for _ in range(rng.integers(1, 4)):
    i = int(rng.integers(len(raw)))
    match rng.integers(4):
      case 0:
        raw[i] = rng.integers(256)
      case 1:
        del raw[i:i + int(rng.integers(1, 9))]
      case 2:
        raw[i:i] = raw[i:i + int(rng.integers(1, 9))]
      case 3:
        raw[i] ^= 1 << int(rng.integers(8))
  return bytes(raw[:int(rng.integers(len(raw)))] if rng.random() < .1 else raw)


def fuzz(folder, paths, monkeypatch, rounds=200):
  """Loads mutants of files: a load or one line, and soon. Counts the loads."""
  monkeypatch.setattr(loading, 'expected',
                      functools.lru_cache(loading.expected))
  rng, loads = np.random.default_rng(0), 0
  for i in range(rounds):
    path = folder / paths[i % len(paths)]
    whole = path.read_bytes()
    path.write_bytes(mutated(whole, rng))
    start = time.process_time()
    try:
      checkpoints.load(folder)
      loads += 1
    except ValueError as error:
      assert '\n' not in str(error)
    assert time.process_time() - start < 5, i
    path.write_bytes(whole)
  return loads


def test_fuzzed_metadata_is_an_error_or_a_load(copy, monkeypatch):
  headers = [f'{NORM}/.zarray', 'target.token_embedder.embedding/.zarray',
             'target.encoder.relpos_bias.rel_embedding/.zarray']
  paths = [x for header in headers for x in (header, 'checkpoint')]
  assert fuzz(copy, paths, monkeypatch) < 150
