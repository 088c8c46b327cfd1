"""Several processes that run one command: who is first, and what they say.

Each process starts `jax.distributed`; what they tell each other goes through
the key-value store of its coordinator, which is process 0. With one process
everything here is a plain call.
"""
from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import time
from typing import Any, Callable, Mapping

import jax
from jax._src import distributed            # the store has no public name
from jax.experimental import multihost_utils
import numpy as np

from spec_cascades import check

AUTO = 'auto'
# Read where a flag is left out.
VARIABLES = dict(coordinator='JAX_COORDINATOR_ADDRESS',
                 num_processes='JAX_NUM_PROCESSES',
                 process_id='JAX_PROCESS_ID')
NAMES = 'TPU_WORKER_HOSTNAMES'     # that Cloud TPUs set, with commas
HEARTBEAT = 30                     # seconds without a sign of life
DAY = 24 * 3600 * 1000             # milliseconds
CHUNK = 2**26                      # bytes that are exchanged at a time
GRACE = 2                          # seconds in which others say why they end
# What is said of a collective whose other end has died.
CUT_OFF = ('gloo', 'unavailable', 'deadline_exceeded', 'connection',
           'socket', 'heartbeat')


def start(coordinator: str | None = None, num_processes: int | None = None,
          process_id: int | None = None, *, wait: int = 300,
          training: bool = False, mesh: int = 1,
          environ: Mapping[str, str] = os.environ) -> None:
  """Joins the other processes; does nothing if there is only this one.

  To be called before anything is put on a device. From then on the death of a
  process ends the others within a minute, in one line each.

  Args:
    coordinator: HOST:PORT of process 0, or 'auto' for what JAX finds out on
      Cloud TPUs, Slurm and Open MPI.
    num_processes: How many there are.
    process_id: Which of them this is, from 0.
    wait: Seconds for the others to come.
    training: Whether SIGTERM is no end but a notice, see `ending`.
    mesh: How many devices decode together. Where this process's own suffice,
      CPUs do without Gloo, which says things on standard output, and is slower.
    environ: Variables that stand for what is None.

  Raises:
    ValueError: Some of the three are given and not all, or they can't be.
    ConnectionError: The others did not come, which may pass.
  """
  given = _completed(environ, coordinator=coordinator,
                     num_processes=num_processes, process_id=process_id)
  if given is None:
    return
  jax.config.update('jax_enable_preemption_service', training)
  if not training and mesh <= _cpus():
    jax.config.update('jax_cpu_collectives_implementation', None)
  _explain()
  began = time.monotonic()
  try:
    jax.distributed.initialize(
        *given, initialization_timeout=wait,
        heartbeat_timeout_seconds=HEARTBEAT,
        cluster_detection_method=None if given == (None,) * 3 else 'deactivate')
  except (OSError, RuntimeError, TypeError, ValueError) as error:
    line = ' '.join(str(error).split())[:200]
    if given[0] is None and isinstance(error, ValueError):
      raise ValueError(
          f'coordinator={AUTO} did not find other processes ({line}); it knows '
          'Cloud TPUs, Slurm and Open MPI. Elsewhere give coordinator='
          'HOST:PORT, num_processes and process_id.') from None
    given_wrong = isinstance(error, (TypeError, ValueError))
    raise (ValueError if given_wrong else ConnectionError)(
        f'The processes did not come together in {time.monotonic() - began:.0f}'
        f' s ({line}); check that every host runs the same command, and the '
        f'coordinator {given[0] or AUTO}.') from None


