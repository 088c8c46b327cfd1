"""Parts without their verifier: what is written is what is read, or a line."""
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import besides
import tinypair
from spec_cascades import checkpoints
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import kinds
from spec_cascades.evaluation import pairs


@pytest.fixture(scope='module')
def verifier(tmp_path_factory):
  place = tmp_path_factory.mktemp('verifier')
  return besides.write_verifier(place / 'x', tinypair.make_vocabulary(place))


def edit(part, **changes):
  """Changes keys of config.json; None takes them out."""
  path = part / native.CONFIG
  found = {**json.loads(path.read_text()), **changes}
  path.write_text(json.dumps(
      {key: x for key, x in found.items() if x is not None}))


@pytest.mark.parametrize('name', besides.CONFIGS)
def test_a_part_comes_back_and_nothing_else_is_written(name, verifier,
                                                       tmp_path):
  besides.write_part(tmp_path, verifier, name, info={'step': 7})
  lm, params = besides.made(name)
  found = beside.read(tmp_path)
  assert found.heads == lm.heads
  assert found.verifier == extras.Owner('a/verifier',
                                           pairs.digest(verifier))
  jax.tree.map(np.testing.assert_array_equal, found.params, params['heads'])
  assert {x.dtype for x in jax.tree.leaves(found.params)} == {
      jnp.dtype('float32')}
  assert sorted(x.name for x in tmp_path.iterdir()) == [
      native.CONFIG, beside.WEIGHTS]
  numbers = sum(x.size for x in jax.tree.leaves(params['heads']))
  size = (tmp_path / beside.WEIGHTS).stat().st_size
  assert 2 * numbers < size < 2 * numbers + 4096
  said = json.loads((tmp_path / native.CONFIG).read_text())
  assert said['info'] == {'step': 7}
  assert said['config']['emb_dim'] == besides.LM.config.emb_dim


def test_large_parts_are_several_files(verifier, tmp_path):
  path = besides.write_part(tmp_path, verifier, 'heads', shard_bytes=2**12)
  assert len(list(tmp_path.glob('heads-*.safetensors'))) > 1
  jax.tree.map(np.testing.assert_array_equal, beside.read(path).params,
               besides.made('heads')[1]['heads'])


def test_the_digest_follows_weights_tree_and_verifier(verifier, tmp_path):
  write = lambda place, seed=0: besides.write_part(
      tmp_path / place, verifier, 'heads', seed)
  first, same, other = (beside.read(write(*x)).sha256 for x in (
      ('a',), ('b',), ('c', 1)))
  assert first == same != other
  changes = dict(
      heads=dict(json.loads((tmp_path / 'a/config.json').read_text())['heads'],
                 paths=[[0]]),
      verifier=dict(name='a/verifier', sha256='0' * 64))
  for key, value in changes.items():
    edit(tmp_path / 'b', **{key: value})
    assert beside.read(tmp_path / 'b').sha256 != first
    shutil.copy(tmp_path / 'a/config.json', tmp_path / 'b')


@pytest.mark.parametrize('name', besides.CONFIGS)
def test_it_is_no_model_of_its_own(name, verifier, tmp_path):
  path = besides.write_part(tmp_path / 'part', verifier, name)
  for load in (lambda: pairs.load(path, None),
               lambda: pairs.load(verifier, path),
               lambda: checkpoints.load(path), lambda: native.digest(path)):
    with pytest.raises(ValueError, match='no model of its own') as error:
      load()
    assert '\n' not in str(error.value)
    assert ' or '.join(f'{x}:{path}' for x in besides.NAMES[name]) in str(
        error.value)


def test_configurations_name_drafters_that_there_are():
  for name, config in besides.CONFIGS.items():
    assert config.drafters == besides.NAMES[name]
    assert set(config.drafters) <= set(kinds.KINDS)
  trained = {x for x, kind in kinds.KINDS.items() if kinds.trained(kind)}
  named = {x for names in besides.NAMES.values() for x in names}
  assert trained == named | {'typical'}           # Medusa's, judged otherwise


def test_damaged_parts_are_refused(verifier, tmp_path):
  kept, part = tmp_path / 'kept', tmp_path / 'part'
  besides.write_part(kept, verifier, 'features')
  heads = json.loads((kept / native.CONFIG).read_text())['heads']
  config = json.loads((kept / native.CONFIG).read_text())['config']
  cut = lambda name: (part / name).write_bytes(
      (part / name).read_bytes()[:-40])
  for damage, what in (
      (lambda: cut(beside.WEIGHTS), 'heads.safetensors is damaged or cut off'),
      (lambda: cut(native.CONFIG), 'is not JSON'),
      (lambda: (part / beside.WEIGHTS).unlink(), 'No heads.safetensors in'),
      (lambda: edit(part, shards=2), 'No heads-00001-of-00002'),
      (lambda: edit(part, dtype='float32'), 'says float32'),
      (lambda: edit(part, format=9), 'format 9'),
      (lambda: edit(part, heads=None), 'has no heads'),
      (lambda: edit(part, heads=dict(heads, mlp_dim=8)), 'wrong shape'),
      (lambda: edit(part, heads=dict(heads, taps=[0])), 'missing'),
      (lambda: edit(part, heads=dict(heads, depth=1)), "argument 'depth'"),
      (lambda: edit(part, heads=dict(heads, num_heads=3)), 'heads: A layer'),
      (lambda: edit(part, config=dict(config, emb_dim=8)), 'wrong shape'),
      (lambda: edit(part, verifier={}), 'allowed: the name of a verifier'),
      (lambda: edit(part, verifier=3), 'allowed: the name of a verifier'),
      (lambda: edit(part, verifier=dict(name='a', sha256='x')), 'sha256'),
      (lambda: edit(part, verifier=dict(name='a', sha256=1)), 'sha256'),
      (lambda: edit(part, verifier=dict(name=1, sha256='0' * 64)), 'sha256')):
    shutil.copytree(kept, part)
    damage()
    with pytest.raises(ValueError, match=what) as error:
      beside.read(part)
    assert '\n' not in str(error.value)
    shutil.rmtree(part)


def test_write_refuses_what_read_would_and_what_is_there(verifier, tmp_path):
  lm, params = besides.made('heads')
  own = extras.Owner('a/verifier', '0' * 64)
  with pytest.raises(ValueError, match='float16'):
    beside.write(tmp_path / 'x', lm, params['heads'], own, 'float16')
  with pytest.raises(ValueError, match='missing: heads/head_2'):
    beside.write(tmp_path / 'x', lm, dict(head_1=params['heads']['head_1']),
                 own)
  before = pairs.digest(verifier)
  with pytest.raises(ValueError, match='holds a config.json of something'):
    beside.write(verifier, lm, params['heads'], own)
  assert pairs.digest(verifier) == before and not (tmp_path / 'x').exists()
  for seed in (0, 1):                  # a part may be replaced
    path = besides.write_part(tmp_path / 'y', verifier, 'heads', seed)
  jax.tree.map(np.testing.assert_array_equal, beside.read(path).params,
               besides.made('heads', 1)[1]['heads'])
