"""Weights in one piece of memory, in huge pages where the system has them.

Where a page of 4 kB lies a processor has to look up, at each of the thousands
of pages of a model's weights in every step; and what it fetches ahead ends with
the page. Of huge pages, 2 MB each, there are 512 times fewer (figures:
docs/benchmarks.md).
"""
from __future__ import annotations

import mmap

import jax
import numpy as np

HUGE = 2**21                         # bytes of a huge page
LINE = 64                            # JAX shares memory that begins at such


def room(nbytes: int) -> int:
  """Bytes that an array of so many takes."""
  return -(-nbytes // LINE) * LINE


class Piece:
  """Memory for arrays, which stays as long as one of them."""

  def __init__(self, nbytes: int):
    """Room for arrays whose `room` is `nbytes` together."""
    kinds = ('MAP_PRIVATE', 'MAP_ANONYMOUS')
    flags = sum(getattr(mmap, name, 0) for name in kinds)
    memory = mmap.mmap(-1, nbytes + 2 * HUGE, **dict(flags=flags) if flags
                       else {})
    if hasattr(mmap, 'MADV_HUGEPAGE'):
      try:
        memory.madvise(mmap.MADV_HUGEPAGE)
      except OSError:                # a system without them
        pass
    whole = np.frombuffer(memory, np.uint8)
    self._free = whole[-whole.ctypes.data % HUGE:]

  def put(self, array: np.ndarray) -> jax.Array:
    """A copy of the array here, behind those before; not to be written to."""
    nbytes = array.nbytes
    here = self._free[:nbytes].view(array.dtype).reshape(array.shape)
    self._free = self._free[room(nbytes):]
    here[...] = array
    return jax.device_put(here, may_alias=True)
