"""Lines of a text file, of which each of several processes reads its bytes."""
from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import Callable

from spec_cascades import hosts

ALL = (0, 1)                       # the whole, as the first of one part
BLOCK = 2**16                      # bytes at both ends that are compared


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a line is; its number is counted only if somebody wants to see it.

  Attributes:
    path: Of the file.
    start: Of the line, in bytes.
  """
  path: pathlib.Path
  start: int

  def __str__(self) -> str:
    with self.path.open('rb') as file:
      before = file.read(self.start).count(b'\n')
    return f'{self.path}, line {before + 1}'


def lines(path: pathlib.Path, part: tuple[int, int] = ALL
          ) -> list[tuple[int, str]]:
  """The lines that begin in a part's bytes: start in bytes, and text.

  Args:
    path: A file in UTF-8.
    part: (i, n): the i-th of n parts, which share no line, and together and in
      order are the file.

  Raises:
    OSError, UnicodeDecodeError: It can't be read.
  """
  index, count = part
  size, found = path.stat().st_size, []
  start, stop = (size * (index + i) // count for i in (0, 1))
  with path.open('rb') as file:
    if start:
      file.seek(start - 1)
      file.readline()              # it begins before this part
    while (at := file.tell()) < stop:
      found.append((at, file.readline().decode('utf-8').rstrip('\r\n')))
  return found


def agreed(find: Callable[[], pathlib.Path]) -> pathlib.Path:
  """The file that `find` finds, in all processes, which all have to ask.

  Raises:
    ValueError: Some process does not find it, or its size, first or last bytes
      differ.
  """
  path = hosts.together(find)
  size = path.stat().st_size
  with path.open('rb') as file:
    ends = file.read(BLOCK)
    file.seek(max(0, size - BLOCK))
    ends += file.read(BLOCK)
  hosts.alike(path.name,
              f'{size} bytes ({hashlib.sha256(ends).hexdigest()[:12]})')
  return path
