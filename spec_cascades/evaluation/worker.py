"""One process at work on a sweep: alone, or beside others on the same files."""
from __future__ import annotations

import collections
import contextlib
import sys
import time
from typing import Any, Callable

from spec_cascades.evaluation import claims as claims_lib
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import work

POLL = 0.5                    # seconds between looks at what others do


class Worker:
  """Has decoded what is missing, unit by unit, and says so in the journal.

  The sweep's executor decodes; it asks here for units and hands in outcomes.
  A point that fails is noted with its error and left out; the others go on.

  Args:
    run: A `sweep.Run`.
    journal: Open.
    publish: Called when decodes have been added.
    progress: `tqdm` or something called like it.
  """

  def __init__(self, run: Any, journal: Any, publish: Callable[[], None],
               progress: Callable[..., Any]):
    self._run, self._journal = run, journal
    self._publish, self._progress = publish, progress
    buckets = [programs_lib.bucket_of(len(row), run.buckets)
               for row in run.rows]
    self._units = work.units(
        run.plan, list(run.points), buckets, run.sweep.seed,
        [key for key, point in run.points.items() if point.drafter])
    self._claims = claims_lib.Claims(run.directory / run.CLAIMS)
    self._waiting = dict.fromkeys(range(len(self._units)))
    self._held: set[int] = set()           # units that our executor works on
    self.failed: dict[str, str] = {}       # error by key of a point
    self.spent: collections.Counter[str] = collections.Counter()   # seconds

  def __call__(self) -> None:
    """Returns when every decode is in the journal or its point has failed."""
    total, late = sum(len(unit.decodes) for unit in self._units), 0
    try:
      with self._progress(total=total, unit='decode', desc='compiling',
                          initial=total - len(self.missing())) as self._bar:
        with contextlib.closing(self._run.sweep.executor.decode(
            self._run.job(), self._run.configuration, self)) as outcomes:
          for outcome in outcomes:
            self._book(outcome)
            late += outcome.late
      self._journal.note('decoded', programs=late)
    finally:
      self._claims.close()

  def missing(self) -> list[work.Decode]:
    """All decodes that are still to be done."""
    return [d for unit in self._units for d in self._open(unit)]

  @property
  def finished(self) -> bool:
    """Whether no unit is left, with anyone."""
    return not self._waiting

  def take(self, wait: bool = True) -> tuple[int, work.Unit] | None:
    """The next unit that nobody works on, less what is done, and its index.

    It is to be given back with `done` or `lost`.

    Args:
      wait: For units that other processes have, lest they die; else None.
    """
    while self._waiting:
      for index in [i for i in self._waiting if i not in self._held]:
        if self._claims.take(index):
          with self._journal.locked():       # reads what others have added
            left = self._open(self._units[index])
          if left:
            self._held.add(index)
            return index, work.Unit(tuple(left), self._units[index].timed)
          self._claims.release(index)
          del self._waiting[index]
      if not wait:
        return None
      if self._waiting:
        time.sleep(POLL)
    return None

  def done(self, index: int) -> None:
    """A unit's outcomes have all been handed in."""
    del self._waiting[index]
    self.lost(index)

  def lost(self, index: int) -> None:
    """A unit was not finished; anyone may take it."""
    self._held.remove(index)
    self._claims.release(index)

  def say(self, what: str) -> None:
    """Shows what is being done; the time left counts from here."""
    self._bar.set_description(what)
    self._bar.unpause()

  def warn(self, line: str) -> None:
    """Notes something that the sweep can live with, and shows it."""
    self._journal.note('warned', line=line)
    self._bar.write(line, file=sys.stderr)

  def _open(self, unit: work.Unit) -> list[work.Decode]:
    """What of a unit is still to be done."""
    records = self._journal.records
    return [d for d in unit.decodes
            if d not in records and d[0] not in self.failed]

  def _book(self, outcome: decoding.Outcome) -> None:
    """Writes an outcome down; it is in the file when this returns."""
    if outcome.seconds:
      self.spent['compiling' if outcome.compiled else 'decoding'] += (
          outcome.seconds)
    for key in outcome.failed.keys() - self.failed.keys():
      self.failed[key] = outcome.failed[key]
      self._journal.note('failed', point=self._run.points[key].label, key=key,
                         error=outcome.failed[key])
    if outcome.compiled:
      self._journal.note('compiled', **outcome.compiled)
    if outcome.records:
      self._journal.add(*outcome.records)
      self._bar.update(len(outcome.records))
      self._publish()
