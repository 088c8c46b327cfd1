"""What a compiled program does, read from its HLO text.

Of a program for several devices all figures are one device's.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from typing import Any, Iterable, Iterator, Mapping

from spec_cascades.evaluation import groups

COLLECTIVES = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
               'ragged-all-to-all', 'collective-permute',
               'collective-broadcast')
# Of NumPy's types, those that caches have.
NAMES = dict(float32='f32', bfloat16='bf16', float16='f16', int32='s32')
HOST = ('infeed', 'outfeed', 'send', 'recv')
# What says where arrays are, and moves nothing.
NAMING = ('parameter', 'tuple', 'get-tuple-element', 'bitcast', 'while')
# What gives operands, all or some of them, as they are but for a part.
THROUGH = {'tuple': slice(None), 'bitcast': slice(1), 'select': slice(1, 3),
           'dynamic-update-slice': slice(1), 'scatter': slice(1)}
CALLBACK = re.compile(r'custom_call_target="[^"]*(callback|host)[^"]*"', re.I)
_HEAD = re.compile(r'^(ENTRY\s+)?%?([\w.\-]+) .*->.*\{\s*$')
_LINE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_OPCODE = re.compile(r' *([a-z][\w\-]*)\(')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_COMMENT = re.compile(r'/\*.*?\*/')
_CALLED = re.compile(r'(?:calls|to_apply|body|condition|true_computation|'
                     r'false_computation|branch_computations|'
                     r'called_computations)=(\{[^}]*\}|%?[\w.\-]+)')
_ARRAY = re.compile(r'\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]')
_COUNTS = re.compile(r'\b(?:num_partitions|replica_count)=(\d+)')
_CHANNEL = re.compile(r'\bchannel_id=\d+')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  `result` is its type, as written. What is inside a fusion is in no memory but
  for what the fusion gives: only that is `kept`.
  """
  name: str
  result: str
  opcode: str
  line: str
  kept: bool = True

  @property
  def called(self) -> list[str]:
    """Computations that it runs."""
    return [name for some in _CALLED.findall(self.line)
            for name in re.findall(r'[\w.\-]+', some)]

  @property
  def kind(self) -> str:
    """Of a collective, of both parts of an asynchronous one; else ''."""
    kind = self.opcode.removesuffix('-start')
    return kind if kind in COLLECTIVES else ''

  @property
  def group(self) -> int:
    """Devices that take part in a collective, 2 if it has them in pairs; 1 if
    the line does not say."""
    return groups.size(self.line)

  def within(self, rows: int, columns: int) -> bool:
    """Whether a collective's groups are the rows of a mesh, its last axis.

    Where there are as many rows as columns, `group` does not tell.
    """
    if self.group != columns:
      return False
    ids = sorted(groups.first(self.line))
    if not ids:
      return rows != columns           # by size alone
    return ids == list(range(ids[0], ids[0] + columns))

  @property
  def arrays(self) -> list[tuple[Any, ...]]:
    """Each array of the result, see `array`."""
    return [array(kind, map(int, filter(None, shape.split(','))))
            for kind, shape in _ARRAY.findall(_COMMENT.sub('', self.result))]

  @property
  def nbytes(self) -> int:
    """Bytes of the result; of a collective, of what it works on as a whole."""
    return sum(self.parts)

  @property
  def parts(self) -> list[int]:
    """Bytes of each array of the result.

    Of a collective of the larger side: what a gather returns, what a scatter is
    given. Several may be combined in one.
    """
    sizes = array_bytes(self.result)
    if not self.kind:
      return sizes
    scale = self.group if self.kind == 'reduce-scatter' else 1
    if self.opcode.endswith('-start'):
      # Operands, results and small marks: the results are the larger half.
      outer = _top(self.result)
      if self.kind != 'all-reduce' and len(outer) >= 2:
        sizes = array_bytes(outer[1])
    return [scale * x for x in sizes]


