"""A trace of the device for TensorBoard or xprof, and what is in it in words.

The engine names its parts (`jax.named_scope`), and the compiler passes the
names on to the operations that it makes of them. One that it made of several
parts, a fusion, counts for the part that its last operation comes from; one
that lost its name, as matrix products do on a CPU, for that of what it calls,
takes, gives or is called by. A TPU's trace has the names itself.
"""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import pathlib
import re
from typing import Any, Callable, Iterator, Mapping

import jax

PARTS = ('prompts', 'drafting', 'verification', 'sampling', 'cache_writes')
CACHE, OTHER = PARTS[-1], 'other'
# They last as long as what is inside them, which has events of its own.
OUTER = ('while', 'conditional', 'call')
# Fields of XSpace, XPlane, XLine, XEvent, XEventMetadata, XStatMetadata, XStat,
# HloProto, HloModuleProto, HloComputationProto, HloInstructionProto and
# OpMetadata that are read here:
# https://github.com/openxla/xla, third_party/tsl/tsl/profiler/protobuf/
# xplane.proto and xla/service/hlo.proto
PLANE, NAME, LINES, EVENTS, STATS, STRING, BYTES, REF = 1, 2, 3, 4, 5, 5, 6, 7
ABOUT, DURATION, KEY, VALUE = 1, 3, 1, 2
MODULE, ID, COMPUTATION, INSTRUCTION, METADATA = 1, 5, 3, 2, 7
NUMBER, OPERANDS, CALLED = 35, 36, 38
METADATA_PLANE = '/host:metadata'
TPU_PLANE, TPU_LINE = '/device:TPU:', 'XLA Ops'


@contextlib.contextmanager
def traced(directory: str | None,
           show: Callable[[str], None] = print) -> Iterator[None]:
  """Writes what the device does meanwhile to a directory, then says it.

  Args:
    directory: Gets plugins/profile/TIME/HOST.xplane.pb; None does nothing.
    show: Receives the lines of `summary`.

  Raises:
    ValueError: The directory can't be written to.
  """
  if directory is None:
    yield
    return
  folder = writable(directory)
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0         # its events would be most of the file
  with jax.profiler.trace(folder, profiler_options=options):
    yield
  path = newest(folder)
  for line in summary(seconds(path)):
    show(line)
  show(f'{path}: open with xprof --logdir={directory}')


def writable(directory: str) -> pathlib.Path:
  """A directory for traces, made; ValueError if it can't be written to."""
  folder = pathlib.Path(directory).expanduser()
  try:
    (folder / 'plugins' / 'profile').mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f'No trace can be written to {directory} ({error}); give '
                     'another directory.') from None
  return folder


def newest(folder: pathlib.Path) -> pathlib.Path:
  """The last trace of a directory; ValueError if there is none."""
  found = sorted(folder.glob('plugins/profile/*/*.xplane.pb'),
                 key=lambda path: path.stat().st_mtime)
  if not found:
    raise ValueError(f'No trace under {folder}; make one with --profile.')
  return found[-1]


def seconds(path: pathlib.Path) -> dict[str, float]:
  """By part, the time of all operations on all devices.

  Where operations run side by side, on the threads of a CPU, each counts.
  """
  names, spent = instructions(path), collections.Counter()
  for opcode, scope, picoseconds in _on_tpus(path):
    if opcode not in OUTER:
      spent[part_of(scope)] += picoseconds / 1e12
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    if plane.name.startswith(TPU_PLANE):
      continue
    for line in plane.lines:
      for event in line.events:
        stats = dict(event.stats)
        if 'hlo_op' in stats and not event.name.startswith('end: '):
          known = names.get(int(stats.get('program_id', -1)), {})
          opcode, scope = known.get(stats['hlo_op'], ('', ''))
          if opcode not in OUTER:
            spent[part_of(stats.get('tf_op', scope))] += event.duration_ns / 1e9
  return dict(spent)


def _on_tpus(path: pathlib.Path) -> Iterator[tuple[str, str, int]]:
  """Opcode, scope and picoseconds of each operation of TPUs.

  What an operation's events share stands in their metadata on these planes;
  ProfileData shows only what is an event's own.
  """
  for plane in _all(path.read_bytes(), PLANE):
    if not _name(plane).startswith(TPU_PLANE):
      continue
    names = {key: _name(x) for key, x in _entries(plane, STATS)}
    known = {key: (opcode_of(_name(x)), _texts(x, names).get('tf_op', ''))
             for key, x in _entries(plane, EVENTS)}
    for line in _all(plane, LINES):
      for event in _all(line, EVENTS) if _name(line) == TPU_LINE else ():
        yield (*known.get(_first(event, ABOUT), ('', '')),
               _first(event, DURATION))


def opcode_of(text: str) -> str:
  """'%body.5 = (s32[], f32[2]) while(%x)' or '%while.5' -> 'while'."""
  found = re.search(r' ([a-z][a-z0-9-]*)\(', text) or re.match(
      r'%?([a-z-]*)', text)
  return found[1]


