"""Rows of compressed chunks, against what tensorstore reads."""
from concurrent import futures
import json
import os
import pathlib

from hypothesis import given, settings, strategies as st
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
import zstandard

from spec_cascades.checkpoints import buffers, chunks, stores

SHAPE = 37, 5, 3
ARRAY = np.random.default_rng(0).standard_normal(SHAPE, np.float32)


@pytest.fixture
def small(monkeypatch):
  """Blocks that no row fits into."""
  monkeypatch.setattr(chunks, 'BLOCK', 50)
  monkeypatch.setattr(chunks, 'KEPT', 3)
  monkeypatch.setattr(chunks, 'SMALLEST', 1)


def stream(content, packed, place, shape=SHAPE):
  path = place / 'values'
  path.write_bytes(b'before' + content + b'after')
  return chunks.Stream(chunks.Span(path, 6, len(content)), packed, shape,
                       np.dtype(np.float32))


@pytest.mark.parametrize('packed', [False, True])
def test_rows_in_any_order(packed, small, tmp_path_factory):
  del small
  content = ARRAY.tobytes()
  if packed:
    content = zstandard.ZstdCompressor().compress(content)
  read = stream(content, packed, tmp_path_factory.mktemp('x'))

  @settings(deadline=None, max_examples=60)
  @given(st.integers(0, 36), st.integers(0, 37))
  def check(start, size):
    part = slice(start, min(start + size, 37))
    np.testing.assert_array_equal(read(part), ARRAY[part])
  check()


@pytest.mark.parametrize('threads', [2, 8])
def test_rows_for_many_threads(threads, small, tmp_path):
  del small
  read = stream(zstandard.compress(ARRAY.tobytes()), True, tmp_path)
  with futures.ThreadPoolExecutor(threads) as pool:
    for _ in range(20):
      rows = list(pool.map(lambda i: read(slice(i, i + 1)), range(37)))
      np.testing.assert_array_equal(np.concatenate(rows), ARRAY)


def test_a_stream_is_decoded_once(monkeypatch, tmp_path):
  started = []
  restart = chunks.Stream._restart
  monkeypatch.setattr(chunks.Stream, '_restart',
                      lambda self: restart(self) or started.append(1))
  whole = np.random.default_rng(0).standard_normal((5000, 700), np.float32)
  read = stream(zstandard.compress(whole.tobytes()), True, tmp_path,
                whole.shape)
  rows = buffers.Rows(whole.shape, whole.dtype, read)
  np.testing.assert_array_equal(buffers.copied(rows, whole.dtype), whole)
  assert len(started) == 1


@pytest.mark.parametrize('change', [
    lambda x: zstandard.compress(x[:-4]),
    lambda x: zstandard.compress(x + b'0'),
    lambda x: zstandard.compress(x)[:-9], lambda x: x])
def test_another_size_is_an_error(change, small, tmp_path):
  del small
  with pytest.raises((ValueError, zstandard.ZstdError)):
    stream(change(ARRAY.tobytes()), True, tmp_path)(slice(0, 37))


def test_values_are_found_in_a_deep_database(tmp_path):
  """Nodes of a few keys each, and earlier versions of them."""
  base = dict(driver='file', path=f'{tmp_path}/')
  config = dict(max_decoded_node_bytes=400, max_inline_value_bytes=4)
  store = ts.KvStore.open(
      dict(driver='ocdbt', base=base, config=config)).result()
  for version in range(2):
    for i in range(40):
      store.write(f'a/layer_{i}/x', bytes([i, version] * (5 + i))).result()
  keys = {key.decode() for key in store.list().result()}
  assert len(keys) == 40
  found = chunks.spans(tmp_path, keys)
  for key, span in found.items():
    content = span.path.read_bytes()[span.start:span.start + span.size]
    assert content == store.read(key).result().value
  store.write('a/layer_7/x', b'1').result()        # inside a node
  some = chunks.spans(tmp_path, {'a/layer_7/x', 'a/layer_9/x'})
  assert some == {'a/layer_9/x': found['a/layer_9/x']}


