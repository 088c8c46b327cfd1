"""A load is whole or refused, and reads one array at a time."""
import pathlib

from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades.checkpoints import buffers, loading
from tests.models import tiny

LM = tiny.LMS['gemma2']


def leaves_of(params, log=None):
  """Leaves that note when they are read."""
  def leaf(name, x):
    def read():
      if log is not None:
        log.append(name)
      return np.asarray(x)
    return loading.Leaf(x.shape, x.nbytes, read, f'their.{name}')
  flat = traverse_util.flatten_dict(params, sep='/')
  return {name: leaf(name, x) for name, x in flat.items()}


def source(leaves, **kwargs):
  return loading.Source(pathlib.Path('some/model'), LM, leaves, **kwargs)


@pytest.fixture(scope='module')
def params():
  return tiny.params_of(LM)


class Bar:
  """Notes what a progress bar is told."""
  total, done, made = 0, 0, []

  def __init__(self, total, **_):
    self.total, self.done = total, 0
    Bar.made.append(self)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def update(self, n):
    self.done += n


def test_everything_arrives_and_progress_counts_the_bytes(params):
  log = []
  found = loading.load(source(leaves_of(params, log), tokenizer=lambda: 'tok'),
                       progress=Bar)
  assert found.lm is LM and found.tokenizer == 'tok'
  jax.tree.map(np.testing.assert_array_equal, found.params, params)
  assert len(log) == len(set(log)) == len(jax.tree.leaves(params))
  bar = Bar.made[-1]
  assert bar.done == bar.total == sum(
      x.nbytes for x in jax.tree.leaves(params))


@pytest.mark.parametrize('dtype,kind', [
    ('bfloat16', ml_dtypes.bfloat16), ('float16', np.float16)])
def test_parameters_are_cast(params, dtype, kind):
  found = loading.load(source(leaves_of(params)), dtype=dtype).params
  jax.tree.map(lambda got, want: np.testing.assert_array_equal(
      np.asarray(got), np.asarray(want).astype(kind)), found, params)


def test_a_large_array_has_pages_that_are_not_the_files():
  """What gives back a file's pages must not touch them."""
  x = np.arange(buffers.PAGES, dtype=np.float32).reshape(512, -1)
  for turned in (x, x.T):
    y = buffers.copied(turned, np.dtype(np.float32))
    assert y.ctypes.data % buffers.ALIGNMENT == 0
    buffers.forget(y)
    np.testing.assert_array_equal(y, turned)
    placed = jax.device_put(y)
    del y
    np.testing.assert_array_equal(placed, turned)


def test_shards_are_placed_where_they_belong(params):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  asked = []

  def sharding(name, shape):
    asked.append((name, shape))
    return device

  found = loading.load(source(leaves_of(params)), sharding=sharding).params
  assert len(asked) == len(jax.tree.leaves(params))
  jax.tree.map(np.testing.assert_array_equal, found, params)


def test_a_load_is_whole_or_refused_before_anything_is_read(params):
  log = []
  whole = leaves_of(params, log)
  name, *_ = whole
  without = {k: v for k, v in whole.items() if k != name}
  other = dict(whole)
  other[name] = loading.Leaf((1, 2), 8, lambda: log.append(name), 'odd')
  for leaves, kwargs, what in (
      (without, {}, f'missing: {name}'),
      (whole | {'x': loading.Leaf((1,), 4, None, 'their.x')}, {},
       r'left over: their\.x\.'),
      (whole, dict(left_over=['a', 'b', 'c', 'd']),
       'left over: a, b, c and 1 more'),
      (other, {}, r'wrong shape: odd is \(1, 2\), not')):
    with pytest.raises(ValueError, match=what):
      loading.load(source(leaves, **kwargs))
  assert not log


def test_a_file_that_lies_about_a_shape_is_refused(params):
  name, leaf = next(iter(leaves_of(params).items()))
  lies = loading.Leaf(leaf.shape, 4, lambda: np.zeros((3,)), 'their.name')
  with pytest.raises(loading.Broken, match='its header says'):
    loading.load(source(leaves_of(params) | {name: lies}))


def test_errors_of_a_reader_become_one_line():
  with pytest.raises(ValueError, match=r'^x is damaged or cut off \(a b\)'):
    with loading.readable(pathlib.Path('x'), OSError):
      raise OSError('a\nb')


@pytest.mark.parametrize('dtype', ['float64', 'int8', ''])
def test_other_dtypes_are_refused(params, dtype):
  with pytest.raises(ValueError, match='allowed: float32, bfloat16, float16'):
    loading.load(source(leaves_of(params)), dtype=dtype)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path):
  with pytest.raises(ValueError, match='No checkpoint at'):
    checkpoints.load(tmp_path / 'none')
  with pytest.raises(ValueError, match='is no checkpoint that is known'):
    checkpoints.load(tmp_path)
  (tmp_path / 'notes.json').write_text('[1')
  for path in (tmp_path, tmp_path / 'notes.json'):
    with pytest.raises(ValueError, match='is no checkpoint that is known'):
      checkpoints.load(path)


def test_the_shipped_models_load_by_their_path():
  found = checkpoints.load(
      pathlib.Path(checkpoints.__file__).parents[1]
      / 'assets/debian_ende/drafter')
  assert found.lm.vocab_size == 4096 and found.tokenizer.size == 4096
  assert found.params['token_embedder']['embedding'].dtype == jnp.float32


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('shape', [(7, 5), (6, 4)])
def test_rows_that_are_made_when_indexed_look_like_an_array(shape, turned,
                                                            monkeypatch):
  monkeypatch.setattr(buffers, 'MADE', 24)           # a row or two at a time
  stored, asked = np.arange(float(np.prod(shape))).reshape(shape), []

  def make(part):
    asked.append(part.stop - part.start)
    return stored[part]

  lazy = buffers.Rows(shape, stored.dtype, make)
  lazy, want = (lazy.T, stored.T) if turned else (lazy, stored)
  assert lazy.shape == want.shape and lazy.T.T == lazy
  np.testing.assert_array_equal(lazy, want)
  asked.clear()
  for index in ((slice(1, 3),), (slice(None), slice(1, 4)),
                (slice(2, 4), slice(0, 3)), (slice(None), slice(None))):
    part = buffers.copied(lazy[index], np.dtype(np.float32))
    np.testing.assert_array_equal(part, want[index])
    assert part.flags.c_contiguous
  assert max(asked) == 1                    # 24 bytes: never more than a row
  if not turned:
    np.testing.assert_array_equal(lazy[2], want[2])


def test_a_number_that_is_made_when_indexed():
  lazy = buffers.Rows((), np.dtype(np.float32),
                      lambda part: np.float32(3)[part])
  assert buffers.copied(lazy, np.dtype(np.float16)) == np.asarray(lazy) == 3


def test_shards_of_rows_are_made_one_by_one(params):
  """Where a device needs a part of an array, no other part is made."""
  asked = []

  def lazily(leaf):
    array = leaf.read()
    if array.ndim < 2:
      return leaf
    make = lambda part: asked.append(part) or array[part]
    made = buffers.Rows(array.shape, array.dtype, make)
    return loading.Leaf(leaf.shape, leaf.nbytes, lambda: made, leaf.name)

  leaves = {k: lazily(x) for k, x in leaves_of(params).items()}
  mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), 'x')
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  found = loading.load(source(leaves), sharding=lambda *_: place).params
  jax.tree.map(np.testing.assert_array_equal, found, params)
  assert asked
