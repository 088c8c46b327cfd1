"""T5X's layout: what it writes we read, what we write it restores."""
import dataclasses
import json
import os
import pathlib
import shutil

import flax
from flax import serialization
from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

from spec_cascades import checkpoints
from spec_cascades.checkpoints import t5x
from spec_cascades.models import t5
from tests.models import tiny

NAMES = ('t5_1_0', 't5_1_1')
# A max distance is not in the arrays; this one is T5X's.
LMS = {name: t5.T5(dataclasses.replace(
    tiny.LMS[name].config, relative_max_distance=128)) for name in NAMES}
SMALL = t5.T5(dataclasses.replace(
    LMS['t5_1_1'].config, num_encoder_layers=1, num_decoder_layers=1))


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A checkpoint of the small model; copy it before changing it."""
  return t5x.save(tmp_path_factory.mktemp('saved'), tiny.params_of(SMALL), 20)


@pytest.fixture
def copy(saved, tmp_path):
  return pathlib.Path(shutil.copytree(saved, tmp_path / saved.name))


def assert_equal(got, want):
  jax.tree.map(np.testing.assert_array_equal, got, want)


def logits(lm, params):
  tokens = jnp.asarray([[3, 1, 4, 1, 5]] * 3)
  return np.asarray(tiny.forward(lm, params, tiny.inputs_of(lm), tokens))


def write(folder, params, spec_of, chunk=lambda shape: shape,
          kind=np.float32):
  """Another writer, after T5X's documentation: arrays, then the index."""
  def one(path, x):
    x, name = np.asarray(x).astype(kind), '.'.join(path)
    meta = dict(shape=list(x.shape), chunks=list(chunk(x.shape)),
                compressor=dict(id='gzip'))
    spec = dict(driver='zarr', dtype=x.dtype.name, metadata=meta)
    there = dict(driver='file', path=str(folder / name))
    store = ts.open({**spec, 'kvstore': there}, create=True).result()
    store.write(x).result()
    return {**spec, **spec_of(name)}
  flat = traverse_util.flatten_dict({
      'target': params, 'state': {'param_states': {'slot': params['decoder'][
          'decoder_norm']}}})
  state = traverse_util.unflatten_dict(
      {path: one(path, x) for path, x in flat.items()})
  state['state']['step'] = np.int32(5)
  (folder / 'checkpoint').write_bytes(serialization.msgpack_serialize(
      dict(version=3, optimizer=state)))


@pytest.mark.parametrize('name', NAMES)
def test_a_round_trip_is_bitwise(name, tmp_path):
  lm = LMS[name]
  params = tiny.params_of(lm)
  found = checkpoints.load(t5x.save(tmp_path, params, 3))
  assert found.lm == lm and found.tokenizer is None
  assert_equal(found.params, params)
  np.testing.assert_array_equal(logits(lm, found.params), logits(lm, params))


def test_bfloat16_is_stored_as_such(tmp_path):
  params = tiny.params_of(SMALL)
  folder = t5x.save(tmp_path, params, dtype='bfloat16')
  header = folder / 'target.decoder.decoder_norm.scale/.zarray'
  assert json.loads(header.read_text())['dtype'] == 'bfloat16'
  found = checkpoints.load(folder, dtype='bfloat16').params
  assert_equal(found, jax.tree.map(lambda x: x.astype('bfloat16'), params))


def test_what_is_written_has_the_layout_that_t5x_opens(saved):
  """Reads index and arrays as T5X does, with nothing of ours."""
  def array(code, data):
    shape, dtype, raw = msgpack.unpackb(data)
    assert code == 1
    return np.frombuffer(raw, dtype).reshape(shape)
  index = msgpack.unpackb((saved / 'checkpoint').read_bytes(), ext_hook=array)
  assert saved.name == 'checkpoint_20' and index['version'] == 3
  assert set(index['optimizer']) == {'target', 'state'}
  step = index['optimizer']['state']['step']
  assert step == 20 and step.dtype == np.int32 and step.shape == ()
  specs = traverse_util.flatten_dict(
      index['optimizer']['target'], is_leaf=lambda _, x: 'kvstore' in x)
  want = traverse_util.flatten_dict(tiny.params_of(SMALL))
  assert set(specs) == set(want)
  for path, spec in specs.items():
    assert spec == ts.Spec(spec).to_json()
    assert spec['kvstore'] == {
        'driver': 'file', 'path': '.'.join(('target', *path)) + '/'}
    assert spec['metadata']['compressor']['id'] == 'gzip'
    assert tuple(spec['metadata']['shape']) == want[path].shape
    del spec['metadata']['chunks'], spec['metadata']['compressor']
    spec['kvstore']['path'] = os.path.join(saved, spec['kvstore']['path'])
    got = ts.open(spec, open=True).result().read().result()
    np.testing.assert_array_equal(got, want[path])
  assert {x.name for x in saved.iterdir()} == {'checkpoint'} | {
      '.'.join(('target', *path)) for path in want}


