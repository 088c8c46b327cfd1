"""Runs programs that a model wrote, where they can do no harm.

What holds them is the Linux kernel, on x86_64 and aarch64, also for root and in
containers; no privilege is needed. Anywhere else nothing is run: see `check`.

* A seccomp filter (`confine`) lets a program compute, read files and wait. It
  dies at the first system call that would start a process or a thread, run or
  write a file, make, change or remove one, send a signal, or open a socket. The
  kernel checks every call, so os.system, subprocess, ctypes or machine code get
  no further than Python does.
* Resource limits: processor seconds, address space, no bytes to files.
* A wall-clock limit, after which its process group is killed. It also dies with
  the process that asked for it.
* An interpreter of its own with the standard library alone, an empty temporary
  working directory, an environment that says no more than where its libraries
  are, no input, and output to nowhere.

What it does not do: a program may read whatever its user may read, including
special files that react to being read; it has no way to tell anyone but by
passing or failing. It may cheat: it runs in the interpreter that runs its tests
and can find there what a passing program says. That guards against programs
that exit early, not against one that attacks its judge. Flaws of the kernel
are not guarded against: for hostile programs, add a virtual machine.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import secrets
import signal
import subprocess
import sys
import tempfile

from spec_cascades.evaluation import confine

SECONDS = 5
MEMORY = 2**30
WALL = 6                                     # wall-clock seconds a second
ENVIRONMENT = dict(PYTHONHASHSEED='0', PYTHONUTF8='1')  # the same every time
LIBRARIES = 'LD_LIBRARY_PATH'                # some interpreters need it
SIGNALS = {signal.SIGSYS: 'forbidden system call'}


@dataclasses.dataclass(frozen=True)
class Result:
  """How a run ended.

  Attributes:
    outcome: 'passed'; 'failed', the reason being an exception; 'timeout', the
      reason being the clock; 'killed', the reason being what it tried or a
      signal.
    reason: '' if it passed.
  """
  outcome: str
  reason: str = ''

  @property
  def passed(self) -> bool:
    """Whether program and tests ran to their end."""
    return self.outcome == 'passed'


def check() -> None:
  """Raises ValueError where the kernel can't confine programs."""
  system, machine = platform.system(), platform.machine()
  if system != 'Linux' or machine not in confine.AUDIT:
    raise ValueError(f'Programs can\'t be confined on {system} {machine}; '
                     f'score them on Linux, {" or ".join(confine.AUDIT)}.')


def run(program: str, tests: str = '', *, seconds: int = SECONDS,
        memory: int = MEMORY) -> Result:
  """Runs a program and then its tests, in one namespace.

  Args:
    program: Python source, not trusted.
    tests: Python source, for example asserts.
    seconds: Processor time; the wall clock gives `WALL` times as much.
    memory: Bytes of address space, the interpreter's own included.

  Raises:
    ValueError: The kernel can't confine programs, or the interpreter does not
      start, so nothing was run.
  """
  check()
  secret = secrets.token_hex(16)
  libraries = {x: os.environ[x] for x in [LIBRARIES] if x in os.environ}
  task = dict(program=program, tests=tests, secret=secret, seconds=seconds,
              memory=memory)
  with (tempfile.TemporaryDirectory() as empty,
        tempfile.TemporaryFile('w+') as given):
    json.dump(task, given)
    given.seek(0)
    process = subprocess.Popen(
        [sys.executable, '-s', '-S', '-P', '-B',
         str(pathlib.Path(confine.__file__))], stdin=given,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=empty,
        env=dict(ENVIRONMENT, HOME=empty, **libraries), start_new_session=True)
    with process.stdout:
      late = _wait(process, WALL * seconds)
      said = process.stdout.read(1024)
  if not said.startswith(confine.READY):
    raise ValueError(_not_ready(process.returncode, late and WALL * seconds))
  if late:
    return Result('timeout', 'wall clock')
  return _verdict(said.removeprefix(confine.READY), secret, process.returncode)


def _wait(process: subprocess.Popen, seconds: float) -> bool:
  """Whether it had to be killed; nothing is left of it either way."""
  try:
    process.wait(seconds)
  except subprocess.TimeoutExpired:
    return True
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()
  return False


def _not_ready(code: int, waited: float) -> str:
  """Why a program was not run; `waited` is 0 if its process ended by itself."""
  if code in (confine.REFUSED, -signal.SIGSYS):
    return ('The kernel refused to confine a program, so it was not run; allow '
            'seccomp filters and resource limits, or score on another machine.')
  how = f'not within {waited:g} s' if waited else f'exit code {code}'
  return (f'The interpreter {sys.executable} did not start ({how}), so no '
          f'program was run; see that it does with {LIBRARIES} as its only '
          'variable, or score on another machine.')


def _verdict(said: bytes, secret: str, code: int) -> Result:
  if code == -signal.SIGXCPU:
    return Result('timeout', 'processor time')
  if code < 0:
    return Result('killed', SIGNALS.get(-code, signal.Signals(-code).name))
  if not said.endswith(b' ' + secret.encode()):
    return Result('failed', 'early exit')
  if said.startswith(confine.PASSED):
    return Result('passed')
  if said.startswith(confine.MEMORY):
    return Result('killed', 'memory')
  return Result('failed', said.split()[1].decode(errors='replace'))
