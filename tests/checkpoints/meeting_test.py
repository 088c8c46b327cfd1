"""Two that write to one path, on one machine or two, do not meet."""
import os

import numpy as np
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades.checkpoints import converting, loading, t5x, tensors
from tests.checkpoints.t5x_test import SMALL
from tests.models import tiny

TAKEN = "can't be written, what was there before is whole: Directory not empty"


def test_a_file_is_of_the_one_that_ends_last(tmp_path):
  path = tmp_path / 'x.safetensors'

  def written(value, meanwhile=lambda: None):
    def read():
      meanwhile()
      return np.full(4, value, np.float32)
    tensors.write(path, dict(a=loading.Leaf((4,), 16, read, 'a')), 'float32')
    return np.asarray(tensors.read(path)['a'].read())[0]

  assert written(1., lambda: written(2.)) == 1.
  assert os.listdir(tmp_path) == [path.name]


def test_a_file_that_is_mapped_stays_as_it_was(tmp_path):
  path = tmp_path / 'x.safetensors'
  leaves = lambda value: dict(a=loading.Leaf(
      (4,), 16, lambda: np.full(4, value, np.float32), 'a'))
  tensors.write(path, leaves(1.), 'float32')
  mapped = tensors.read(path)['a'].read()
  tensors.write(path, leaves(2.), 'float32')
  assert mapped.tolist() == [1.] * 4


def test_a_step_of_t5x_is_of_the_first_and_whole(tmp_path, monkeypatch):
  write, params = t5x._write, [tiny.params_of(SMALL, seed) for seed in (0, 1)]

  def meanwhile(*args):
    monkeypatch.setattr(t5x, '_write', write)
    t5x.save(tmp_path, params[1], 3)
    return write(*args)

  monkeypatch.setattr(t5x, 'WRITERS', 1)
  monkeypatch.setattr(t5x, '_write', meanwhile)
  with pytest.raises(OSError, match=f'checkpoint_3 {TAKEN}'):
    t5x.save(tmp_path, params[0], 3)
  assert os.listdir(tmp_path) == ['checkpoint_3']
  name = 'decoder', 'decoder_norm', 'scale'
  found = checkpoints.load(tmp_path).params
  for key in name:
    found, params[1] = found[key], params[1][key]
  np.testing.assert_array_equal(found, params[1])


def test_a_step_of_t5x_that_fails_leaves_nothing(tmp_path, monkeypatch):
  def full(*args):
    raise OSError('No space left on device')

  monkeypatch.setattr(t5x, '_write', full)
  with pytest.raises(OSError, match='No space left'):
    t5x.save(tmp_path, tiny.params_of(SMALL), 3)
  assert os.listdir(tmp_path) == []


def test_a_conversion_is_of_the_first_and_whole(tmp_path):
  path = tinypair.make_vocabulary(tmp_path)
  model = tinypair.write(tmp_path / 'model', path, 0)

  class Meanwhile(loading.Silent):
    left = [1]

    def update(self, _):
      if self.left and self.left.pop():
        converting.convert(model, tmp_path / 'out')

  with pytest.raises(OSError, match=f'out {TAKEN}'):
    converting.convert(model, tmp_path / 'out', progress=Meanwhile)
  assert sorted(os.listdir(tmp_path)) == ['512.model', 'model', 'out']
  names = 'model.safetensors', 'config.json', 'sentencepiece.model'
  for name in names:
    assert (tmp_path / 'out' / name).is_file(), name