def _completed(environ, **given) -> tuple[Any, ...] | None:
  """Coordinator, count and index; Nones to be found out; None for no others."""
  extra = [f'{name}={x}' for name, x in given.items() if x is not None]
  if given['coordinator'] == AUTO and extra[1:]:
    raise ValueError(f'Got {", ".join(extra)}; allowed: coordinator={AUTO} '
                     'alone, since JAX finds out the rest.')
  for name, variable in VARIABLES.items():
    if given[name] is None and environ.get(variable):
      given[name] = environ[variable]
  if given['coordinator'] is None and ',' in environ.get(NAMES, ''):
    given['coordinator'] = AUTO
  if given['coordinator'] == AUTO:
    return None, None, None
  missing = [name for name, value in given.items() if value is None]
  if len(missing) == len(given):
    return None
  if missing:
    raise ValueError(f'{" and ".join(missing)} must be given too, by flag or '
                     f'as {" and ".join(VARIABLES[x] for x in missing)}; or '
                     f'coordinator={AUTO} alone.')
  place, *numbers = given.values()
  try:
    count, index = map(int, numbers)
  except ValueError:
    raise ValueError(f'Got num_processes={numbers[0]!r} and process_id='
                     f'{numbers[1]!r}; allowed: whole numbers.') from None
  check.interval('num_processes', count, 1, 10**6, whole=True)
  check.interval('process_id', index, 0, count - 1, whole=True)
  host, _, port = str(place).rpartition(':')
  if not (host and port.isascii() and port.isdigit()
          and 0 < int(port) < 2**16):
    raise ValueError(f'Got coordinator={place!r}; allowed: HOST:PORT of '
                     f'process 0, with a port from 1 to 65535, or {AUTO}.')
  return None if count == 1 else (place, count, index)


def _cpus() -> int:
  """As how many devices the CPU will count; asks no device."""
  said = re.findall(r'--xla_force_host_platform_device_count=(\d+)',
                    os.environ.get('XLA_FLAGS', ''))
  own = jax.config.jax_num_cpu_devices           # -1: it is not set
  return own if own >= 0 else int((said or [1])[-1])


def _explain() -> None:
  """Puts what JAX says, when another process has died, in one line."""
  reader, writer = os.pipe()
  subprocess.Popen(                     # ends when this process does
      [sys.executable, '-P', '-S', pathlib.Path(__file__).with_name('fatal.py'),
       pathlib.Path(sys.argv[0]).name], stdin=reader, start_new_session=True)
  sys.stderr.flush()
  os.dup2(writer, 2)
  os.close(reader)
  os.close(writer)


def count() -> int:
  """Processes in all; asks no device."""
  return distributed.global_state.num_processes if _client() else 1


def index() -> int:
  """Which of them this is."""
  return distributed.global_state.process_id if _client() else 0


def first() -> bool:
  """Whether this process writes: results, checkpoints, reports."""
  return index() == 0


def _client() -> Any:
  return distributed.global_state.client


class Board:
  """Notes that processes leave for each other, under one name: JSON.

  Boards of the same name are one: each process that makes its boards in the
  same order gets the same.
  """
  _made = 0

  def __init__(self, name: str):
    Board._made += 1
    self._name = f'{name}{Board._made}'

  def put(self, key: Any, value: Any) -> None:
    """Leaves a note; there must be none."""
    _client().key_value_set(f'{self._name}/{key}', json.dumps(value))

  def get(self, key: Any) -> Any:
    """Waits for a note."""
    return json.loads(_client().blocking_key_value_get(
        f'{self._name}/{key}', DAY))

  def take(self, key: Any) -> Any:
    """Waits for a note and removes it."""
    found = self.get(key)
    _client().key_value_delete(f'{self._name}/{key}')
    return found

  def collect(self, folder: str) -> list[Any]:
    """Takes all notes whose keys begin with `folder/`, in order of keys."""
    found = _client().key_value_dir_get(f'{self._name}/{folder}/')
    for key, _ in found:
      _client().key_value_delete(key)
    return [json.loads(value) for _, value in sorted(found)]

  def draw(self) -> int:
    """The next number, 0 first, that no process has had."""
    return _client().key_value_increment(f'{self._name}/drawn', 1) - 1


def gathered(value: Any) -> list[Any]:
  """What each process gave, by index, as JSON has it; all have to ask."""
  if count() == 1:
    return [value]
  board = Board('gathered')
  board.put(index(), value)
  found = [board.get(i) for i in range(count())]
  barrier('gathered')                 # all have read; the store needn't keep it
  board.take(index())
  return found