@pytest.mark.parametrize('spec_of', [
    lambda name: dict(kvstore=dict(driver='gfile', path=f'{name}/')),
    lambda name: dict(kvstore=dict(driver='gcs', bucket='t5x-dummy-bucket',
                                   path=name)),
    lambda name: dict(kvstore=dict(driver='gcs', bucket='t5x-dummy-bucket'),
                      path=name)], ids=['gfile', 'gcs', 'old'])
def test_other_writers_are_read_and_their_optimisers_are_not(
    spec_of, tmp_path):
  params = tiny.params_of(SMALL)
  write(tmp_path, params, spec_of, lambda shape: [-(-n // 2) for n in shape],
        ml_dtypes.bfloat16)
  found = checkpoints.load(tmp_path / 'checkpoint')
  assert found.lm == SMALL
  assert_equal(found.params, jax.tree.map(
      lambda x: x.astype('bfloat16').astype('float32'), params))


def test_arrays_in_the_index_itself_are_read(tmp_path):
  params = jax.tree.map(np.asarray, tiny.params_of(SMALL))
  (tmp_path / 'checkpoint').write_bytes(serialization.msgpack_serialize(
      dict(version=3, optimizer=dict(target=params))))
  assert_equal(checkpoints.load(tmp_path).params, params)


def test_slices_read_only_themselves(tmp_path, monkeypatch):
  monkeypatch.setattr(t5x, 'CHUNK_BYTES', 1024)   # 16 rows of 16 floats
  params = tiny.params_of(SMALL)
  folder = t5x.save(tmp_path, params)
  name = 'target.token_embedder.embedding'
  assert {x.name for x in (folder / name).iterdir()} == {
      '.zarray', '0.0', '1.0'}
  want = np.asarray(params['token_embedder']['embedding'])
  lazy = t5x.source(folder).leaves['token_embedder/embedding'].read()
  np.testing.assert_array_equal(np.asarray(lazy), want)
  np.testing.assert_array_equal(lazy[14:19, :4], want[14:19, :4])
  assert_equal(checkpoints.load(folder).params, params)
  lazy = t5x.source(folder).leaves['token_embedder/embedding'].read()
  os.truncate(folder / name / '1.0', 9)
  np.testing.assert_array_equal(lazy[3:9], want[3:9])
  with pytest.raises(ValueError, match='damaged'):
    np.asarray(lazy[15:17])
  devices = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  with pytest.raises(ValueError, match='damaged'):
    checkpoints.load(folder, sharding=lambda name, shape: devices)


def test_the_newest_complete_checkpoint_is_taken(copy, tmp_path):
  for step in (9, 100):
    shutil.copytree(copy, tmp_path / f'checkpoint_{step}')
  assert t5x.source(tmp_path).path.name == 'checkpoint_100'
  (tmp_path / 'checkpoint_100' / 'checkpoint').unlink()
  shutil.copytree(copy, tmp_path / 'checkpoint_300.tmp-123')
  assert t5x.source(tmp_path).path.name == 'checkpoint_20'
  with pytest.raises(ValueError, match='exists; choose'):
    t5x.save(tmp_path, tiny.params_of(SMALL), 20)
  with pytest.raises(ValueError, match='no complete checkpoint'):
    checkpoints.load(tmp_path / 'checkpoint_100')


def test_the_orbax_layout_of_t5x_is_read(tmp_path):
  params = tiny.params_of(SMALL)
  options = ocp.CheckpointManagerOptions(step_prefix='checkpoint')
  state = dict(target=params, state=dict(step=jnp.int32(4)))
  with ocp.CheckpointManager(tmp_path, options=options) as saves:
    saves.save(4, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state)))
    saves.wait_until_finished()
  found = checkpoints.load(tmp_path)
  assert found.lm == SMALL
  assert_equal(found.params, params)


