"""A datastore on disk is one text's, whoever else writes there."""
import os
import pathlib
import re
import sys

import jax
import numpy as np
import pytest

from spec_cascades.drafters import suffixes
from spec_cascades.evaluation import datastores

OURS, THEIRS = (suffixes.index(np.array(x)) for x in (
    [0, 5, 6, 7, 1], [0, 9, 8, 9, 1]))


def written(place, store):
  datastores.write(str(place), store, 'vocabulary', 'about')


def tokens(place):
  return datastores.read(str(place), 'vocabulary', 10)[0].tokens.tolist()


def test_two_texts_never_mix(tmp_path, monkeypatch):
  """As if another host wrote between our two arrays."""
  save = np.save

  def meanwhile(file, array):
    if np.array_equal(array, OURS.order):
      monkeypatch.setattr(np, 'save', save)
      written(tmp_path, THEIRS)
      assert tokens(tmp_path) == THEIRS.tokens.tolist()
    save(file, array)

  monkeypatch.setattr(np, 'save', meanwhile)
  written(tmp_path, OURS)
  found, _ = datastores.read(str(tmp_path), 'vocabulary', 10)
  assert found.tokens.tolist() == OURS.tokens.tolist()
  assert found.order.tolist() == OURS.order.tolist()


def test_the_same_text_may_be_written_twice_at_a_time(tmp_path, monkeypatch):
  """As in two containers that share a folder, and number their processes."""
  replace = os.replace

  def meanwhile(source, target):
    if target.name == datastores.ABOUT:
      monkeypatch.setattr(os, 'replace', replace)
      written(tmp_path, OURS)
    replace(source, target)

  monkeypatch.setattr(os, 'replace', meanwhile)
  written(tmp_path, OURS)
  assert tokens(tmp_path) == OURS.tokens.tolist()
  assert sorted(os.listdir(tmp_path)) == [
      'datastore.json', 'order.npy', 'tokens.npy']


def test_what_is_mapped_stays_as_it_was(tmp_path):
  written(tmp_path, OURS)
  mapped = np.load(tmp_path / 'tokens.npy', mmap_mode='r')
  written(tmp_path, THEIRS)
  assert mapped.tolist() == OURS.tokens.tolist()


def test_a_full_disk_leaves_the_one_before(tmp_path, monkeypatch):
  written(tmp_path, OURS)

  def full(file, array):
    raise OSError('No space left on device')

  monkeypatch.setattr(np, 'save', full)
  try:
    written(tmp_path, THEIRS)
  except OSError:
    pass
  assert tokens(tmp_path) == OURS.tokens.tolist()
  assert len(os.listdir(tmp_path)) == 3


@pytest.mark.skipif(jax.default_backend() != 'cpu' or sys.platform != 'linux',
                    reason='an accelerator has its own memory; /proc is read')
def test_a_datastore_takes_no_memory_but_its_map(tmp_path):
  """Neither reading nor a program that looks at it copies its 2 * 32 MB."""
  size = 2**23
  written(tmp_path, suffixes.Datastore(
      np.ones(size, np.int32), np.arange(size, dtype=np.int32), np.int32(0)))
  before = own_megabytes()
  store, _ = datastores.read(str(tmp_path), 'vocabulary', 10)
  look = jax.jit(lambda store, i: store.order[i] + store.tokens[i])
  assert look(store, size - 1) == size
  mapped = own_megabytes() - before
  copies = [np.array(x) for x in (store.tokens, store.order)]
  assert mapped < 16 < 48 < own_megabytes() - before, len(copies)


def own_megabytes():
  """Of this process, files that are mapped left out."""
  status = pathlib.Path('/proc/self/status').read_text(encoding='utf-8')
  return int(re.search(r'RssAnon:\s+(\d+)', status)[1]) / 1024