@dataclasses.dataclass(frozen=True)
class Program:
  """Computations by name; `entry` is the first to run."""
  computations: Mapping[str, tuple[Instruction, ...]]
  entry: str

  def reach(self, names: Iterable[str]) -> Iterator[Instruction]:
    """Instructions of these computations and of all that they run."""
    left, seen = list(names), set()
    while left:
      name = left.pop()
      if name in seen or name not in self.computations:
        continue
      seen.add(name)
      for x in self.computations[name]:
        yield x
        left += x.called

  @property
  def loops(self) -> list[Instruction]:
    """The outermost loops, in order."""
    found, left, seen = [], [self.entry], set()
    while left:
      name = left.pop(0)
      for x in self.computations.get(name, ()):
        if x.opcode == 'while':
          found.append(x)
        else:
          fresh = [y for y in x.called if y not in seen]
          seen.update(fresh)
          left += fresh
    return found

  def weighted(self, trips: int = 1) -> list[tuple[Instruction, int]]:
    """Instructions and how often they run; of a branch, each as if taken.

    Args:
      trips: Of loops that do not say how often they run.
    """
    out, left = [], [(self.entry, 1)]
    while left:
      name, times = left.pop()
      for x in self.computations.get(name, ()):
        out.append((x, times))
        known = _TRIPS.search(x.line)
        more = int(known[1]) if known else trips
        left += [(y, times * (more if x.opcode == 'while' else 1))
                 for y in x.called]
    return out

  def inside(self, loop: Instruction) -> list[Instruction]:
    """What a loop runs, its condition and inner loops included."""
    return list(self.reach(loop.called))


def parse(text: str) -> Program:
  """The computations of a program.

  Raises:
    ValueError: The text has no entry computation.
  """
  computations, entry, name = {}, '', ''
  # No groups at all are one of all devices.
  devices = math.prod(map(int, _COUNTS.findall(text.partition('\n')[0])))
  every = f'replica_groups=[1,{devices}]'
  for line in text.replace('replica_groups={}', every).splitlines():
    head = _HEAD.match(line)
    if head:
      name = head[2]
      computations[name] = []
      entry = name if head[1] else entry
    elif name and (found := _LINE.match(_COMMENT.sub('', line))):
      result, rest = _type_first(found[2])
      if opcode := _OPCODE.match(rest):
        computations[name].append(
            Instruction(found[1], result, opcode[1], line))
  if not entry:
    raise ValueError('No ENTRY computation in the text; give what '
                     'compiled.as_text() returns.')
  return Program(_kept(_once(computations)), entry)


def _kept(computations: Mapping[str, tuple[Instruction, ...]]
          ) -> dict[str, tuple[Instruction, ...]]:
  """Marks what of fusions, and of fusions in fusions, is in memory."""
  fusions = {called: (name, x.name) for name, body in computations.items()
             for x in body if x.opcode == 'fusion' for called in x.called}

  @functools.cache
  def given(name):
    """What a computation leaves in memory: all, or what its fusion gives."""
    body = {x.name: x for x in computations[name]}
    if name not in fusions:
      return frozenset(body)
    outer, caller = fusions[name]
    if caller not in given(outer):
      return frozenset()
    left = [x.name for x in body.values() if x.line.lstrip().startswith('ROOT')]
    found = set()
    while left:
      x = body.get(left.pop())
      if x is not None and x.name not in found:
        found.add(x.name)
        left += _operands(x)[THROUGH.get(x.opcode, slice(0))]
    return frozenset(found)

  return {name: tuple(dataclasses.replace(x, kept=x.name in given(name))
                      for x in body) for name, body in computations.items()}


def _operands(x: Instruction) -> list[str]:
  """Names of what it is given."""
  given = x.line.split(f' {x.opcode}(', 1)[1]
  return re.findall(r'([\w.\-]+)(?=[,)])', given.split('), ', 1)[0] + ')')


def _once(computations: Mapping[str, list[Instruction]]
          ) -> dict[str, tuple[Instruction, ...]]:
  """Marks what goes on with a collective that a TPU spreads over fusions.

  It stands in the first, which has an AsyncCollectiveStart, and again in each
  later one, on the same channel.
  """
  first = {name for name, body in computations.items()
           if any('"AsyncCollectiveStart"' in x.line for x in body)}
  channels = {c for name in first for x in computations[name] if x.kind
              for c in _CHANNEL.findall(x.line)}
  later = lambda name, x: x.kind and name not in first and channels & set(
      _CHANNEL.findall(x.line))
  return {name: tuple(
      dataclasses.replace(x, opcode=f'{x.kind}-done') if later(name, x) else x
      for x in body) for name, body in computations.items()}


def _type_first(text: str) -> tuple[str, str]:
  """A type, which may be a tuple of types, and what follows it."""
  depth = 0
  for i, x in enumerate(text):
    depth += (x in '({[') - (x in ')}]')
    if x == ' ' and depth == 0:
      return text[:i], text[i:]
  return text, ''


def array(kind: str | None, shape: Iterable[int]) -> tuple[Any, ...]:
  """A type and sizes in order of size, without 1: those of any layout of it."""
  return kind, *sorted(n for n in shape if n != 1)


def array_bytes(types: str) -> list[int]:
  """Bytes of each array in a type: 'f32[2,3], pred[]' has 24 and 1."""
  out = []
  for dtype, dims in _ARRAY.findall(types):
    bits = 8 if dtype == 'pred' else int(re.search(r'\d+', dtype)[0])
    out.append(math.ceil(
        bits * math.prod(int(n) for n in dims.split(',') if n) / 8))
  return out