def exchanged(value: Any) -> list[Any]:
  """As `gathered`, for much at once: by the network of the devices.

  Only after `start(training=True)`.
  """
  if count() == 1:
    return [value]
  own = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes, parts = gathered(len(own)), []
  for start in range(0, max(sizes), CHUNK):
    part = own[start:start + CHUNK]
    width = min(CHUNK, max(sizes) - start)
    parts.append(multihost_utils.process_allgather(
        np.pad(part, (0, width - len(part)))))
  whole = np.concatenate(parts, 1)
  return [json.loads(whole[i, :size].tobytes())
          for i, size in enumerate(sizes)]


def together(make: Callable[[], Any]) -> Any:
  """make(), whose ValueError in one process is raised in all, which ask."""
  found = error = None
  try:
    found = make()
  except ValueError as raised:
    if count() == 1:
      raise
    error = str(raised)
  for line in filter(None, gathered(error)):
    raise ValueError(line)
  return found


def alike(what: str, value: Any) -> None:
  """ValueError unless all processes, which all have to ask, give the same."""
  values = gathered(value)
  if any(x != values[0] for x in values):
    raise ValueError(f'Processes differ in {what}: '
                     f'{", ".join(map(str, values))}; give all the same '
                     'command and files.')


def parted(size: int, make: Callable[[int], Any]) -> list[Any]:
  """[make(0), ..., make(size - 1)], of which each process makes its part.

  Args:
    size: How many.
    make: Gives what JSON has.

  Raises:
    ValueError: `make` raises it somewhere, or processes differ in `size`.
  """
  own = together(lambda: [make(i) for i in range(index(), size, count())])
  if count() == 1:
    return own
  alike('number of texts', size)
  parts = gathered(own)
  return [parts[i % count()][i // count()] for i in range(size)]


def said(make: Callable[[], Any]) -> Any:
  """What `make` returns in the first process; all have to ask."""
  return gathered(make() if first() else None)[0]


def barrier(name: str) -> None:
  """Waits for all."""
  if count() > 1:
    Board('barrier')                    # the same number everywhere
    _client().wait_at_barrier(f'{name}{Board._made}', DAY)


def folder(name: str, path: str) -> pathlib.Path:
  """A folder that is made, and that all processes, which have to ask, share.

  Raises:
    ValueError: It is none, or not the same for all.
  """
  if '://' in path:
    raise ValueError(f'Got {name}={path}; allowed: a folder. Mount the bucket '
                     '(gcsfuse, say), and give where.')
  found = pathlib.Path(path).expanduser().absolute()
  found.mkdir(parents=True, exist_ok=True)
  if count() == 1:
    return found
  token = found / said(lambda: f'.{secrets.token_hex(8)}')
  if first():
    token.touch()
  barrier('folder')
  seen = gathered(token.exists())
  if first():
    token.unlink()
  if blind := [str(i) for i, sees in enumerate(seen) if not sees]:
    raise ValueError(f'{name}={path} of process {", ".join(blind)} is another '
                     'folder than that of process 0; give one on a file system '
                     'that all hosts see: NFS, or a bucket that all mounted.')
  return found


def meet() -> None:
  """Waits for all, with their devices: they go on within a moment.

  Unlike at `barrier`, each device of each process takes part in a sum.
  """
  if count() > 1:
    multihost_utils.sync_global_devices('meet')


def ending(step: int) -> bool:
  """Whether all processes are to stop at this step, since one got SIGTERM.

  To be asked before every step, by all.
  """
  return count() > 1 and multihost_utils.reached_preemption_sync_point(step)


def finish() -> None:
  """Waits until all are done."""
  barrier('finish')


def leave(code: int) -> None:
  """Ends this process; the others end when they notice."""
  if count() == 1:
    sys.exit(code)
  sys.stdout.flush()
  sys.stderr.flush()
  if first():
    time.sleep(GRACE)
  os._exit(code)                        # exit would wait for the others


def cut_off(error: BaseException) -> str | None:
  """A line on an error that the death of another process explains, if any."""
  text = ' '.join(str(error).split())
  if (count() == 1 or not isinstance(error, jax.errors.JaxRuntimeError)
      or not any(word in text.lower() for word in CUT_OFF)):
    return None
  return (f'process {index()} of {count()} stops: another is gone, or the '
          f'network is ({text[:120]}). The same command goes on.')