@pytest.mark.parametrize('value', ['value::..%2Fx:0:8', 'value:../:x:0:8'])
def test_values_somewhere_else_are_refused(value, tmp_path, monkeypatch):
  (tmp_path / 'manifest.ocdbt').touch()
  class Dumped(dict):
    def result(self):
      return self
  monkeypatch.setattr(ts.ocdbt, 'dump', lambda _, node=None: Dumped(
      entries=[dict(key=b'k', indirect_value=value)],
      versions=[dict(root=dict(location='btreenode::x:0:8'))]))
  with pytest.raises(ValueError, match='somewhere else'):
    chunks.spans(tmp_path, {'k'})


def save(path, tree, **options):
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as writer:
    writer.save(path, args=ocp.args.PyTreeSave(tree))
  return stores.arrays(path, stores.tree(path))['a']


@pytest.mark.parametrize('zarr3', [False, True])
@pytest.mark.parametrize('ocdbt', [False, True])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_orbax_writes_is_streamed(zarr3, ocdbt, dtype, small, tmp_path):
  del small
  array = np.random.default_rng(0).standard_normal((111, 5, 3)).astype(
      jnp.dtype(dtype))
  stored = save(tmp_path / 'x', {'a': array}, use_zarr3=zarr3, use_ocdbt=ocdbt)
  assert stored.span is not None and stored.packed
  rows = stored.open()
  for part in (rows, rows[3:20], rows[:, 1:3], rows[5:, 2:]):
    np.testing.assert_array_equal(buffers.copied(part, array.dtype),
                                  np.asarray(part))
  np.testing.assert_array_equal(np.asarray(rows), array)
  np.testing.assert_array_equal(rows[4], array[4])


def test_many_zeros_are_inside_a_node(tmp_path):
  zeros = np.zeros((1500, 1000), np.float32)
  stored = save(tmp_path / 'x', {'a': zeros})
  assert stored.span is None
  np.testing.assert_array_equal(np.asarray(stored.open()), zeros)


def test_a_damaged_chunk_is_one_line(small, tmp_path):
  del small
  stored = save(tmp_path / 'x', {'a': ARRAY}, use_ocdbt=False)
  os.truncate(stored.span.path, stored.span.size - 20)
  stored = stores.arrays(tmp_path / 'x', stores.tree(tmp_path / 'x'))['a']
  with pytest.raises(ValueError, match='a is damaged') as error:
    np.asarray(stored.open())
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('change,packed', [
    (dict(), True), (dict(compressor=None), False), (dict(order='F'), None),
    (dict(filters=[dict(id='delta')]), None),
    (dict(compressor=dict(id='blosc')), None)])
def test_chunks_that_are_understood(change, packed):
  header = dict(zarr_format=2, order='C', filters=None,
                compressor=dict(id='zstd', level=1))
  assert chunks.compressed({**header, **change}) is packed


def test_shards_of_one_chunk_are_understood():
  """As Orbax writes them: an index after the only chunk."""
  header = json.loads("""{"zarr_format": 3, "shape": [4, 2], "codecs": [{
      "name": "sharding_indexed", "configuration": {"chunk_shape": [4, 2],
      "codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
      {"name": "zstd", "configuration": {"level": 3}}]}}]}""")
  assert chunks.compressed(header) is True
  inner = header['codecs'][0]['configuration']
  inner['chunk_shape'] = [2, 2]
  assert chunks.compressed(header) is None
  inner.update(chunk_shape=[4, 2], index_location='start')
  assert chunks.compressed(header) is None


@pytest.mark.parametrize('codecs,packed', [
    (['bytes', 'zstd'], True), (['bytes'], False), (['bytes', 'gzip'], None),
    (['transpose', 'bytes'], None), (['bytes', 'zstd', 'crc32c'], None)])
def test_chunks_of_zarr3_that_are_understood(codecs, packed):
  found = [dict(name=x, configuration=dict(endian='little')) for x in codecs]
  header = json.loads(json.dumps(dict(zarr_format=3, codecs=found)))
  assert chunks.compressed(header) is packed
  found[0]['configuration']['endian'] = 'big'
  assert chunks.compressed(dict(zarr_format=3, codecs=found)) is None


def test_smaller_arrays_and_several_chunks_are_left_to_tensorstore(tmp_path):
  stored = save(tmp_path / 'x', {'a': ARRAY})
  assert stored.span is None
  np.testing.assert_array_equal(np.asarray(stored.open()), ARRAY)
  assert isinstance(stored.path, pathlib.Path)
