"""Zarr arrays in the directories that Orbax and T5X write.

Arrays are read one at a time, or one slice at a time, and only those that are
asked for. From the files come names, sizes and floats, nothing that runs.
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any, Callable, Collection, Iterable, Mapping

from flax import serialization
from flax import traverse_util
import jax.numpy as jnp
import msgpack
import numpy as np
import tensorstore as ts
import zstandard

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import chunks
from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import loading
from spec_cascades.models import positions

TREE, OLD_TREE = '_METADATA', 'checkpoint'
PLACEHOLDER = 'PLACEHOLDER://'
HEADERS = {'.zarray': 'zarr', 'zarr.json': 'zarr3'}
FLOATS = {'<f2': 'float16', '<f4': 'float32', '<f8': 'float64'}
FLOATS |= {name: name for name in (*FLOATS.values(), 'bfloat16')}
SLACK = 2**20
# What a reader may raise whose input may be anything.
ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError,
          OverflowError, RuntimeError, RecursionError, MemoryError, OSError,
          NotImplementedError, msgpack.UnpackException, zstandard.ZstdError)


def is_tree(path: pathlib.Path) -> bool:
  """Whether a directory holds a tree, as old or new versions write it."""
  if (path / TREE).is_file():
    return True
  old = path / OLD_TREE
  if not old.is_file():
    return False
  with old.open('rb') as file:
    return PLACEHOLDER.encode() in file.read(2**16)


def tree(item: pathlib.Path) -> dict[str, str | np.ndarray]:
  """Leaves of a saved tree by path: their names in the store, or values."""
  new, old = item / TREE, item / OLD_TREE
  with loading.readable(new if new.is_file() else old, *ERRORS):
    if new.is_file():
      entries = json.loads(new.read_bytes())['tree_metadata'].values()
      keys = [tuple(str(key['key']) for key in x['key_metadata'])
              for x in entries if not x['value_metadata']['skip_deserialize']]
      return {'/'.join(key): '.'.join(key) for key in keys}
    flat = traverse_util.flatten_dict(
        serialization.msgpack_restore(old.read_bytes()), sep='/')
    return {name: x.removeprefix(PLACEHOLDER) if isinstance(x, str) else x
            for name, x in flat.items()}


@dataclasses.dataclass(frozen=True)
class Stored:
  """An array in a store, with what its header says.

  `span` is where its only chunk is, if that is to be read as a stream.
  """
  path: pathlib.Path
  spec: Mapping[str, Any]
  shape: tuple[int, ...]
  chunk: tuple[int, ...]
  dtype: np.dtype
  span: chunks.Span | None = None
  packed: bool = False

  @property
  def nbytes(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize

  def open(self) -> buffers.Rows:
    """Opens it; what is indexed is what is read."""
    if self.span is not None:
      stream = chunks.Stream(self.span, self.packed, self.shape,
                             self.dtype)
      return self._rows(stream)
    row = self.nbytes // self.shape[0] if self.shape else 0
    # Rows are asked for a few at a time: a chunk is decoded once.
    held = min(self.nbytes, 2 * row * self.chunk[0]) if row else 0
    pool = dict(cache_pool=dict(total_bytes_limit=held + SLACK))
    with loading.readable(self.path, *ERRORS):
      array = ts.open(self.spec, read=True, context=ts.Context(pool)).result()
      if (array.shape, array.dtype.numpy_dtype) != (self.shape, self.dtype):
        raise ValueError('its header changed')
    return self._rows(lambda part: array[part].read().result())

  def _rows(self, read: Callable[[Any], np.ndarray]) -> buffers.Rows:
    def make(part: Any) -> np.ndarray:
      with loading.readable(self.path, *ERRORS):
        return np.asarray(read(part))
    return buffers.Rows(self.shape, self.dtype, make)


def arrays(directory: pathlib.Path, wanted: Mapping[str, str | np.ndarray]
           ) -> dict[str, Stored | np.ndarray]:
  """Arrays of a directory by our names; reads and checks their headers.

  Raises:
    ValueError: An array is missing, not whole, or not of floats.
  """
  base = dict(driver='file', path=f'{directory.absolute()}/')
  if chunks.in_ocdbt(directory):
    base = dict(driver='ocdbt', base=base, path='')
  names = {name for name in wanted.values() if isinstance(name, str)}
  with loading.readable(directory, *ERRORS):
    store = ts.KvStore.open(base).result()
    held = _parts([key.decode() for key in store.list().result()], names)
    asked = [(name, header, store.read(f'{name}/{header}'))
             for name, parts in held.items() for header in HEADERS
             if header in parts]
    headers = {name: (header, x.result().value) for name, header, x in asked}
  missing = sorted(names - set(headers))
  if missing:
    raise loading.Broken(f'{directory} lacks the arrays {loading.some(missing)}'
                         '; get them again.')
  out, streams = {}, {}
  for ours, name in wanted.items():
    if not isinstance(name, str):
      out[ours], kind = np.asarray(name), np.asarray(name).dtype.name
    else:
      with loading.readable(directory / name, *ERRORS):
        driver, header = HEADERS[headers[name][0]], json.loads(headers[name][1])
        shape, chunk, kind, first = _checked(driver, header, held[name])
        packed = chunks.compressed(header)
      spec = dict(driver=driver,
                  kvstore={**base, 'path': f'{base["path"]}{name}/'})
      out[ours] = Stored(directory / name, spec, shape, chunk,
                         np.dtype(jnp.dtype(FLOATS.get(kind))))
      if (chunk == shape and out[ours].nbytes >= chunks.SMALLEST
          and packed is not None):
        streams[ours] = f'{name}/{first}', packed
    if kind not in FLOATS:
      raise ValueError(f'{directory}: {ours} is {kind}; allowed: '
                       f'{", ".join(sorted(set(FLOATS.values())))}.')
  with loading.readable(directory, *ERRORS):
    found = chunks.spans(directory, {key for key, _ in streams.values()})
  return out | {
      ours: dataclasses.replace(out[ours], span=found[key], packed=packed)
      for ours, (key, packed) in streams.items() if key in found}


def leaf(array: Stored | np.ndarray, name: str) -> loading.Leaf:
  """An array that needs no change as a leaf."""
  read = array.open if isinstance(array, Stored) else lambda: array
  return loading.Leaf(tuple(array.shape), array.nbytes, read, name,
                      array.dtype.name)


def largest_first(leaves: Mapping[str, loading.Leaf]
                  ) -> dict[str, loading.Leaf]:
  """An order in which a file's copy of an array costs the least memory."""
  return dict(sorted(leaves.items(), key=lambda item: -item[1].nbytes))


