"""safetensors files: read through a memory map, written a few rows at a time.

A file is the length of its header (8 bytes, little endian), the header (JSON:
dtype, shape and offsets of every array), and the arrays without gaps. Nothing
in it is executed.

Reference: https://github.com/huggingface/safetensors#format
"""
from __future__ import annotations

import functools
import json
import math
import mmap
import os
import pathlib
from typing import Any, Callable, Mapping

import ml_dtypes
import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import loading
from spec_cascades.data import files

FLOATS = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16,
          'BF16': ml_dtypes.bfloat16}
CODES = {np.dtype(kind).name: code for code, kind in FLOATS.items()}
# Bits of what we do not read but have to step over.
OTHERS = dict(BOOL=8, U8=8, I8=8, F8_E5M2=8, F8_E4M3=8, F8_E8M0=8, I16=16,
              U16=16, I32=32, U32=32, I64=64, U64=64, C64=64, F4=4,
              F6_E2M3=6, F6_E3M2=6)
MAX_HEADER = 100_000_000
MAX_DIMENSION = 2**48
ALIGNMENT = 64
CHUNK = 2**24

Write = Callable[[int], Any]           # is told how many bytes were written


def read(path: pathlib.Path) -> dict[str, loading.Leaf]:
  """The arrays of a file, by its own names; integer arrays only with a shape.

  Raises:
    ValueError: The file is damaged or cut off.
  """
  with loading.readable(path, *loading.JSON_ERRORS, OSError):
    with path.open('rb') as file:
      size = os.fstat(file.fileno()).st_size
      start, header = _header(path, file, size)
      mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  leaves, ends = {}, []
  for name, entry in header.items():
    leaf, (begin, end) = _leaf(path, mapped, start, name, entry)
    leaves[name] = leaf
    ends.append((begin, end))
  at = 0
  for begin, end in sorted(ends):
    if begin != at:
      raise _broken(path, f'its arrays leave a gap or overlap at byte {at}')
    at = end
  if start + at != size:
    raise _broken(path, f'it has {size} bytes; its header says {start + at}')
  return leaves


def write(path: pathlib.Path, leaves: Mapping[str, loading.Leaf], dtype: str,
          tick: Write = lambda _: None) -> int:
  """Writes arrays in their order; the file is complete or not there.

  Args:
    path: Is replaced.
    leaves: Each is read once, when its turn comes.
    dtype: Of all arrays in the file.
    tick: Told the bytes of each array once they are written.

  Returns:
    Bytes of the arrays.
  """
  kind, header, at = np.dtype(FLOATS[dtype_code(dtype)]), {}, 0
  for name, leaf in leaves.items():
    end = at + math.prod(leaf.shape) * kind.itemsize
    header[name] = dict(dtype=dtype_code(dtype), shape=list(leaf.shape),
                        data_offsets=[at, end])
    at = end
  # transformers refuses a file that does not say whose it is.
  text = json.dumps({'__metadata__': {'format': 'pt'}, **header}).encode()
  text += b' ' * (-(8 + len(text)) % ALIGNMENT)
  with files.appearing(path) as partial, partial.open('wb') as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    for leaf in leaves.values():
      array = np.asarray(loading.read(leaf))
      for rows in buffers.rows(array, CHUNK):
        part = buffers.copied(np.asarray(array[rows]), kind)
        file.write(part.reshape(-1).view(np.uint8))
        buffers.forget(array)
      tick(array.size * kind.itemsize)
  return at


def dtype_code(dtype: str) -> str:
  """What a header calls a dtype of floats."""
  return CODES[dtype]


def shards(leaves: Mapping[str, loading.Leaf], itemsize: int,
           limit: int) -> list[dict[str, loading.Leaf]]:
  """The arrays in order, in groups of at most `limit` bytes if written."""
  groups, size = [{}], 0
  for name, leaf in leaves.items():
    more = math.prod(leaf.shape) * itemsize
    if groups[-1] and size + more > limit:
      groups, size = [*groups, {}], 0
    groups[-1][name] = leaf
    size += more
  return groups


def file_names(count: int, name: str = 'model.safetensors') -> list[str]:
  """Names of the files of a model, in order."""
  if count == 1:
    return [name]
  stem, suffix = name.split('.')
  return [f'{stem}-{i + 1:05d}-of-{count:05d}.{suffix}' for i in range(count)]


def _header(path, file, size) -> tuple[int, dict[str, Any]]:
  """Where the arrays start, and what is said about them."""
  length = int.from_bytes(file.read(8), 'little')
  if size < 8 or length > min(MAX_HEADER, size - 8):
    raise _broken(path, f'it has {size} bytes and a header of {length}')
  header = json.loads(file.read(length).decode('utf-8'))
  if not isinstance(header, dict):
    raise _broken(path, 'its header is not an object')
  header.pop('__metadata__', None)
  return 8 + length, header


def _leaf(path, mapped, start, name, entry):
  """One array, and its first and last byte behind the header."""
  try:
    code, shape = entry['dtype'], tuple(entry['shape'])
    begin, end = entry['data_offsets']
    numbers = (*shape, begin, end)
  except (KeyError, TypeError, ValueError):
    raise _broken(path, f'its header does not describe {name!r}') from None
  bits = (np.dtype(FLOATS[code]).itemsize * 8 if code in list(FLOATS)
          else OTHERS.get(code) if isinstance(code, str) else None)
  if bits is None or not all(
      type(n) is int and 0 <= n <= MAX_DIMENSION for n in numbers):
    raise _broken(path, f'its header does not describe {name!r}')
  if (end - begin) * 8 != math.prod(shape) * bits or (
      start + end > len(mapped)):
    raise _broken(path, f'{name!r} has {end - begin} bytes for {code} of '
                  f'shape {shape}, or lies behind the end')
  get = functools.partial(_view, path, mapped, start + begin, code, shape, name)
  kind = np.dtype(FLOATS[code]).name if code in FLOATS else code
  return loading.Leaf(shape, end - begin, get, name, kind), (begin, end)


def _view(path, mapped, begin, code, shape, name) -> np.ndarray:
  if code not in FLOATS:
    raise ValueError(f'{path}: {name} is {code}; weights have to be one of '
                     f'{", ".join(FLOATS)}.')
  kind = np.dtype(FLOATS[code])
  flat = np.frombuffer(mapped, np.uint8, math.prod(shape) * kind.itemsize,
                       begin)
  return flat.view(kind).reshape(shape)


def _broken(path, why) -> loading.Broken:
  return loading.Broken(f'{path} is damaged or cut off ({why}); get the file '
                        'again.')

