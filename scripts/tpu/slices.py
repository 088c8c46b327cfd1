"""TPU slices by gcloud: made, asked, spoken to host by host, and given back.

Functions return or print commands; `Gcloud` runs them, or only prints them.
"""
from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
import threading
import time
from typing import Callable, Sequence

# By the beginning of a type: by how many it counts a chip, and chips of a host.
# A slice of 8 chips or fewer whose host has as many is one host.
KINDS = {'v2': (2, 4, 4), 'v3': (2, 4, 4), 'v4': (2, 4, 4), 'v5p': (2, 4, 4),
         'v5litepod': (1, 4, 8), 'v6e': (1, 4, 8)}
# Chips of the slices that there are; v4 and v5p: of a part of a cube, or cubes.
FLAT = (1, 4, 8, 16, 32, 64, 128, 256)
SIZES = {'v2': (4, 16, 64, 128, 256),
         'v3': (4, 16, 32, 64, 128, 256, 512, 1024),
         'v4': (4, 8, 16, 32, *range(64, 2049, 64)),
         'v5p': (4, 8, 16, 32, *range(64, 6145, 64)),
         'v5litepod': FLAT, 'v6e': FLAT}
# Runtimes of https://cloud.google.com/tpu/docs/runtimes for JAX.
RUNTIMES = {'v2': 'tpu-ubuntu2204-base', 'v3': 'tpu-ubuntu2204-base',
            'v4': 'tpu-ubuntu2204-base', 'v5p': 'v2-alpha-tpuv5',
            'v5litepod': 'v2-alpha-tpuv5-lite', 'v6e': 'v2-alpha-tpuv6e'}
ACTIVE, MISSING = 'ACTIVE', 'MISSING'
GONE = ('FAILED', 'SUSPENDED', MISSING)     # and may be asked for again
LOST = ('SUSPENDING', 'DELETING', *GONE)
STATES = (ACTIVE, 'CREATING', 'ACCEPTED', 'PROVISIONING',
          'WAITING_FOR_RESOURCES', *LOST[:-1])
RETRIED = 5         # failures in a row that may pass, or starts without a text
QUEUED = ['compute', 'tpus', 'queued-resources']
NODE = ['compute', 'tpus', 'tpu-vm']
# So that a connection which is no more is known after two minutes.
ALIVE = '-oServerAliveInterval=30', '-oServerAliveCountMax=4'
# How gcloud says that a command on a host has failed, and that a connection was
# lost, before it tries again.
RETURNED = re.compile(r'exited with return code \[(-?\d+)\]')


