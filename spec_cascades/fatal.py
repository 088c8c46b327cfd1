"""Passes a process's standard error on; a program of its own.

When another process dies, JAX ends this one with a page of text that can't be
caught there. Of it one line is left.
"""
from __future__ import annotations

import os
import re
import signal
import sys

LOGGED = re.compile(rb'[IWEF]\d{4} \d\d:\d\d:\d\d')
END = b'Terminating process because the JAX distributed service'
FAILED = b'preemption_sync_manager.cc', b'coordination_service'
STILL = re.compile(rb'stopped sending heartbeats\):\s*(\d+(?:,\s*\d+)*)')


def line_of(name: str, text: bytes) -> str:
  """The line for what JAX has said.

  Args:
    name: Of the program.
    text: All that was logged.
  """
  found = STILL.search(text)
  if found:
    gone = f'process {found[1].decode()} has given no sign of life'
  elif b'leader task' in text or b'UNAVAILABLE' in text:
    gone = 'process 0, through which all talk, is gone'
  else:
    gone = 'another process failed'
  return (f'{name}: stopped, since {gone}; see what it said on its host. The '
          'same command goes on.\n')


def main() -> None:
  """Until standard input ends."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  name, held, logged, rest, end = sys.argv[1], b'', b'', b'', b'\n'

  def passed(text):
    """Passes text on; its last byte, of all that was passed on."""
    os.write(2, text)
    return text[-1:] or end

  while chunk := os.read(0, 2**16):
    *lines, rest = (rest + chunk).splitlines(keepends=True)
    if rest.endswith((b'\n', b'\r')):
      lines, rest = [*lines, rest], b''
    for line in lines:
      ours = LOGGED.match(line) and any(x in line for x in (*FAILED, END))
      if ours or held and not line.endswith(b'\r'):
        held, logged = held or line, logged + line
      else:
        end = passed(line)
    if rest and not held and not LOGGED.match(rest):
      end = passed(rest)                # a line that goes on
      rest = b''
  if END in logged:                     # below a bar, if there is one
    if end != b'\n':
      passed(b'\n')
    passed(line_of(name, logged).encode())
  elif logged:
    passed(logged)
  passed(rest)


if __name__ == '__main__':
  main()