def _texts(event: bytes, names: Mapping[int, str]) -> dict[str, str]:
  """Of an event's metadata, the statistics that are text, by name."""
  found = {}
  for stat in _all(event, STATS):
    texts = [x.decode() for x in _all(stat, STRING)]
    texts += [names.get(x, '') for x in _all(stat, REF)]
    found[names.get(_first(stat, ABOUT), '')] = ''.join(texts)
  return found


def part_of(scope: str) -> str:
  """'jit(run)/while/body/drafting/mlp/dot' -> 'drafting'; the innermost."""
  found = [name for name in scope.replace(':', '/').split('/')
           if name in PARTS]
  return found[-1] if found else OTHER


def summary(spent: Mapping[str, float]) -> list[str]:
  """A line for each part; one line if nothing was recorded."""
  total = sum(spent.values())
  if not total:
    return ['The trace has no operation of a device.']
  lines = [f'{"part":<14}{"ms":>10}{"share":>8}']
  for name in (*PARTS, OTHER):
    ms, share = 1e3 * spent.get(name, 0), 100 * spent.get(name, 0) / total
    lines.append(f'{name.replace("_", " "):<14}{ms:>10.2f}{share:>7.1f}%')
  return lines


def instructions(path: pathlib.Path) -> dict[int, dict[str, tuple[str, str]]]:
  """By program and instruction, opcode and scope, from a trace's metadata."""
  found = {}
  for plane in _all(path.read_bytes(), PLANE):
    if _name(plane) != METADATA_PLANE:
      continue
    for _, metadata in _entries(plane, EVENTS):
      for stat in _all(metadata, STATS):
        for proto in _all(stat, BYTES):
          module, = _all(proto, MODULE)
          found[_first(module, ID)] = _of_module(module)
  return found


@dataclasses.dataclass
class _Instruction:
  """One of a program; others are referred to by their numbers."""
  name: str
  opcode: str
  scope: str
  operands: list[int]
  called: list[int]
  near: list[int] = dataclasses.field(default_factory=list)


def _of_module(module: bytes) -> dict[str, tuple[str, str]]:
  found, computations = {}, {}
  for computation in _all(module, COMPUTATION):
    inside = computations[_all(computation, ID)[0]] = []
    for x in _all(computation, INSTRUCTION):
      name, opcode = (_all(x, i)[0].decode() for i in (1, 2))
      scope = [y.decode() for some in _all(x, METADATA) for y in _all(some, 2)]
      number = _all(x, NUMBER)[0]
      inside.append(number)
      found[number] = _Instruction(name, opcode, (scope or [''])[0],
                                   _numbers(x, OPERANDS), _numbers(x, CALLED))
  _name_the_nameless(found, computations)
  return {x.name: (x.opcode, x.scope) for x in found.values()}


def _name_the_nameless(found: dict[int, _Instruction],
                       computations: Mapping[int, list[int]]) -> None:
  """Gives instructions without a scope one of those nearest to them."""
  nameless = [x for x in found.values() if not x.scope]
  inside = lambda x: [i for c in x.called for i in computations[c][::-1]]
  for x in nameless:
    x.near = [*inside(x), *x.operands]
  for number, x in found.items():
    for i in x.operands:
      found[i].near.append(number)
  for number, x in found.items():
    for i in inside(x):
      found[i].near.append(number)
  # What is near may be without a name, too, and get one first.
  left = None
  while left != len(nameless):
    left = len(nameless)
    for x in nameless:
      scopes = [found[i].scope for i in x.near
                if part_of(found[i].scope) != OTHER]
      # A cache is near to what reads it, which is no part of writing it.
      scopes.sort(key=lambda y: part_of(y) == CACHE)
      x.scope = next(iter(scopes), '')
    nameless = [x for x in nameless if not x.scope]


def _name(message: bytes) -> str:
  return b''.join(_all(message, NAME)).decode()


def _first(message: bytes, number: int) -> int:
  """Value of an integer field; 0 is not written."""
  return (_all(message, number) or [0])[0]


def _entries(message: bytes, number: int) -> list[tuple[int, bytes]]:
  """Keys and values of a map."""
  return [(_first(x, KEY), value) for x in _all(message, number)
          for value in _all(x, VALUE)]


def _numbers(message: bytes, number: int) -> list[int]:
  """Integers of a repeated field, packed or not."""
  out = []
  for value in _all(message, number):
    if isinstance(value, int):
      out.append(value)
      continue
    at = 0
    while at < len(value):
      one, at = _varint(value, at)
      out.append(one)
  return out


def _all(message: bytes, number: int) -> list[Any]:
  """All values of a field in a message of protocol buffers.

  Reference: https://protobuf.dev/programming-guides/encoding/
  """
  at, found = 0, []
  while at < len(message):
    tag, at = _varint(message, at)
    kind = tag & 7
    if kind == 0:
      value, at = _varint(message, at)
    else:
      size = {1: 8, 5: 4}.get(kind)
      if size is None:
        size, at = _varint(message, at)
      value, at = message[at:at + size], at + size
    if tag >> 3 == number:
      found.append(value)
  return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte, at = message[at], at + 1
    value |= (byte & 127) << shift
    shift += 7
    if byte < 128:
      return value, at