@dataclasses.dataclass(frozen=True)
class Slice:
  """One slice, by the name that its queued resource and its node share.

  Attributes:
    name: Lower-case letters, digits and dashes.
    project: Of Google Cloud.
    zone: Such as us-west4-a.
    kind: Accelerator type, such as v5litepod-16.
    runtime: Of the virtual machines; None: that of the type.
    spot: Whether it may be taken away at any time, for less money.
  """
  name: str
  project: str
  zone: str
  kind: str
  runtime: str | None = None
  spot: bool = False

  def __post_init__(self):
    if not re.fullmatch(r'[a-z][a-z0-9-]{0,50}', self.name):
      raise ValueError(f'Got --name {self.name!r}; allowed: lower-case '
                       'letters, digits and dashes, a letter first.')
    for name, value in (('project', self.project), ('zone', self.zone)):
      if not re.fullmatch(r'\w[\w.:-]*', value):
        raise ValueError(f'Got --{name} {value!r}; allowed: what Google Cloud '
                         'calls it.')
    if self.family not in KINDS:
      raise ValueError(f'Got --type {self.kind!r}; allowed: '
                       f'{", ".join(KINDS)}, a dash and a number.')
    known = [f'{self.family}-{KINDS[self.family][0] * chips}'
             for chips in SIZES[self.family]]
    if self.kind not in known:
      more = f', ... {known[-1]}' if known[8:] else ''
      raise ValueError(f'Got --type {self.kind!r}; allowed: '
                       f'{", ".join(known[:8])}{more}.')

  @property
  def family(self) -> str:
    return self.kind.rpartition('-')[0]

  @property
  def chips(self) -> int:
    """In all."""
    return int(self.kind.rpartition('-')[2]) // KINDS[self.family][0]

  @property
  def devices(self) -> int:
    """As JAX counts them: the two cores of a v2's or v3's chip are two."""
    return self.chips * (2 if self.family in ('v2', 'v3') else 1)

  @property
  def hosts(self) -> int:
    """Virtual machines."""
    _, usual, most = KINDS[self.family]
    return 1 if self.chips <= most else -(-self.chips // usual)

  @property
  def place(self) -> list[str]:
    return [f'--project={self.project}', f'--zone={self.zone}']

  def create(self) -> list[str]:
    """Asks for it; it waits in a queue for free chips."""
    runtime = self.runtime or RUNTIMES[self.family]
    return [*QUEUED, 'create', self.name, f'--node-id={self.name}',
            f'--accelerator-type={self.kind}', f'--runtime-version={runtime}',
            *['--spot'] * self.spot, *self.place]

  def describe(self) -> list[str]:
    return [*QUEUED, 'describe', self.name, *self.place,
            '--format=value(state.state)']

  def addresses(self) -> list[str]:
    return [*NODE, 'describe', self.name, *self.place,
            '--format=value(networkEndpoints[].ipAddress)']

  def delete(self) -> list[str]:
    """Gives it back, with its node."""
    return [*QUEUED, 'delete', self.name, *self.place, '--force', '--quiet']

  def on_host(self, host: int, command: str) -> list[str]:
    """Runs a shell command there."""
    return [*NODE, 'ssh', self.name, *self.place, f'--worker={host}', '--quiet',
            *(f'--ssh-flag={x}' for x in ALIVE), f'--command={command}']

  def copy(self, source: str, target: str, host: int | str) -> list[str]:
    """Copies files; HOST: begins what is there."""
    there = lambda path: (f'{self.name}:{path.removeprefix("HOST:")}'
                          if path.startswith('HOST:') else path)
    return [*NODE, 'scp', there(source), there(target), *self.place,
            f'--worker={host}', *(f'--scp-flag={x}' for x in ALIVE),
            '--recurse', '--quiet']


@dataclasses.dataclass
class Ended:
  """What came of a command on a host: its exit code and its last lines."""
  where: str
  code: int
  lines: list[str]

  @classmethod
  def of(cls, where: str, code: int, lines: list[str]) -> Ended:
    """With the exit code of the host, where gcloud only speaks of it."""
    told = RETURNED.findall('\n'.join(lines)) if code == 1 else []
    return cls(where, int(told[-1]) if told else code, lines)

  def __str__(self) -> str:
    lines = [x for x in self.lines if x.strip()]
    own = [x for x in lines if not RETURNED.search(x)]
    said = (own or lines or ['no output'])[-1]
    return f'{self.where}: exit {self.code}: {said.strip()}'


def report(found: Sequence[Ended], what: str) -> None:
  """ValueError with a part for each host that failed, if any did."""
  failed = [x for x in found if x.code]
  if failed:
    raise ValueError(f'{what} failed on {len(failed)} of {len(found)} hosts: '
                     f'{"; ".join(map(str, failed))}')


class Gcloud:
  """Runs gcloud; with `dry_run` prints what it would run, and runs nothing."""

  def __init__(self, dry_run: bool = False,
               say: Callable[[str], None] = print):
    self.dry_run, self.say = dry_run, say

  def __call__(self, args: Sequence[str], program: str = 'gcloud') -> Ended:
    """One command, to its end."""
    ended, = self.together({'': args}, program, quiet=True)
    return ended

  def together(self, commands: dict[str, Sequence[str]],
               program: str = 'gcloud', *, quiet: bool = False,
               going: Callable[[], bool] = lambda: True,
               every: float = .2) -> list[Ended]:
    """Commands at the same time, by what their lines are headed with.

    Args:
      commands: Arguments by name.
      program: What is called.
      quiet: Show no line.
      going: Is asked `every` so many seconds; once False, all are ended.
      every: Seconds.
    """
    if self.dry_run:
      for args in commands.values():
        self.say(shlex.join([program, *args]))
      return [Ended(name, 0, []) for name in commands]
    running = [self._start(name, [program, *args], quiet)
               for name, args in commands.items()]
    asked = time.monotonic()
    try:
      while any(process.poll() is None for process, *_ in running):
        time.sleep(.05)
        if time.monotonic() > asked + every:
          asked = time.monotonic()
          if not going():
            break
    finally:                           # none is left, however this ends
      for process, *_ in running:
        process.terminate()
    for process, reader, _ in running:
      process.wait()
      reader.join(5)
    return [Ended.of(ended.where, process.returncode, ended.lines)
            for process, _, ended in running]

  def _start(self, name, command, quiet):
    try:
      process = subprocess.Popen(
          command, text=True, stdin=subprocess.DEVNULL, errors='replace',
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except FileNotFoundError:
      raise ValueError(
          f'{command[0]} is not on the path; install it '
          '(https://cloud.google.com/sdk/docs/install), or give --dry_run.'
      ) from None
    ended = Ended(name, 0, [])

    def read():
      for line in process.stdout:
        ended.lines = [*ended.lines[-49:], line.rstrip('\n')]
        if not quiet:
          print(f'{name}: {line}', end='', file=sys.stderr, flush=True)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return process, reader, ended

  def done(self, args: Sequence[str], program: str = 'gcloud') -> str:
    """The output of a command that must succeed; ValueError if it doesn't."""
    ended = self(args, program)
    if ended.code:
      raise ValueError(f'{shlex.join([program, *args[:5]])} ... failed: exit '
                       f'{ended.code}: {" ".join(ended.lines[-3:])[:300]}')
    return '\n'.join(ended.lines)


def state(gcloud: Gcloud, one: Slice) -> str:
  """Of a slice's queued resource; MISSING if there is none.

  Raises:
    ValueError: gcloud failed, or says none of STATES on a line of its own.
  """
  ended = gcloud(one.describe())
  text = ' '.join(ended.lines)
  if ended.code and re.search(r'not.?found', text, re.IGNORECASE):
    return MISSING
  if gcloud.dry_run:
    return ACTIVE
  found = [x.strip() for x in ended.lines if x.strip() in STATES]
  if ended.code or not found:
    raise ValueError(f'The state of {one.name} is not known: {text[:300]}')
  return found[-1]


def address(gcloud: Gcloud, one: Slice) -> str:
  """Of a slice's first host, whatever else is said; ValueError if none is."""
  said = gcloud.done(one.addresses())
  found = re.findall(r'(?<![\d.])\d+(?:\.\d+){3}(?![\d.])', said)
  if not (found or gcloud.dry_run):
    raise ValueError(f'The address of {one.name} is not known: {said[:300]}')
  return found[0] if found else 'ADDRESS'


def remind(gcloud: Gcloud, some: Sequence[Slice]) -> None:
  """Says what still may cost money, and how to give it back."""
  if not gcloud.dry_run:
    gcloud.say('# What was asked for costs money until given back:')
    for one in some:
      gcloud.say(shlex.join(['gcloud', *one.delete()]))


def say_what_a_loss_takes(gcloud: Gcloud, some: Sequence[Slice],
                          results: str) -> None:
  """Comments with what is run when slices are taken away.

  Args:
    gcloud: Who says it.
    some: All slices.
    results: What the first host gets back, in its set-up.
  """
  gcloud.say('# A slice that is taken away, before its set-up:')
  calls = [args for one in some for args in (one.delete(), one.create())]
  back = some[0].copy(results, 'HOST:.', 0)
  for args in calls:
    gcloud.say(f'# {shlex.join(["gcloud", *args])}')
  gcloud.say('# and in the set-up of the first one, behind the sources:')
  gcloud.say(f'# {shlex.join(["gcloud", *back])}')
