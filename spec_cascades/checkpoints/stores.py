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

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import loading
from spec_cascades.models import positions

TREE, OLD_TREE, OCDBT = '_METADATA', 'checkpoint', 'manifest.ocdbt'
PLACEHOLDER = 'PLACEHOLDER://'
HEADERS = {'.zarray': 'zarr', 'zarr.json': 'zarr3'}
FLOATS = {'<f2': 'float16', '<f4': 'float32', '<f8': 'float64'}
FLOATS |= {name: name for name in (*FLOATS.values(), 'bfloat16')}
SLACK = 2**20
# What a reader may raise whose input may be anything.
ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError,
          OverflowError, RuntimeError, RecursionError, MemoryError, OSError,
          NotImplementedError, msgpack.UnpackException)


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
  """An array in a store, with what its header says."""
  path: pathlib.Path
  spec: Mapping[str, Any]
  shape: tuple[int, ...]
  chunk: tuple[int, ...]
  dtype: np.dtype

  @property
  def nbytes(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize

  def open(self) -> buffers.Rows:
    """Opens it; what is indexed is what is read."""
    row = self.nbytes // self.shape[0] if self.shape else 0
    # Rows are asked for a few at a time: a chunk is decoded once.
    held = min(self.nbytes, 2 * row * self.chunk[0]) if row else 0
    pool = dict(cache_pool=dict(total_bytes_limit=held + SLACK))
    with loading.readable(self.path, *ERRORS):
      array = ts.open(self.spec, read=True, context=ts.Context(pool)).result()
      if (array.shape, array.dtype.numpy_dtype) != (self.shape, self.dtype):
        raise ValueError('its header changed')

    def make(part: Any) -> np.ndarray:
      with loading.readable(self.path, *ERRORS):
        return np.asarray(array[part].read().result())
    return buffers.Rows(self.shape, self.dtype, make)


def arrays(directory: pathlib.Path, wanted: Mapping[str, str | np.ndarray]
           ) -> dict[str, Stored | np.ndarray]:
  """Arrays of a directory by our names; reads and checks their headers.

  Raises:
    ValueError: An array is missing, not whole, or not of floats.
  """
  base = dict(driver='file', path=f'{directory.absolute()}/')
  if (directory / OCDBT).is_file():
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
  out = {}
  for ours, name in wanted.items():
    if not isinstance(name, str):
      out[ours], kind = np.asarray(name), np.asarray(name).dtype.name
    else:
      with loading.readable(directory / name, *ERRORS):
        driver, shape, chunk, kind = _checked(*headers[name], held[name])
      spec = dict(driver=driver,
                  kvstore={**base, 'path': f'{base["path"]}{name}/'})
      out[ours] = Stored(directory / name, spec, shape, chunk,
                         np.dtype(jnp.dtype(FLOATS.get(kind))))
    if kind not in FLOATS:
      raise ValueError(f'{directory}: {ours} is {kind}; allowed: '
                       f'{", ".join(sorted(set(FLOATS.values())))}.')
  return out


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


def _checked(header: str, raw: bytes, parts: set[str]
             ) -> tuple[str, tuple[int, ...], tuple[int, ...], str]:
  """Driver, shape, chunk and dtype of an array all of whose chunks are there.

  A store reads a chunk that is missing as zeros, so it must not be opened.
  """
  found, driver = json.loads(raw), HEADERS[header]
  if driver == 'zarr':
    chunk, dtype, mark = found['chunks'], found['dtype'], ''
    split = found.get('dimension_separator', '.')
  else:
    chunk = found['chunk_grid']['configuration']['chunk_shape']
    dtype, mark, split = found['data_type'], 'c', '/'
  shape = found['shape']
  if len(chunk) != len(shape) or not all(
      type(s) is int and type(c) is int and 1 <= c <= s
      for s, c in zip(shape, chunk)):
    raise ValueError(f'shape {shape} in chunks of {chunk}')
  grid = [range(-(-s // c)) for s, c in zip(shape, chunk)]
  if math.prod(map(len, grid)) > len(parts):
    raise ValueError(f'{len(parts)} files for {math.prod(map(len, grid))} '
                     'chunks')
  first = [mark] if mark else []
  lacking = [key for index in itertools.product(*grid)
             if (key := split.join([*first, *map(str, index)]) or '0')
             not in parts]
  if lacking:
    raise ValueError(f'no chunk {loading.some(lacking)}')
  return driver, tuple(shape), tuple(chunk), str(dtype)