def configured(kind: type, fields: Any, path: pathlib.Path,
               default: Any = None) -> Any:
  """A configuration with these fields, the others from `default`.

  Raises:
    ValueError: A field does not exist or has no value of its type.
  """
  known = {f.name for f in dataclasses.fields(kind)}
  wrong = sorted(set(fields) - known) if isinstance(fields, dict) else ['?']
  if wrong:
    raise ValueError(f'{path} sets {loading.some(wrong)}; allowed: '
                     f'{", ".join(sorted(known))}.')
  ropes = {k: positions.Rope(**x) for k, x in fields.items()
           if isinstance(x, dict) and k.endswith('rope')}
  given = {**(vars(default) if default else {}), **fields, **ropes}
  with loading.readable(path, *ERRORS):
    config = kind(**given)
    hash((config, jnp.dtype(config.dtype)))
  return config


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """An object in a JSON file; `loading.Broken` if it is none."""
  with loading.readable(path, *ERRORS):
    found = json.loads(path.read_bytes())
    return dict(found.items())


def tokenizer(folders: Iterable[pathlib.Path], rows: int
              ) -> Callable[[], Any] | None:
  """Makes the tokenizer in the first of these folders that has one.

  Raises:
    ValueError: It is damaged, or not of `rows` embeddings.
  """
  for folder in folders:
    found = hub.tokenizer_of(folder, rows)()
    if found is not None:
      return lambda: found
  return None


def _parts(keys: Collection[str], names: Collection[str]
           ) -> dict[str, set[str]]:
  """Keys of a store by the array that they belong to."""
  out = {}
  for key in keys:
    name = key
    while '/' in name and name not in names:
      name = name.rpartition('/')[0]
    if name in names:
      out.setdefault(name, set()).add(key[len(name) + 1:])
  return out


def _checked(driver: str, header: Mapping[str, Any], parts: set[str]
             ) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
  """Shape, chunk, dtype and first key of an array whose chunks are all there.

  A store reads a chunk that is missing as zeros, so it must not be opened.
  """
  if driver == 'zarr':
    chunk, dtype, mark = header['chunks'], header['dtype'], ''
    split = header.get('dimension_separator', '.')
  else:
    chunk = header['chunk_grid']['configuration']['chunk_shape']
    dtype, mark, split = header['data_type'], 'c', '/'
  shape = header['shape']
  if len(chunk) != len(shape) or not all(
      type(s) is int and type(c) is int and 1 <= c <= s
      for s, c in zip(shape, chunk)):
    raise ValueError(f'shape {shape} in chunks of {chunk}')
  grid = [range(-(-s // c)) for s, c in zip(shape, chunk)]
  if math.prod(map(len, grid)) > len(parts):
    raise ValueError(f'{len(parts)} files for {math.prod(map(len, grid))} '
                     'chunks')
  first = [mark] if mark else []
  keys = [split.join([*first, *map(str, index)]) or '0'
          for index in itertools.product(*grid)]
  lacking = [key for key in keys if key not in parts]
  if lacking:
    raise ValueError(f'no chunk {loading.some(lacking)}')
  return tuple(shape), tuple(chunk), str(dtype), keys[0]
