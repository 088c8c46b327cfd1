"""Decodes units of a sweep's work, in whichever process and on any machine."""
from __future__ import annotations

import collections
from concurrent import futures
import contextlib
import dataclasses
import functools
import itertools
import os
import time
from typing import (
    Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence)
import weakref

import jax

from spec_cascades import hosts
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

COLLECT_EVERY = 100           # timed decodes between garbage collections
# XLA has threads of its own for each program: on two cores one at a time is as
# fast as two.
THREADS = max(1, min(8, (os.cpu_count() or 1) // 4))


@dataclasses.dataclass(frozen=True)
class Job:
  """All of a sweep that decoding needs.

  Attributes:
    pair: The models.
    curves: Their rules share programs.
    points: By content key.
    rows: Tokens of each example.
    starts: Where its output begins.
    buckets: To choose from.
    plan: How often what is decoded.
    seed: Of the rows' keys.
    eos: Tokens that end an output.
    mesh: For workers who get the models on one device: where they belong.
  """
  pair: pairs.Pair
  curves: Sequence[points_lib.Curve]
  points: Mapping[str, points_lib.Point]
  rows: Sequence[Sequence[int]]
  starts: Sequence[int]
  buckets: Sequence[programs_lib.Bucket]
  plan: work.Plan
  seed: int
  eos: tuple[int, ...]
  mesh: meshes.Mesh = meshes.Mesh()

  @property
  def spans(self) -> bool:
    """Whether the models lie on one mesh of all processes."""
    return meshes.spans(self.pair.verifier.lm)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came of some decodes, or of a compilation.

  Attributes:
    records: Of decodes that are done.
    failed: By key, the error of points to leave out from now on.
    compiled: The journal's note on a program, if one was compiled.
    late: Programs that were compiled while the clock ran.
    seconds: What it took, from the call to the synchronised device; of a batch
      that nobody times with what was done meanwhile, should that take longer.
    begun: Nothing yet: a program is being compiled, or the device is at work on
      a batch that nobody times. Who takes this may do something else meanwhile.
  """
  records: Sequence[results.Record] = ()
  failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  compiled: Mapping[str, Any] | None = None
  late: int = 0
  seconds: float = 0.
  begun: bool = False


class _Case(NamedTuple):
  """What programs are compiled for."""
  name: programs_lib.Name
  bucket: programs_lib.Bucket
  size: int


class _Coming(NamedTuple):
  """A program that is being compiled: for which points, and how it is called.

  Where nobody times it, it need not be warmed up.
  """
  keys: tuple[str, ...]
  call: tuple[Any, ...]
  timed: bool
  log: futures.Future[timing.CompileLog]


class _Refused(Exception):
  """An error that all processes know of, before anything has run."""


class _Later(futures.Future):
  """What comes of a call that all processes make when it is asked for."""

  def __init__(self, function: Callable[..., Any], *args: Any):
    super().__init__()
    self._call = functools.partial(function, *args)

  def result(self, timeout: float | None = None) -> Any:
    """What the call returns here; raises _Refused if it fails anywhere."""
    del timeout
    found = line = None
    try:
      found = self._call()
    except Exception as error:  # pylint: disable=broad-exception-caught
      line = _line(error)
    lines = hosts.gathered(line)
    for i, other in enumerate(lines):
      if other:
        raise _Refused(other if all(lines) else f'process {i}: {other}')
    return found


class Decoder:
  """Holds the compiled programs of a job; a point that fails spares others.

  Programs are compiled in threads beside whatever is decoded meanwhile, but all
  are there before the clock runs.

  On a mesh of several processes each of them has one, which is asked for the
  same in the same order. There nothing is compiled beside, and an error is
  raised, since the others may wait in an exchange, unless all know of it before
  anything runs.
  """

  def __init__(self, job: Job):
    """Puts prompts' keys on the device; compiles nothing."""
    self._job = job
    self._programs = programs_lib.Programs(job.pair, job.curves, eos=job.eos)
    self._prompts = programs_lib.Prompts(job.rows, job.buckets, job.seed,
                                         job.pair.prompt, job.pair.verifier.lm)
    self._spans = job.spans
    self._count = 0
    self._say = lambda what: None
    self._failed: set[str] = set()
    self._waiting: dict[_Case, _Coming] = {}       # for their first use
    self._pool = futures.ThreadPoolExecutor(THREADS)
    # Who gives up the sweep does not wait for what is not compiled yet.
    weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

  def prepare(self, decodes: Iterable[work.Decode],
              say: Callable[[str], None] = lambda what: None
              ) -> Iterator[Outcome]:
    """Has each program that decodes need compiled, once; if timed, warmed up.

    Those of decodes that nobody times are waited for in `decode`, where others
    may be done meanwhile; one of them that can't run fails its points one by
    one.

    Args:
      decodes: All that this process may be asked for.
      say: Is told what is waited for, and when the wait is over.
    """
    self._say, plan = say, self._job.plan
    users = collections.defaultdict(list)
    for decode in decodes:
      users[self._case(decode)].append(decode)
    keys = {key for some in users.values() for key, _, _ in some}
    self._programs.prepare(self._job.points[key] for key in keys)
    for case, some in users.items():
      key, example, _ = some[0]
      call = self._job.points[key], *self._prompts(example, size=case.size)
      self._waiting[case] = _Coming(
          tuple(dict.fromkeys(key for key, _, _ in some)), call,
          any(trial in plan.clocked for _, _, trial in some),
          (_Later if self._spans else self._pool.submit)(
              self._programs.ahead, *call))
    if self._spans or not plan.staged:
      yield from self._ready(list(self._waiting))
    for group in work.grouped(self._prompts.buckets[:plan.timed],
                              plan.timed_batch):
      self._prompts(*group, size=plan.timed_batch)   # the clock must not see it
    if self._spans:
      hosts.meet()                                   # nor this, which compiles

  def decode(self, unit: work.Unit) -> Iterator[Outcome]:
    """Outcomes of a unit, as they come; call it in `timing.quiet`."""
    # Nothing may be compiled beside the clock.
    yield from self._ready(list(self._waiting) if unit.timed else
                           dict.fromkeys(map(self._case, unit.decodes)))
    if left := [d for d in unit.decodes if d[0] not in self._failed]:
      yield from (self._timed if unit.timed else self._batched)(left)

  def _case(self, decode: work.Decode) -> _Case:
    key, example, trial = decode
    plan = self._job.plan
    return _Case(self._programs.name(self._job.points[key]),
                 self._prompts.buckets[example],
                 plan.timed_batch if trial in plan.clocked else plan.batch)

  def _ready(self, cases: Iterable[_Case]) -> Iterator[Outcome]:
    """Waits for programs that have not been waited for yet."""
    some = [case for case in cases if case in self._waiting]
    for case in some:
      coming = self._waiting.pop(case)
      if self._failed.issuperset(coming.keys):
        if not coming.log.cancel():        # it must not go on beside the clock
          futures.wait([coming.log])
        continue
      self._say(f'compiling {case.name}')
      if not coming.log.done():
        yield Outcome(begun=True)
      yield (out := self._compiled(case, coming))
      self._failed.update(out.failed)
    if some:
      timing.collect()
      self._say('decoding')

  def _compiled(self, case, coming) -> Outcome:
    def run():
      log = coming.log.result()
      return log + self._programs.compile(*coming.call) if coming.timed else log

    with self._excused(*coming.keys) as failed:
      seconds, log = timing.timed(run)
      return Outcome(compiled=dict(
          program=str(case.name), programs=log.programs, rows=case.size,
          bucket=[case.bucket.width, case.bucket.max_length],
          seconds=log.seconds), seconds=seconds)
    return Outcome(failed=failed)

  def _batched(self, decodes) -> Iterator[Outcome]:
    key, examples = decodes[0][0], [example for _, example, _ in decodes]
    prompt = self._prompts(*examples, size=self._job.plan.batch)
    seconds, outputs = 0., []
    with self._excused(key) as failed:
      start = time.perf_counter()
      state = self._programs.call(self._job.points[key], *prompt)
      yield Outcome(begun=True)
      jax.block_until_ready(state)
      seconds = time.perf_counter() - start
      outputs = programs_lib.outputs_of(
          state, [self._job.starts[example] for example in examples])
    yield Outcome(_records(decodes, None, outputs), failed, seconds=seconds)

  def _timed(self, decodes) -> Iterator[Outcome]:
    size = self._job.plan.timed_batch
    for key, some in itertools.groupby(decodes, lambda decode: decode[0]):
      some = list(some)
      prompt = self._prompts(*(example for _, example, _ in some), size=size)
      self._count += 1
      if self._count % COLLECT_EVERY == 0:
        timing.collect()
      seconds, outputs = 0., []
      with self._excused(key) as failed:
        if self._spans:
          hosts.meet()
        seconds, state = timing.timed(
            self._programs.call, self._job.points[key], *prompt)
        outputs = programs_lib.outputs_of(
            state, [self._job.starts[example] for _, example, _ in some])
      # Where rows are missing copies take their place, and their time.
      yield Outcome(_records(some, seconds / size, outputs), failed,
                    seconds=seconds)

  @contextlib.contextmanager
  def _excused(self, *keys: str) -> Iterator[dict[str, str]]:
    """An error fails these points, and nothing else.

    On a mesh of several processes one in the middle is raised.
    """
    failed = {}
    try:
      yield failed
    except Exception as error:  # pylint: disable=broad-exception-caught
      if self._spans and not isinstance(error, _Refused):
        raise
      failed.update(dict.fromkeys(keys, _line(error)))


def _line(error: Exception) -> str:
  if isinstance(error, _Refused):
    return str(error)
  return f'{type(error).__name__}: {error}'.split('\n')[0]


def _records(decodes, seconds, outputs) -> list[results.Record]:
  return [results.Record(key, example, seconds, *output, trial=trial)
          for (key, example, trial), output in zip(decodes, outputs)]
