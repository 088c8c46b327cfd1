"""Workers elsewhere that share a sweep: some may die, the sweep goes on."""
from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Iterable, Iterator, Protocol, Sequence

from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import work

WRONG = 'wrong'               # in an environment: why it can't be used
POLL = 0.5                    # seconds between looks for units given up


class Lost(Exception):
  """A worker is gone, or of no use; says why in a line.

  Attributes:
    raised: Whether it lives, and has raised what the line says.
  """

  def __init__(self, line: str, raised: bool = False):
    super().__init__(line)
    self.raised = raised


class Cluster(Protocol):
  """Machines that workers run on; what is asked of one is a call under way."""

  def start(self) -> Any:
    """A new worker; it need not be there yet."""

  def stop(self, worker: Any) -> None:
    """Ends a worker, if it lives."""

  def environment(self, worker: Any) -> Any:
    """Asks for its `environment.here`."""

  def prepare(self, worker: Any, decodes: Sequence[work.Decode]) -> Any:
    """Has it compile what decodes need; all outcomes."""

  def decode(self, worker: Any, unit: work.Unit) -> Any:
    """Has it decode a unit; all outcomes."""

  def ready(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
    """Those that have come to an end, after at most so many seconds."""

  def result(self, call: Any) -> Any:
    """What came of a call; raises Lost."""

  def room(self) -> float:
    """How many workers the machines that are there could run in all."""


class Source(Protocol):
  """Where units come from; `worker.Worker` says what the methods do."""
  finished: bool
  missing: Callable[[], list[work.Decode]]
  take: Callable[..., tuple[int, work.Unit] | None]
  done: Callable[[int], None]
  lost: Callable[[int], None]
  say: Callable[[str], None]
  warn: Callable[[str], None]


@dataclasses.dataclass
class _Member:
  """A worker, what it is asked at the moment, and who takes the answer."""
  number: int
  restarts: int                 # that are left
  worker: Any = None
  call: Any = None
  then: Callable[..., Iterable[decoding.Outcome]] | None = None
  unit: int | None = None


class Crew:
  """Hands units to workers, one at a time, and what comes back to a sweep.

  All of a unit is decoded by one worker: if it dies on the way, another worker
  begins the unit anew. A worker that dies is started again so often, where a
  machine has room for it.

  Args:
    cluster: Where workers run.
    source: Of units.
    wanted: What each worker's environment must be.
    size: How many workers.
    restarts: Of each.
  """

  def __init__(self, cluster: Cluster, source: Source, wanted: dict[str, Any],
               size: int, restarts: int):
    self._cluster, self._source, self._wanted = cluster, source, wanted
    self._members = [_Member(i + 1, restarts) for i in range(size)]
    self._restarts, self._some_lost = restarts, False
    self._raised: set[int] = set()     # units

  def __call__(self) -> Iterator[decoding.Outcome]:
    """Outcomes of all that is missing.

    Raises:
      ChildProcessError: No worker is left; the same command may have more luck.
      ValueError: All of them were refused, as they would be again; or a unit
        has raised an error in two.
    """
    try:
      for member in self._members:
        self._start(member)
      while not self._source.finished:
        for member in self._members:
          self._employ(member)
        calls = {m.call: m for m in self._members if m.call is not None}
        ended = self._ended(list(calls))
        for call in ended:
          yield from self._receive(calls[call])
        if calls and not ended:
          self._forsake()
    finally:
      for member in self._members:
        self._cluster.stop(member.worker)

  def _ended(self, calls) -> Sequence[Any]:
    if calls:
      return self._cluster.ready(calls, POLL)
    if not self._source.finished:      # another driver has the last units
      time.sleep(POLL)
    return ()

  def _ask(self, member, call, then) -> None:
    member.call, member.then = call, then

  def _start(self, member) -> None:
    member.worker = self._cluster.start()
    self._ask(member, self._cluster.environment(member.worker), self._checked)

  def _employ(self, member) -> None:
    """Gives a unit to a member that is prepared and has none."""
    if member.call is None and (taken := self._source.take(wait=False)):
      member.unit, unit = taken
      self._ask(member, self._cluster.decode(member.worker, unit),
                self._decoded)

  def _receive(self, member) -> Iterator[decoding.Outcome]:
    """Takes the answer of a member, or leave of it."""
    try:
      answer = self._cluster.result(member.call)
    except Lost as error:
      self._lose(member, error)
    else:
      member.call = None
      yield from member.then(member, answer)

  def _checked(self, member, found) -> Iterable[decoding.Outcome]:
    wrong = found.get(WRONG) or environment.difference(found, self._wanted)
    if wrong:
      self._drop(member, f'Worker {member.number} is refused: {wrong}; ask for '
                 'resources that only machines of one kind have.')
    else:
      self._ask(member, self._cluster.prepare(
          member.worker, self._source.missing()), self._prepared)
    return ()

  def _prepared(self, member, outcomes) -> Iterator[decoding.Outcome]:
    del member
    self._source.say('decoding')
    yield from outcomes

  def _decoded(self, member, outcomes) -> Iterator[decoding.Outcome]:
    yield from outcomes
    self._source.done(member.unit)
    member.unit = None

  def _lose(self, member, error: Lost) -> None:
    if member.unit is not None:
      if error.raised and member.unit in self._raised:
        raise ValueError(f'The same texts ended a worker twice: {error}. What '
                         'was decoded is kept; leave out what can not be.')
      self._raised.update([member.unit] * error.raised)
      self._source.lost(member.unit)
      member.unit = None
    line = f'Worker {member.number} is lost: {error}'
    self._some_lost = True
    self._cluster.stop(member.worker)
    if not member.restarts:
      self._drop(member, f'{line}; it is not started again after '
                 f'{self._restarts} restarts.')
    elif self._cluster.room() < len(self._members):
      self._drop(member, f'{line}; no machine has room to start it again.')
    else:
      member.restarts -= 1
      self._source.warn(f'{line}; it is started again.')
      self._start(member)

  def _forsake(self) -> None:
    """Drops members that were started on a machine which is gone by now."""
    pending = [m for m in self._members if m.then == self._checked]
    surplus = len(self._members) - self._cluster.room() if pending else 0
    for member in pending[:max(0, surplus)]:
      self._some_lost = True
      self._drop(member, f'Worker {member.number} is not started again: no '
                 'machine has room.')

  def _drop(self, member, line: str) -> None:
    self._cluster.stop(member.worker)
    self._members.remove(member)
    if not self._members:
      if not self._some_lost:
        raise ValueError(f'No worker is left. {line}')
      raise ChildProcessError(
          f'No worker is left. {line} What was decoded is kept; the same '
          'command goes on.')
    self._source.warn(line)
