"""Workers that die, lie and come back: no decode is lost or repeated."""
import collections
import dataclasses
import json
import math
import random
import types

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from spec_cascades.evaluation import crew
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import results
from spec_cascades.evaluation import work
from spec_cascades.evaluation import worker as worker_lib
from tests.evaluation.sweep_run_test import Bar

HERE = dict(device='cpu', machine='two cores', versions=dict(jax='1'), code='c')
KEYS = ('one', 'two', 'three')
PLAN = work.Plan(examples=6, timed=4, trials=2, batch=2)
ALL = {d for key in KEYS for d in PLAN.decodes(key)}


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
  """Under way, until `Cluster.ready` chooses it."""
  worker: int
  answer: object


class Cluster:
  """Its calls end in any order; those of some numbers kill their worker."""

  def __init__(self, deaths=(), room=math.inf, others=None, seed=0, bad=(),
               limbo=(), raising=()):
    self.deaths, self.space, self.others = set(deaths), room, others or {}
    self.bad, self.rng, self.limbo = bad, random.Random(seed), limbo
    self.raising = raising               # how often, by example
    self.live, self.started, self.calls, self.units = set(), 0, 0, []

  def start(self):
    self.started += 1
    self.live.add(self.started)
    return self.started

  def stop(self, worker):
    self.live.discard(worker)

  def environment(self, worker):
    return Call(worker, self.others.get(worker, HERE))

  def prepare(self, worker, decodes):
    del decodes
    compiled = dict(program=str(worker))
    return Call(worker, [decoding.Outcome(compiled=compiled)])

  def decode(self, worker, unit):
    self.units.append((worker, unit))
    some = [x for _, x, _ in unit.decodes if self.raising.get(x)] if (
        self.raising) else []
    if some:
      self.raising[some[0]] -= 1
      return Call(worker, crew.Lost('MemoryError: no room', raised=True))
    return Call(worker, list(self._decoded(unit)))

  def _decoded(self, unit):
    for key, example, trial in unit.decodes:
      if key in self.bad:
        yield decoding.Outcome(failed={key: 'RuntimeError: no'})
      else:
        yield decoding.Outcome([results.Record(
            key, example, .1 if unit.timed else None, [1], 0, {}, trial)])
    yield decoding.Outcome(late=1)

  def ready(self, calls, seconds):
    del seconds
    if self.live & set(self.limbo):
      self.space = 0
    calls = [call for call in calls if call.worker not in self.limbo]
    return [self.rng.choice(calls)] if calls else []

  def result(self, call):
    self.calls += 1
    if self.calls in self.deaths:
      self.live.discard(call.worker)
      raise crew.Lost('it was killed')
    assert call.worker in self.live
    if isinstance(call.answer, crew.Lost):
      raise call.answer
    return call.answer

  def room(self):
    return self.space


@dataclasses.dataclass(frozen=True)
class Executor:
  """What `executors.Ray` does, on a cluster that is made up."""
  cluster: Cluster
  size: int = 2
  restarts: int = 1

  def decode(self, job, wanted, source):
    del job
    return crew.Crew(self.cluster, source, dict(wanted), self.size,
                     self.restarts)()


class Shown(Bar):
  """Keeps what was written over the bar."""
  lines = []

  def write(self, line, file):
    del file
    self.lines.append(line)


def measure(directory, cluster, **settings):
  """Runs a made-up sweep as far as it gets; its worker and its journal."""
  run = types.SimpleNamespace(
      rows=[[1]] * PLAN.examples, buckets=[programs.Bucket(8, 8)], plan=PLAN,
      points={key: types.SimpleNamespace(label=key, drafter='')
              for key in KEYS},
      sweep=types.SimpleNamespace(
          seed=0, executor=Executor(cluster, **settings)),
      directory=directory, CLAIMS='claims', job=lambda: None,
      configuration=HERE)
  Shown.lines = []
  journal = journal_lib.Journal(directory / 'journal', HERE)
  at_work = worker_lib.Worker(run, journal, lambda: None, Shown)
  try:
    at_work()
  finally:
    journal.close()
  return at_work, journal


def decoded(directory):
  lines = map(json.loads, (directory / 'journal').read_text().splitlines())
  return [(x['key'], x['example'], x['trial']) for x in lines
          if x['kind'] == 'example']


ALL = {d for key in KEYS for d in PLAN.decodes(key)}


@settings(max_examples=40, deadline=None)
@given(deaths=st.sets(st.integers(1, 30), max_size=8), size=st.integers(1, 3),
       restarts=st.integers(0, 2), seed=st.integers(0, 9))
def test_whoever_dies_every_decode_is_done_once(
    tmp_path_factory, deaths, size, restarts, seed):
  directory = tmp_path_factory.mktemp('crew')
  cluster = Cluster(deaths, seed=seed)
  try:
    measure(directory, cluster, size=size, restarts=restarts)
  except ChildProcessError as error:
    assert 'No worker is left' in str(error) and 'goes on' in str(error)
    assert cluster.started == size * (1 + restarts)
    measure(directory, Cluster(seed=seed), size=size)
  assert not cluster.live and cluster.started <= size * (1 + restarts)
  done = decoded(directory)
  assert len(done) == len(set(done)) and set(done) == ALL


