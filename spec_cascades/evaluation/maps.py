"""Memory maps: Linux gives a process 65,530, XLA on a CPU takes a thousand for
some programs, and without any it ends the process.
"""
from __future__ import annotations

import pathlib

ROOM = 0.9                    # of the limit, that programs may take


def check(proc: pathlib.Path = pathlib.Path('/proc')) -> None:
  """Refuses one more program where there may be no room; Linux only.

  Args:
    proc: Where the kernel says what there is.

  Raises:
    RuntimeError: Says how many are taken, and how to get more.
  """
  maps, limit = proc / 'self/maps', proc / 'sys/vm/max_map_count'
  if not (maps.is_file() and limit.is_file()):
    return
  most, used = int(limit.read_text()), maps.read_bytes().count(b'\n')
  if used > ROOM * most:
    raise RuntimeError(
        f'No room for one more program: {used:,} of the {most:,} memory maps '
        'that Linux gives a process are taken. Sweep fewer drafters or buckets '
        f'at a time, or allow more: sysctl -w vm.max_map_count={4 * most}')
