"""Which process works on what, when several share a sweep."""
from __future__ import annotations

import fcntl
import pathlib


class Claims:
  """A lock a unit of work: byte i of a file stands for unit i.

  The kernel gives a lock up when its process ends, however it ends, so that
  what a dead process had claimed is free again. Locks of one process do not
  exclude its own threads.
  """

  def __init__(self, path: pathlib.Path):
    """Opens or creates the file, which stays empty."""
    # Closing any other descriptor of the file would give up all locks.
    self._file = open(path, 'ab')

  def take(self, unit: int) -> bool:
    """Claims a unit; False if another process has it."""
    try:
      fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, unit)
    except OSError:
      return False
    return True

  def release(self, unit: int) -> None:
    """Gives a unit up."""
    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, unit)

  def close(self) -> None:
    """Gives everything up."""
    self._file.close()