def test_a_text_is_one_workers_whoever_dies(tmp_path):
  cluster = Cluster(deaths=(9, 13, 17))
  measure(tmp_path, cluster, restarts=3)
  last = {unit.decodes: worker for worker, unit in cluster.units}
  timed = [d for d in last if len(d) == len(KEYS)]
  assert len(timed) == PLAN.timed * PLAN.trials
  assert sum(map(len, last)) == len(ALL)      # units stayed whole
  again = collections.Counter(unit for _, unit in cluster.units)
  assert 1 <= sum(n - 1 for n in again.values()) <= 3
  assert len(Shown.lines) == 3
  assert Shown.lines[0].endswith('is lost: it was killed; it is started again.')


def test_a_point_that_fails_is_noted_once_and_left_out(tmp_path):
  at_work, journal = measure(tmp_path, Cluster(bad=('two',)))
  assert at_work.failed == {'two': 'RuntimeError: no'}
  assert sum(n['kind'] == 'failed' for n in journal.notes) == 1
  assert set(decoded(tmp_path)) == {d for d in ALL if d[0] != 'two'}


def test_texts_that_end_a_worker_again_are_not_tried_on_every_other(tmp_path):
  cluster = Cluster(raising={3: 2})
  with pytest.raises(ValueError, match='twice: MemoryError: no room'):
    measure(tmp_path, cluster, size=3, restarts=5)
  assert not cluster.live and cluster.started == 4      # one again
  assert set(decoded(tmp_path)) < ALL
  measure(tmp_path, Cluster(raising={3: 1}), restarts=1)      # it passed
  assert set(decoded(tmp_path)) == ALL


def test_who_can_not_decode_says_why(tmp_path):
  wrong = {crew.WRONG: 'Got a mesh of 4 devices; allowed: up to 2.'}
  measure(tmp_path, Cluster(others={1: HERE | wrong}))
  assert Shown.lines[0].startswith(
      'Worker 1 is refused: Got a mesh of 4 devices; allowed: up to 2.;')
  assert set(decoded(tmp_path)) == ALL


def test_programs_compiled_too_late_are_counted(tmp_path):
  cluster = Cluster()
  _, journal = measure(tmp_path, cluster)
  noted, = [n for n in journal.notes if n['kind'] == 'decoded']
  assert noted['programs'] == len(cluster.units)


def test_workers_of_another_kind_are_refused(tmp_path):
  other = dict(HERE, machine='one core', versions=dict(jax='2'))
  cluster = Cluster(others={1: other})
  measure(tmp_path, cluster)
  assert {worker for worker, _ in cluster.units} == {2}
  assert cluster.started == 2
  line, = Shown.lines
  assert line.startswith('Worker 1 is refused: machine is one core, not two '
                         'cores, jax is 2, not 1; ask for')
  # They would be again: exit code 2, after which nobody tries again.
  with pytest.raises(ValueError, match='No worker .* 1 is refused'):
    measure(tmp_path / 'x', Cluster(others={1: other}), size=1)
  with pytest.raises(ValueError, match='No worker .* [12] is refused'):
    measure(tmp_path / 'y', Cluster(others={1: other, 2: other}))
  with pytest.raises(ChildProcessError, match='No worker .* goes on'):
    measure(tmp_path / 'z', Cluster(deaths=range(2, 99), others={1: other}),
            restarts=0)


def test_a_worker_is_not_started_where_its_machine_is_gone(tmp_path):
  cluster = Cluster(deaths=(7,), room=1)
  measure(tmp_path, cluster, restarts=5)
  assert cluster.started == 2 and 'no machine has room' in Shown.lines[0]
  assert set(decoded(tmp_path)) == ALL


def test_nobody_waits_for_a_worker_on_a_machine_that_is_gone(tmp_path):
  """The death of the machine may be known later than that of the worker."""
  cluster = Cluster(deaths=(3,), room=1, limbo=(2,))
  with pytest.raises(ChildProcessError, match='started again: no machine'):
    measure(tmp_path, cluster, size=1)
  assert cluster.started == 2 and not cluster.live
  measure(tmp_path, Cluster())
  assert set(decoded(tmp_path)) == ALL


def test_an_environment_equals_itself():
  assert not environment.difference(HERE, HERE)
  assert environment.difference(
      HERE, dict(HERE, device='tpu')) == 'device is cpu, not tpu'


@pytest.mark.parametrize('bad,message', [
    (dict(num_workers=0), 'num_workers=0; allowed: a whole number from 1'),
    (dict(num_workers=1.5), 'num_workers=1.5'),
    (dict(restarts=-1), 'restarts=-1; allowed: a whole number from 0'),
    (dict(num_cpus=-1), 'num_cpus=-1; allowed: a number from 0'),
    (dict(num_gpus='all'), "num_gpus='all'"),
    (dict(resources=('TPU', 4)), 'resources=.*numbers from 0 by name'),
    (dict(resources={'TPU': '4'}), 'numbers from 0 by name'),
    (dict(resources={'GPU': 1}), 'with GPU; give num_cpus and num_gpus'),
    (dict(address='ray://head:10001'), "allowed: 'auto' or HOST:PORT")])
def test_workers_that_can_not_be_are_refused(bad, message):
  with pytest.raises(ValueError, match=message):
    executors.Ray(**bad)
