"""Decodes units of a sweep's work, in whichever process and on any machine."""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

COLLECT_EVERY = 100           # timed decodes between garbage collections


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


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came of some decodes, or of a compilation.

  Attributes:
    records: Of decodes that are done.
    failed: By key, the error of points to leave out from now on.
    compiled: The journal's note on a program, if one was compiled.
    late: Programs that were compiled while the clock ran.
    seconds: What it took, from the call to the synchronised device.
  """
  records: Sequence[results.Record] = ()
  failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  compiled: Mapping[str, Any] | None = None
  late: int = 0
  seconds: float = 0.


class Decoder:
  """Holds the compiled programs of a job; a point that fails spares others."""

  def __init__(self, job: Job):
    """Puts prompts' keys on the device; compiles nothing."""
    self._job = job
    self._programs = programs_lib.Programs(job.pair, job.curves, eos=job.eos)
    self._prompts = programs_lib.Prompts(job.rows, job.buckets, job.seed,
                                         job.pair.prompt, job.pair.verifier.lm)
    self._count = 0

  def prepare(self, decodes: Iterable[work.Decode],
              say: Callable[[str], None] = lambda what: None
              ) -> Iterator[Outcome]:
    """Compiles and warms up each program that decodes need, once.

    Args:
      decodes: All that this process may be asked for.
      say: Is told what is being compiled.
    """
    users, failed = collections.defaultdict(list), set()
    plan = self._job.plan
    for key, example, trial in decodes:
      size = plan.timed_batch if trial in plan.clocked else plan.batch
      name = self._programs.name(self._job.points[key])
      users[name, self._prompts.buckets[example], size].append((key, example))
    keys = {key for some in users.values() for key, _ in some}
    self._programs.prepare(self._job.points[key] for key in keys)
    for (name, bucket, size), some in users.items():
      some = [user for user in some if user[0] not in failed]
      if some:
        say(f'compiling {name}')
        yield (out := self._compiled(str(name), bucket, size, some))
        failed.update(out.failed)
    for group in work.grouped(self._prompts.buckets[:plan.timed],
                              plan.timed_batch):
      self._prompts(*group, size=plan.timed_batch)   # the clock must not see it

  def decode(self, unit: work.Unit) -> Iterator[Outcome]:
    """Outcomes of a unit, as they come; call it in `timing.quiet`."""
    return (self._timed if unit.timed else self._batched)(unit.decodes)

  def _compiled(self, name, bucket, size, users) -> Outcome:
    key, example = users[0]
    prompt = self._prompts(example, size=size)
    with _excused(*dict.fromkeys(key for key, _ in users)) as failed:
      seconds, log = timing.timed(self._programs.compile,
                                  self._job.points[key], *prompt)
      return Outcome(compiled=dict(
          program=name, programs=log.programs, rows=size,
          bucket=[bucket.width, bucket.max_length], seconds=log.seconds),
                     seconds=seconds)
    return Outcome(failed=failed)

  def _batched(self, decodes) -> Iterator[Outcome]:
    key, examples = decodes[0][0], [example for _, example, _ in decodes]
    prompt = self._prompts(*examples, size=self._job.plan.batch)
    seconds, outputs = 0., []
    with _excused(key) as failed:
      seconds, state = timing.timed(
          self._programs.call, self._job.points[key], *prompt)
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
      with _excused(key) as failed:
        seconds, state = timing.timed(
            self._programs.call, self._job.points[key], *prompt)
        outputs = programs_lib.outputs_of(
            state, [self._job.starts[example] for _, example, _ in some])
      # Where rows are missing copies take their place, and their time.
      yield Outcome(_records(some, seconds / size, outputs), failed,
                    seconds=seconds)


def _records(decodes, seconds, outputs) -> list[results.Record]:
  return [results.Record(key, example, seconds, *output, trial=trial)
          for (key, example, trial), output in zip(decodes, outputs)]


@contextlib.contextmanager
def _excused(*keys: str) -> Iterator[dict[str, str]]:
  """An error fails these points, and nothing else."""
  failed = {}
  try:
    yield failed
  except Exception as error:  # pylint: disable=broad-exception-caught
    line = f'{type(error).__name__}: {error}'.split('\n')[0]
    failed.update(dict.fromkeys(keys, line))