def test_a_file_beside_overrides_what_shapes_do_not_show(copy):
  (copy / 'config.json').write_text('{"relative_max_distance": 12}')
  assert t5x.source(copy).lm.config.relative_max_distance == 12
  (copy / 'config.json').unlink()
  gin = copy.parent / 'model.gin'
  gin.write_text('''
from __gin__ import dynamic_registration
import os.path  # read, not run
network.Transformer.config = @network.T5Config()
network.T5Config:
  vocab_size = 31  # rows
  dtype = 'bfloat16'
  mlp_activations = ('relu',
                     'linear')
  dropout_rate = %DROPOUT_RATE
OTHER = 3
x/network.T5Config.relative_max_distance = 99
''')
  config = t5x.source(copy).lm.config
  assert config == dataclasses.replace(
      SMALL.config, mlp_activations=('relu', 'linear'),
      relative_max_distance=99)
  for value in ('%HEADS', '__import__("os").getcwd()', '(' * 999):
    gin.write_text(f'T5Config.num_heads = {value}')
    with pytest.raises(ValueError, match='only literals'):
      t5x.source(copy)
  gin.write_text('T5Config.head_dim = 7')
  with pytest.raises(ValueError, match='wrong shape: .*query.kernel'):
    checkpoints.load(copy)


def test_the_gin_file_of_a_run_has_macros_and_scopes(copy):
  """T5X writes what it was configured with, of all models, as config.gin."""
  cfg = SMALL.config
  (copy.parent / 'config.gin').write_text(f'''
VOCAB_SIZE = {cfg.vocab_size}
DISTANCE = 99
# Parameters for network.T5Config:
network.T5Config.vocab_size = %VOCAB_SIZE
network.T5Config.relative_max_distance = %DISTANCE
network.T5Config.mlp_activations = ('relu', 'linear')
drafter/network.T5Config.emb_dim = {cfg.emb_dim}
verifier/network.T5Config:
  emb_dim = 4096
  num_heads = {cfg.num_heads}
  mlp_activations = ('gelu', 'linear')
OTHER.emb_dim = 7
''')
  assert t5x.source(copy).lm.config == dataclasses.replace(
      cfg, relative_max_distance=99)


def test_t5x_restores_ours_and_we_load_theirs(tmp_path):
  library = pytest.importorskip(
      't5x.checkpoints', reason='T5X is not installed (not on the index)')
  from t5x import partitioning, train_state
  from t5x.examples.t5 import network
  lm = t5.T5(dataclasses.replace(LMS['t5_1_1'].config, relative_buckets=32))
  params, config = tiny.params_of(lm), dataclasses.asdict(lm.config)
  own = {f.name for f in dataclasses.fields(network.T5Config)}
  theirs = network.Transformer(network.T5Config(
      **{k: x for k, x in config.items() if k in own}))
  t5x.save(tmp_path / 'ours', params, 20)
  inputs, tokens = tiny.inputs_of(lm), jnp.asarray([[3, 1, 4, 1, 5]] * 3)
  shifted = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion('standard'):
    variables = theirs.init(jax.random.key(0), inputs, shifted, tokens,
                            enable_dropout=False)
    state = train_state.InferenceState.create(variables)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    make = lambda where: library.Checkpointer(state, partitioner, str(where))
    restored = make(tmp_path / 'ours').restore(step=20)
    want = theirs.apply({'params': restored.params}, inputs, shifted, tokens,
                        enable_dropout=False)
    make(tmp_path / 'theirs').save(restored.replace_step(jnp.int32(21)))
  assert int(restored.step) == 20
  assert_equal(flax.core.unfreeze(restored.params), params)
  found = checkpoints.load(tmp_path / 'theirs')
  assert found.lm == lm
  assert_equal(found.params, params)
  got = tiny.forward(lm, found.params, inputs, shifted)
  tiny.assert_near(got, want)
