"""Every format is read straight into a mesh of 2 x 2 devices, bit for bit.

The loading runs in a process of its own, where the CPU counts as 4 devices.
"""
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades.checkpoints import t5x
from tests import ggufs
from tests.checkpoints import (
    formats_memory_test, hub_memory_test, hubs, orbax_gemma_test)
from tests.models import tiny
import tinypair

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = '--xla_force_host_platform_device_count=4'
AXES = 'data', 'model'


def write_hub(name):
  return lambda place, _: hubs.save(name, place)


def write_quantised(place, monkeypatch):
  """Rows of eight-bit blocks, made when they are asked for."""
  pytest.importorskip('gguf')
  return formats_memory_test.write_gguf(place, monkeypatch, dataclasses.replace(
      hub_memory_test.SMALL, emb_dim=32, mlp_dim=64, num_kv_heads=2,
      head_dim=32))


def write_gemma(place, _):
  lm = tiny.LMS['gemma3']
  path = orbax_gemma_test.save(place / 'model', orbax_gemma_test.theirs(
      lm, tiny.params_of(lm), transposed=True))
  (place / 'config.json').write_text(orbax_gemma_test.describe(lm))
  return path


def write_native(place, _):
  return tinypair.write(place / 'x', tinypair.make_vocabulary(place), 0)


WRITERS = dict(
    hub_llama=write_hub('llama2'), hub_gemma3=write_hub('gemma3'),
    hub_t5=write_hub('t5_1_1'),
    gguf=lambda place, _: ggufs.make(place / 'x.gguf', 'llama'),
    gguf_gemma3=lambda place, _: ggufs.make(place / 'x.gguf', 'gemma3'),
    gguf_q8_0=write_quantised,
    t5x=lambda place, _: t5x.save(place, tiny.params_of(tiny.LMS['t5_1_1'])),
    orbax_gemma3=write_gemma, native=write_native,
    orbax_run=lambda place, _: formats_memory_test.write_run(
        place, None, tinypair.config(16, 1)))


def loaded(path):
  """How a checkpoint lies on the mesh, beside the same on one device."""
  mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), AXES)
  whole = checkpoints.load(path).params
  asked, there = [], []

  def sharding(name, shape):
    asked.append(name)
    there.append(len(jax.live_arrays()))
    axes = AXES[-len(shape):] if len(shape) < 3 else ()
    cut = [axis if n % 2 == 0 else None for axis, n in zip(axes, shape)]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*cut))

  params = checkpoints.load(path, sharding=sharding).params
  leaves = jax.tree.leaves(params)
  jax.tree.map(np.testing.assert_array_equal, params, whole)
  for x in leaves:
    assert len(x.addressable_shards) == 4
    for shard in x.addressable_shards:
      assert shard.data.shape == x.sharding.shard_shape(x.shape)
  return dict(
      leaves=len(leaves), asked=len(set(asked)),
      # One more leaf is there whenever the next is asked for.
      steps=np.diff(there).tolist(),
      cut=sum(x.sharding.shard_shape(x.shape) != x.shape for x in leaves),
      quarters=sum(4 * x.addressable_shards[0].data.size == x.size
                   for x in leaves))


def main():
  print(json.dumps({name: loaded(path)
                    for name, path in json.load(sys.stdin).items()}))


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  paths = {}
  with pytest.MonkeyPatch.context() as patch:
    for name, write in WRITERS.items():
      try:
        paths[name] = str(write(tmp_path_factory.mktemp(name), patch))
      except pytest.skip.Exception:    # a library is not installed
        continue
  flags = os.environ.get('XLA_FLAGS', '')
  done = subprocess.run(
      [sys.executable, '-c',
       'from tests.checkpoints import sharded_test as t; t.main()'],
      cwd=ROOT, input=json.dumps(paths), capture_output=True, text=True,
      check=False, env=dict(
          os.environ, PYTHONPATH=os.pathsep.join(
              [str(ROOT), str(ROOT / 'tests'),
               os.environ.get('PYTHONPATH', '')]),
          JAX_PLATFORMS='cpu', XLA_FLAGS=f'{flags} {FLAGS}'))
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize('name', WRITERS)
def test_shards_are_read_one_leaf_after_the_other(found, name):
  if name not in found:
    pytest.skip('needs torch and transformers, or gguf')
  got = found[name]
  assert got['leaves'] == got['asked'] > 10
  assert set(got['steps']) == {1}
  assert got['cut'] > .9 * got['leaves'] and got['quarters'] > 5