def _top(types: str) -> list[str]:
  """The parts of a tuple's type: '((a, b), c)' has '(a, b)' and 'c'."""
  parts, depth, start = [], 0, 1
  for i, x in enumerate(types):
    depth += (x in '({[') - (x in ')}]')
    if (x == ',' and depth == 1) or (x == ')' and depth == 0):
      parts.append(types[start:i].strip())
      start = i + 1
  return parts


def collectives(found: Iterable[Instruction]) -> list[Instruction]:
  """Those between devices; the second part of an asynchronous one is none."""
  return [x for x in found if x.kind]


def totals(found: Iterable[Instruction]) -> dict[str, tuple[int, int]]:
  """Number and bytes of collectives by kind, each counted once."""
  out = collections.defaultdict(lambda: (0, 0))
  for x in collectives(found):
    number, nbytes = out[x.kind]
    out[x.kind] = number + 1, nbytes + x.nbytes
  return dict(out)


def host_transfers(found: Iterable[Instruction]) -> list[Instruction]:
  """What waits for the host, calls it, or works on its memory, S(5)."""
  return [x for x in found if x.opcode.removesuffix('-done') in HOST
          or (x.opcode == 'custom-call' and CALLBACK.search(x.line))
          or ('S(5)' in x.result and x.opcode not in NAMING
              and not x.opcode.endswith('-done'))]


def copies(found: Iterable[Instruction], shapes: Iterable[str]
           ) -> list[Instruction]:
  """Copies of arrays of these types, such as 'f32[4,48,2,8]'; transposes, too.

  Axes of length 1 may be missing. A transpose is known by the number of
  elements, and is none if they stay where they are. What is moved into on-chip
  memory, S(...) in a type, or out of it is no copy, nor is what a fusion turns
  over on its way to something else.
  """
  found, shapes = list(found), set(map(_long, shapes))
  types = {x.name: x.result for x in found}
  count = lambda text: {math.prod(_numbers(dims))
                        for _, dims in _ARRAY.findall(text)}
  sizes = count(' '.join(shapes))
  space = lambda text: re.search(r'S\(\d+\)|$', text)[0]
  moved = lambda x: len({space(part) for part in (
      _top(x.result)[:2] if x.opcode == 'copy-start' else
      (x.result, types.get(_operand(x), x.result)))}) > 1
  same = lambda x: any(_long(f'{a}[{b}]') in shapes
                       for a, b in _ARRAY.findall(x.result))
  return [x for x in found if x.kept and (
      (x.opcode in ('copy', 'copy-start') and same(x) and not moved(x))
      or (x.opcode == 'transpose' and count(x.result) & sizes
          and _reorders(x, types)))]


def _operand(x: Instruction) -> str:
  """The name of what a copy copies, or a transpose turns."""
  return re.search(rf'{x.opcode}\([^)]*?([\w.\-]+)\)', x.line)[1]


def _long(array: str) -> str:
  """A type without its axes of length 1: f32[1,4,8] is f32[4,8]."""
  kind, sizes = _ARRAY.search(array).groups()
  return f'{kind}[{",".join(n for n in sizes.split(",") if n != "1")}]'


def _reorders(transpose: Instruction, types: Mapping[str, str]) -> bool:
  """Whether elements move: axes longer than 1 in another order in memory.

  In:  f32[2,3]{1,0}; dimensions={1,0} and f32[3,2]{0,1}
  Out: False, as it would be True for f32[3,2]{1,0}
  """
  sizes = _numbers(_ARRAY.search(transpose.result)[2])
  axes = _numbers(re.search(r'dimensions=\{([\d,]*)\}', transpose.line)[1])
  order = lambda text: _numbers(found[1]) if (
      found := re.search(r'\]\{([\d,]+)', text)) else [*range(len(sizes))][::-1]
  long = {axis for axis, size in zip(axes, sizes) if size > 1}
  after = [axes[i] for i in order(transpose.result) if axes[i] in long]
  before = order(types.get(_operand(transpose), ''))
  return after != [i for i in before if i in long]


def _numbers(text: str) -> list[int]:
  """Of '4,48,2,8'."""
  return [int(n) for n in text.split(',') if n]


def donated(text: str) -> set[int]:
  """Numbers of the parameters whose memory an output takes over."""
  head = next((x for x in text.splitlines() if x.startswith('HloModule')), '')
  found = re.search(r'input_output_alias=\{(.*?)\}\s*,\s*[a-z_]+=', head)
  return {int(n) for n in re.findall(
      r':\s*\((\d+),', found[1] if found else '')}
