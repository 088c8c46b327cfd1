"""Arrays on their way from a file to a device, in little memory.

Rows that are made when they are asked for, copies that a device adopts, and
pages that go back to the system as soon as they are done with.
"""
from __future__ import annotations

from concurrent import futures
import ctypes
import dataclasses
import functools
import math
import mmap
import os
from typing import Any, Callable, Iterator

import numpy as np

# Bytes that are copied in one go, and the tile that a transposition takes: a
# cache line of rows that stay in the second-level cache.
CHUNK = 2**23
MADE = 2**20                           # where each row has to be made
TILE = (4096, 16)
# XLA's CPU backend adopts an array that starts at a multiple of this.
ALIGNMENT = 64
PAGES = 2**18                          # bytes of an array with its own pages
THREADS = min(4, os.cpu_count() or 1)
TRIMMED = 2**21                        # bytes of a file that leave much behind


@dataclasses.dataclass(frozen=True)
class Rows:
  """An array that is made when it is indexed, a few rows at a time.

  Attributes:
    shape: Of the array.
    dtype: Of what `make` returns.
    make: From a slice of rows of the file, or () if the array has no axes, to
      these rows; called from several threads.
    turned: Whether the array is the transpose of what the file holds.
  """
  shape: tuple[int, ...]
  dtype: np.dtype
  make: Callable[[Any], np.ndarray]
  turned: bool = False

  @property
  def T(self) -> Rows:  # pylint: disable=invalid-name
    """The transpose of a matrix."""
    return dataclasses.replace(self, shape=self.shape[::-1],
                               turned=not self.turned)

  def __getitem__(self, index: Any) -> np.ndarray | Rows:
    """Rows of the file for a number; for slices the part that they cut out."""
    if isinstance(index, int):
      return self.make(slice(index, index + 1))[0]
    index = index if isinstance(index, tuple) else (index,)
    spans = [range(n)[i] for i, n in zip(index, self.shape)]
    spans += map(range, self.shape[len(spans):])
    if not spans:
      return self
    first, *rest = [slice(s.start, s.stop) for s in
                    (spans[::-1] if self.turned else spans)]
    make = lambda part: self.make(slice(
        first.start + part.start, min(first.start + part.stop, first.stop)))[
            (slice(None), *rest)]
    return dataclasses.replace(self, shape=tuple(map(len, spans)), make=make)

  def __array__(self, dtype: Any = None, copy: bool | None = None):
    del copy
    if not self.shape:
      return np.asarray(self.make(()), dtype)
    whole = self.make(slice(0, self.shape[-1 if self.turned else 0]))
    return np.asarray(whole.T if self.turned else whole, dtype)


def rows(array: np.ndarray | Rows, nbytes: int) -> Iterator[Any]:
  """Indices of an array's rows in groups of about `nbytes` bytes."""
  if not array.shape:
    yield ()
    return
  count, *row = array.shape
  step = max(1, nbytes // max(1, math.prod(row) * array.dtype.itemsize))
  yield from (slice(i, min(i + step, count)) for i in range(0, count, step))


def forget(array: np.ndarray | Rows) -> None:
  """Gives back the memory of pages that were read through a memory map."""
  base = array
  while isinstance(base, (np.ndarray, memoryview)):
    base = base.base if isinstance(base, np.ndarray) else base.obj
  if type(base) is mmap.mmap and hasattr(mmap, 'MADV_DONTNEED'):
    base.madvise(mmap.MADV_DONTNEED)


def trim(nbytes: int) -> None:
  """Gives back what the allocator kept of reading `nbytes` bytes, if many.

  glibc keeps what the threads of a reader's library let go of.
  """
  if nbytes >= TRIMMED and (free := _malloc_trim()):
    free(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
  """glibc's function; other systems have none."""
  if os.name != 'posix':
    return None
  return getattr(ctypes.CDLL(None), 'malloc_trim', None)


def copied(array: np.ndarray | Rows, dtype: np.dtype) -> np.ndarray:
  """Row-major in `dtype`, where a device on this host can adopt it."""
  out = _empty(array.shape, dtype)
  made = isinstance(array, Rows)
  turned = array.turned if made else (
      array.ndim == 2 and array.strides[0] < array.strides[1])
  # Rows of the file: of the array, or of what it is the transpose of.
  given, taken = (array.T, out.T) if turned else (array, out)
  move = functools.partial(_move, given, taken, turned)
  parts = list(rows(given, MADE if made else CHUNK))
  if len(parts) == 1:
    move(parts[0])
  else:
    list(_pool().map(move, parts))
  return out


@functools.cache
def _pool() -> futures.ThreadPoolExecutor:
  """Threads that stay: glibc keeps some MB for each that there ever was."""
  return futures.ThreadPoolExecutor(THREADS)


class _Pages(mmap.mmap):
  """Memory of its own, which `forget` must leave alone."""


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """An array to fill, aligned; the system has it back once it is let go.

  The allocator would keep what large arrays leave behind, since what comes next
  is seldom of the same size.
  """
  size = math.prod(shape) * dtype.itemsize
  if size >= PAGES and hasattr(mmap, 'MAP_ANONYMOUS'):
    raw = np.frombuffer(_Pages(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
                        np.uint8)
  else:
    raw = np.empty(size + ALIGNMENT, np.uint8)
  start = -raw.ctypes.data % ALIGNMENT
  return raw[start:start + size].view(dtype).reshape(shape)


def _move(given, taken, turned, part) -> None:
  """taken[part] = given[part], cast; the pages of `given` are given back."""
  x = given.make(part) if isinstance(given, Rows) else given[part]
  if not turned:
    taken[part] = x.astype(taken.dtype, copy=False)
  else:
    y = taken[part]
    width, height = TILE
    for i in range(0, x.shape[0], height):
      for j in range(0, x.shape[1], width):
        tile = slice(i, i + height), slice(j, j + width)
        y[tile] = x[tile].astype(y.dtype, copy=False)
  forget(given)
