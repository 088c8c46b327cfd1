"""A sweep decoded by several processes.

The first process keeps the journal and says what there is to do, a unit at a
time; every process, the first among them, takes the next unit when it has
finished one, and hands in what came of it. Where they share one mesh, all of
them decode each unit, and the first has all that comes of it.
"""
from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

from spec_cascades import hosts
from spec_cascades.evaluation import crew
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

AHEAD = 8                     # units that lie ready, for each process
POLL = .2                     # seconds between looks at what has come in
START, UNITS, OUTCOMES, LAST = 'start', 'units', 'outcomes', 'last'


def agree(configuration: Mapping[str, Any]) -> None:
  """Refuses processes that would decode something else, or on another machine.

  Args:
    configuration: Of the sweep, `environment.here` in it.

  Raises:
    ValueError: Says which, and what differs.
  """
  if hosts.count() == 1:
    return
  found = hosts.gathered(configuration)
  for i, other in enumerate(found):
    if wrong := environment.difference(other, found[0]):
      raise ValueError(f'Process {i} and process 0 are not alike: {wrong[:400]}'
                       '; give all the same command, files and machine.')


def skip() -> None:
  """Tells the others that there is nothing to decode."""
  if hosts.count() > 1:
    hosts.Board('sweep').put(START, None)


def deal(job: decoding.Job, source: crew.Source) -> Iterator[decoding.Outcome]:
  """Outcomes of all units of a source, from all processes; for the first."""
  board, missing = hosts.Board('sweep'), source.missing()
  needs = needed(job, missing)
  board.put(START, needs)
  if job.spans:
    yield from _lead(board, job, source, needs)
    return
  decoder, hand = decoding.Decoder(job), _Hand(board, source)
  yield from decoder.prepare(missing, source.say)
  source.say('decoding')
  drawn = None
  with timing.CompileLog() as log, timing.quiet():
    while not hand.empty():
      yield from hand.received()
      drawn = board.draw() if drawn is None else drawn
      if drawn >= hand.laid:            # the others have them all
        time.sleep(POLL)
        continue
      index, unit = _unit(board.take(f'{UNITS}/{drawn}'))
      drawn = None
      for outcome in decoder.decode(unit):
        yield outcome
        yield from hand.received()
      hand.finished(index)
    hand.close(drawn)
    yield from hand.last()
  yield decoding.Outcome(late=log.programs)


def help_out(make: Callable[[], decoding.Job]) -> int:
  """Decodes for the first process until it has no more; how many units.

  Args:
    make: Returns the job, the same one as the first process has.
  """
  board = hosts.Board('sweep')
  needs = board.get(START)
  if needs is None:
    return 0
  job, sent = make(), itertools.count()
  decoder = decoding.Decoder(job)
  if job.spans:
    return _follow(board, decoder, needs)

  def send(index, outcomes):
    board.put(f'{OUTCOMES}/{hosts.index()}_{next(sent):09}',
              (index, list(map(dataclasses.asdict, outcomes))))

  for outcome in decoder.prepare(list(map(tuple, needs))):
    send(None, [outcome])
  done = 0
  with timing.CompileLog() as log, timing.quiet():
    while (found := board.take(f'{UNITS}/{board.draw()}')) is not None:
      index, unit = _unit(found)
      send(index, list(decoder.decode(unit)))
      done += 1
  board.put(f'{LAST}/{hosts.index()}', log.programs)
  return done


def _lead(board, job, source, needs):
  """Decodes with all other processes at once: each is told of every unit."""
  def tell(number, note):
    for i in range(1, hosts.count()):
      board.put(f'{UNITS}/{i}/{number}', note)

  decoder, told = decoding.Decoder(job), itertools.count()
  yield from decoder.prepare(needs, source.say)
  source.say('decoding')
  with timing.CompileLog() as log, timing.quiet():
    while (taken := source.take()) is not None:
      index, unit = taken
      tell(next(told), (index, dataclasses.asdict(unit)))
      yield from decoder.decode(unit)
      source.done(index)
  tell(next(told), None)
  yield decoding.Outcome(late=log.programs)


def _follow(board, decoder, needs):
  """Does what `_lead` does in the first process; how many units."""
  for _ in decoder.prepare(list(map(tuple, needs))):
    pass
  with timing.quiet():
    for done in itertools.count():
      found = board.take(f'{UNITS}/{hosts.index()}/{done}')
      if found is None:
        return done
      for _ in decoder.decode(_unit(found)[1]):
        pass


def needed(job: decoding.Job,
           decodes: Sequence[work.Decode]) -> list[work.Decode]:
  """Some of the decodes that need all the programs that these need.

  One for each point, length of the input, and whether it is timed.
  """
  clocked = job.plan.clocked
  return list({(key, len(job.rows[example]), trial in clocked): (
      key, example, trial) for key, example, trial in decodes}.values())


def _unit(note):
  """A unit with its number."""
  index, unit = note
  return index, work.Unit(**{
      **unit, 'decodes': tuple(map(tuple, unit['decodes']))})


def _outcome(note):
  records = [results.Record(**x) for x in note['records']]
  return decoding.Outcome(**{**note, 'records': records})


@dataclasses.dataclass
class _Hand:
  """Units on their way from a source to processes and back."""
  board: hosts.Board
  source: crew.Source
  laid: int = 0                 # on the board, so far
  out: int = 0                  # of them not back yet
  looked: float = 0.

  def empty(self) -> bool:
    """Lays out more units; whether there is none, here or on its way."""
    source = self.source
    while self.out < AHEAD * hosts.count():
      # Where other drivers share the files, wait for theirs only at the end.
      taken = source.take(wait=not self.out)
      if taken is None:
        break
      index, unit = taken
      self.board.put(f'{UNITS}/{self.laid}',
                     (index, dataclasses.asdict(unit)))
      self.laid, self.out = self.laid + 1, self.out + 1
    return not self.out

  def received(self) -> Iterator[decoding.Outcome]:
    """What the others have handed in."""
    if time.monotonic() < self.looked + POLL:
      return
    self.looked = time.monotonic()
    for index, outcomes in self.board.collect(OUTCOMES):
      yield from map(_outcome, outcomes)
      if index is not None:
        self.finished(index)

  def finished(self, index: int) -> None:
    """A unit is done, and in the journal."""
    self.source.done(index)
    self.out -= 1

  def close(self, drawn: int | None) -> None:
    """Tells the others, each of which draws once more, that this is all."""
    mine = [drawn] if drawn is not None else []
    for i in range(self.laid, self.laid + hosts.count() - 1 + len(mine)):
      if i not in mine:
        self.board.put(f'{UNITS}/{i}', None)

  def last(self) -> Iterator[decoding.Outcome]:
    """What the others have to say at their end."""
    for i in range(1, hosts.count()):
      yield decoding.Outcome(late=self.board.get(f'{LAST}/{i}'))
