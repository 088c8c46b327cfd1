"""One process at work on a sweep: alone, or beside others on the same files."""
from __future__ import annotations

import collections
import contextlib
import gc
import time
from typing import Any, Callable

from spec_cascades.evaluation import claims as claims_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

COLLECT_EVERY = 100           # timed decodes between garbage collections
POLL = 0.5                    # seconds between looks at what others do


class Worker:
  """Decodes what is missing, unit by unit, and says so in the journal.

  A point that fails is noted with its error and left out; the others go on.

  Args:
    run: A `sweep.Run`.
    journal: Open.
    programs: Of the run's points.
    publish: Called when decodes have been added.
    progress: `tqdm` or something called like it.
  """

  def __init__(self, run: Any, journal: Any, programs: programs_lib.Programs,
               publish: Callable[[], None], progress: Callable[..., Any]):
    self._run, self._journal, self._programs = run, journal, programs
    self._publish, self._progress = publish, progress
    self._prompts = programs_lib.Prompts(
        run.rows, run.buckets, run.sweep.seed, run.pair.prompt)
    self._units = work.units(run.plan, list(run.points), self._prompts.buckets,
                             run.sweep.seed)
    self._claims = claims_lib.Claims(run.directory / run.CLAIMS)
    self._count = 0
    self.failed: dict[str, str] = {}       # error by key of a point

  def __call__(self) -> None:
    """Returns when every decode is in the journal or its point has failed."""
    total = sum(len(unit.decodes) for unit in self._units)
    try:
      with self._progress(total=total, unit='decode', desc='compiling',
                          initial=total - len(self._missing())) as bar:
        self._bar = bar
        self._compile()
        bar.set_description('decoding')
        bar.unpause()
        with timing.CompileLog() as log, timing.quiet():
          self._work()
      self._journal.note('decoded', programs=log.programs)
    finally:
      self._claims.close()

  def _open(self, unit: work.Unit) -> list[work.Decode]:
    """What of a unit is still to be done."""
    records = self._journal.records
    return [d for d in unit.decodes
            if d not in records and d[0] not in self.failed]

  def _missing(self) -> list[work.Decode]:
    return [d for unit in self._units for d in self._open(unit)]

  def _work(self) -> None:
    waiting = [i for i, unit in enumerate(self._units) if self._open(unit)]
    while waiting:
      took = [i for i in waiting if self._take(i)]
      with self._journal.locked():           # reads what others have added
        waiting = [i for i in waiting if self._open(self._units[i])]
      if waiting and not took:
        time.sleep(POLL)

  def _take(self, index: int) -> bool:
    """Does a unit, unless another process is doing it."""
    if not self._claims.take(index):
      return False
    try:
      unit = self._units[index]
      with self._journal.locked():
        left = self._open(unit)
      if left:
        (self._timed if unit.timed else self._batched)(left)
    finally:
      self._claims.release(index)
    return True

  def _batched(self, decodes: list[work.Decode]) -> None:
    key, examples = decodes[0][0], [example for _, example, _ in decodes]
    prompt = self._prompts(*examples, size=self._run.plan.batch)
    with self._excused(key):
      outputs = programs_lib.outputs_of(
          self._programs.call(self._run.points[key], *prompt),
          [self._run.starts[example] for example in examples])
    if key not in self.failed:
      self._add(decodes, None, outputs)

  def _timed(self, decodes: list[work.Decode]) -> None:
    prompt = self._prompts(decodes[0][1])
    for decode in decodes:
      self._count += 1
      if self._count % COLLECT_EVERY == 0:
        gc.collect()
      with self._excused(decode[0]):
        seconds, state = timing.timed(
            self._programs.call, self._run.points[decode[0]], *prompt)
        output = programs_lib.outputs_of(state, [self._run.starts[decode[1]]])
      if decode[0] not in self.failed:
        self._add([decode], seconds, output)

  def _add(self, decodes, seconds, outputs) -> None:
    self._journal.add(*(
        results.Record(key, example, seconds, *output, trial=trial)
        for (key, example, trial), output in zip(decodes, outputs)))
    self._bar.update(len(decodes))
    self._publish()

  def _compile(self) -> None:
    """Compiles and warms up each program that is still needed, once."""
    missing = self._missing()
    self._programs.prepare(self._run.points[k] for k in {d[0] for d in missing})
    users = collections.defaultdict(list)
    for unit in self._units:
      size = 1 if unit.timed else self._run.plan.batch
      for key, example, _ in self._open(unit):
        name = self._programs.name(self._run.points[key])
        users[name, self._prompts.buckets[example], size].append((key, example))
    for (name, bucket, size), some in users.items():
      self._bar.set_description(f'compiling {name}')
      key, example = some[0]
      with self._excused(*{key for key, _ in some}):
        log = self._programs.compile(self._run.points[key], *self._prompts(
            example, size=size))
      if key not in self.failed:
        self._journal.note(
            'compiled', program=str(name), programs=log.programs, rows=size,
            bucket=[bucket.width, bucket.max_length], seconds=log.seconds)
    for example in range(self._run.plan.timed):
      self._prompts(example)                 # the clock must not see it

  @contextlib.contextmanager
  def _excused(self, *keys: str):
    """An error fails these points, and nothing else."""
    try:
      yield
    except Exception as error:  # pylint: disable=broad-exception-caught
      line = f'{type(error).__name__}: {error}'.split('\n')[0]
      for key in keys:
        self.failed[key] = line
        self._journal.note('failed', point=self._run.points[key].label,
                           key=key, error=line)
