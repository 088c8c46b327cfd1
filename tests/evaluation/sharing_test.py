"""Units of work: how they are planned, claimed, shared, and how they fail."""
import collections
from concurrent import futures
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types

from hypothesis import given
from hypothesis import strategies as st
import jax
from jax.experimental.compilation_cache import compilation_cache
import pytest

from spec_cascades import targets
from spec_cascades.evaluation import claims
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work
from tests.evaluation.sweep_run_test import Bar

BUCKETS = programs.Bucket(8, 8), programs.Bucket(16, 8)


@given(examples=st.integers(1, 20), timed=st.integers(1, 20),
       trials=st.integers(1, 3), batch=st.integers(1, 7),
       keys=st.integers(1, 4), together=st.integers(1, 4))
def test_units_cover_every_decode_once(examples, timed, trials, batch, keys,
                                       together):
  plan = work.Plan(examples, min(timed, examples), trials, batch, together)
  keys = [f'k{i}' for i in range(keys)]
  buckets = [BUCKETS[i % 2] for i in range(examples)]
  units = work.units(plan, keys, buckets, seed=3, early=keys[1:3])
  done = [decode for unit in units for decode in unit.decodes]
  assert len(set(done)) == len(done)
  assert set(done) == {d for key in keys for d in plan.decodes(key)}
  for unit in units:
    if unit.timed:             # one text or rows of one shape, all points
      rows = {d[1:] for d in unit.decodes}
      assert len({buckets[i] for i, _ in rows}) == 1 == len({
          trial for _, trial in rows})
      assert 1 <= len(rows) <= together
      assert len(unit.decodes) == len(rows) * len(keys)
      # A point's rows stand together: they are timed in one go.
      assert sorted(key for key, _ in itertools.groupby(
          d[0] for d in unit.decodes)) == keys
    else:                      # one point, rows of one shape
      assert len({d[0] for d in unit.decodes}) == 1 <= batch
      assert len({buckets[d[1]] for d in unit.decodes}) == 1
      assert len(unit.decodes) <= batch
  clocks = [unit.timed for unit in units]
  assert clocks == sorted(clocks)            # quality first
  batches = [unit.decodes[0][0] for unit in units if not unit.timed]
  order = [*keys[1:3], keys[0], *keys[3:]]
  assert list(dict.fromkeys(batches)) == order * plan.staged
  assert batches == sorted(batches, key=order.index)


def test_quality_of_a_plan_that_times_all_comes_from_what_is_timed():
  assert not work.Plan(5, 5, 2, 1).staged
  assert work.Plan(5, 4, 1, 1).staged and work.Plan(5, 5, 1, 2).staged


@given(kinds=st.lists(st.sampled_from('btf'), max_size=8))
def test_a_batch_is_handed_in_while_the_next_is_on_the_device(kinds):
  """b: a batch, t: timed, f: a batch that fails before it is begun."""
  log, given, left = [], [], list(enumerate(kinds))

  class Source:
    """Nobody else has anything."""

    def take(self, wait=True):
      # What has failed is known when the next unit is asked for.
      assert all(('done', i) in log for i in given if kinds[i] == 'f')
      if left:
        index, kind = left.pop(0)
        given.append(index)
        return index, work.Unit(((str(index), 0, 0),), kind == 't')
      held = [i for i, _ in enumerate(kinds) if ('done', i) not in log]
      assert not wait or not held        # it would wait for itself
      return None

    def done(self, index):
      log.append(('done', index))

  class Decoder:
    def decode(self, unit):
      index = int(unit.decodes[0][0])
      if kinds[index] == 'f':
        yield decoding.Outcome(failed={str(index): 'no'})
        return
      log.append(('begun', index))
      if not unit.timed:
        yield decoding.Outcome(begun=True)
      log.append(('over', index))
      yield decoding.Outcome([results.Record(str(index), 0, None, [], 0, {})])

  for outcome in executors._handed_in(Decoder(), Source()):  # pylint: disable=protected-access
    assert not outcome.begun
    index, = (int(r.key) for r in outcome.records) if outcome.records else map(
        int, outcome.failed)
    log.append(('booked', index))
  for index, kind in enumerate(kinds):   # all, once, and done when booked
    assert log.count(('booked', index)) == log.count(('done', index)) == 1
    assert log.index(('booked', index)) < log.index(('done', index))
    if kind == 't':                      # nothing is booked beside the clock
      at = log.index(('begun', index))
      assert log[at + 1] == ('over', index)
      assert all(log.index(('done', i)) < at for i in range(index))
  for a, (one, two) in enumerate(itertools.pairwise(kinds)):
    if one + two == 'bb':
      assert (log.index(('begun', a + 1)) < log.index(('booked', a))
              < log.index(('over', a + 1)))

HOLD = '''
import pathlib, sys, time
from spec_cascades.evaluation import claims
held = claims.Claims(pathlib.Path(sys.argv[1]))
print([held.take(i) for i in (1, 3)], flush=True)
time.sleep(60)
'''


def test_claims_of_a_dead_process_are_free(tmp_path):
  path = tmp_path / 'claims'
  other = subprocess.Popen([sys.executable, '-c', HOLD, path],
                           stdout=subprocess.PIPE, text=True)
  assert other.stdout.readline() == '[True, True]\n'
  ours = claims.Claims(path)
  assert [ours.take(i) for i in range(4)] == [True, False, True, False]
  other.kill()
  other.communicate()
  assert ours.take(1) and ours.take(3)
  ours.release(1)
  ours.close()


@pytest.fixture(scope='module')
def sweep(pair_dir, tmp_path_factory):
  return sweep_lib.Sweep(
      str(tmp_path_factory.mktemp('shared') / 'one'),
      (points.Curve(targets.Lossless, gammas=(2, 3), temperatures=(0., 1.)),),
      str(pair_dir / 'verifier'), str(pair_dir / 'drafter'), examples=5,
      batch=3, timed=2, trials=2, buckets=((80, 20),), predicted=False)


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  """Where what is compiled here is kept, so that other processes need not."""
  place = str(tmp_path_factory.mktemp('cache'))
  settings = dict(jax_compilation_cache_dir=place,
                  jax_persistent_cache_min_compile_time_secs=0.)
  before = {name: getattr(jax.config, name) for name in settings}
  try:
    for name, value in settings.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield place
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope='module')
def staged(sweep, cache):
  return sweep_lib.Run(sweep)(Bar)


def test_quality_in_batches_and_latency_apart(sweep, staged):
  """The same tokens, and so the same quality, as one by one."""
  plain = dataclasses.replace(sweep, output_dir=sweep.output_dir + '_plain',
                              batch=1, timed=None, trials=1)
  alone = sweep_lib.Run(plain)(Bar)
  assert [(r.method, r.gamma, r.emitted, r.quality, r.histogram)
          for r in staged.rows] == [
              (r.method, r.gamma, r.emitted, r.quality, r.histogram)
              for r in alone.rows]
  assert {(r.examples, r.timed, r.trials, r.batch) for r in staged.rows} == {
      (5, 2, 2, 3)}
  assert {(r.examples, r.timed, r.trials, r.batch) for r in alone.rows} == {
      (5, 5, 1, 1)}
  run = sweep_lib.Run(sweep)
  journal = run.directory / sweep_lib.JOURNAL
  records = [results.Record(**x) for x in map(
      results.json.loads, journal.read_text().splitlines())
             if x['kind'] == 'example']
  assert collections.Counter(r.trial for r in records) == {0: 40, 1: 16, 2: 16}
  assert all((r.seconds is None) == (r.trial == 0) for r in records)
  texts = collections.defaultdict(set)
  for r in records:
    texts[r.key, r.example].add(tuple(r.tokens))
  assert all(len(found) == 1 for found in texts.values())
  # Each model alone, each gamma: once in batches and once by one.
  assert staged.compilations.programs == run.most_programs() == 8
  assert {r.method for r in staged.rows} == {
      'verifier', 'drafter', 'SpecDecode, gamma 2', 'SpecDecode, gamma 3'}


def test_programs_are_compiled_beside_batches_and_before_the_clock(
    sweep, staged):
  """The last ones may come after the first batch; none after a timed text."""
  run = sweep_lib.Run(sweep)
  notes = [(x['kind'], x.get('trial', 0)) for x in map(
      results.json.loads,
      (run.directory / sweep_lib.JOURNAL).read_text().splitlines())]
  compiled = [i for i, (kind, _) in enumerate(notes) if kind == 'compiled']
  timed = notes.index(('example', 1))
  assert compiled[0] < notes.index(('example', 0)) < compiled[-1] < timed
  assert len(compiled) == run.most_programs()
  assert staged.compilations.while_timing == 0


def test_what_nobody_needs_is_not_compiled_beside_the_clock():
  """All its points have failed, but a thread is at it: it is waited for."""
  log, decoder = futures.Future(), object.__new__(decoding.Decoder)
  assert log.set_running_or_notify_cancel()
  decoder._failed, decoder._say = {'a', 'b'}, lambda what: None
  decoder._waiting = {'case': decoding._Coming(('a', 'b'), (), True, log)}
  timer = threading.Timer(.2, log.set_result, [None])
  timer.start()
  assert not list(decoder._ready(['case'])) and log.done()


@pytest.mark.parametrize('timed', [False, True])
def test_only_what_is_timed_is_warmed_up(timed):
  """And what was compiled in another thread is told of either way."""
  log, decoder, warmed = futures.Future(), object.__new__(decoding.Decoder), []
  log.set_result(timing.CompileLog(1, .5))

  def warm(*call):
    warmed.append(call)
    return timing.CompileLog()

  decoder._failed, decoder._say = set(), lambda what: None
  decoder._programs = types.SimpleNamespace(compile=warm)
  case = decoding._Case('chain', programs.Bucket(3, 4), 2)
  decoder._waiting = {case: decoding._Coming(('a',), ('call',), timed, log)}
  outcome, = decoder._ready([case])
  assert outcome.compiled == dict(program='chain', programs=1, rows=2,
                                  bucket=[3, 4], seconds=.5)
  assert warmed == [('call',)] * timed


def test_a_program_that_cannot_be_compiled_fails_its_points_only(
    sweep, staged, monkeypatch):
  """In whichever thread it was; nothing of it is run."""
  broken = dataclasses.replace(sweep, output_dir=sweep.output_dir + '_apart')
  run, ahead, ran = sweep_lib.Run(broken), programs.Programs.ahead, set()

  def failing(self, point, *args):
    if point.gamma == 3:
      raise RuntimeError('out of memory')
    return ahead(self, point, *args)

  def call(self, point, *args):
    ran.add(point.gamma)
    return whole(self, point, *args)

  whole = programs.Programs.call
  monkeypatch.setattr(programs.Programs, 'ahead', failing)
  monkeypatch.setattr(programs.Programs, 'call', call)
  done = run(Bar)
  assert sorted(done.failures) == [
      f'SpecDecode, gamma 3 T={heat}: RuntimeError: out of memory'
      for heat in (0, 1)] and ran == {0, 2}
  assert [results.deterministic(r) for r in done.rows] == [
      results.deterministic(r) for r in staged.rows
      if r.method != 'SpecDecode, gamma 3']


def test_rows_that_are_timed_together_share_the_time(sweep, staged):
  """The same tokens; a program for each batch; two rows, or one and a copy."""
  both = dataclasses.replace(sweep, output_dir=sweep.output_dir + '_together',
                             timed=5, trials=1, timed_batch=2)
  run = sweep_lib.Run(both)
  found = run(Bar)
  same = ('method', 'emitted', 'quality', 'histogram')
  assert [[getattr(r, x) for x in same] for r in found.rows] == [
      [getattr(r, x) for x in same] for r in staged.rows]
  assert {(r.timed, r.timed_batch, r.batch) for r in found.rows} == {(5, 2, 3)}
  assert run.most_programs() == 8
  assert found.compilations.programs == 4      # those of batch 3 are there
  assert found.compilations.while_timing == 0
  seconds = collections.defaultdict(dict)
  for line in (run.directory / sweep_lib.JOURNAL).read_text().splitlines():
    note = results.json.loads(line)
    if note['kind'] == 'example' and note['trial']:
      seconds[note['key']][note['example']] = note['seconds']
  for own in seconds.values():
    assert own[0] == own[1] and own[2] == own[3] and len(set(own.values())) == 3


def test_parts_are_not_timed_beside_batches(sweep):
  with pytest.raises(ValueError, match='allowed with a split: 1'):
    sweep_lib.Run(dataclasses.replace(
        sweep, output_dir=sweep.output_dir + '_split', split=True,
        timed_batch=2))


def test_a_point_that_fails_is_noted_and_the_others_go_on(
    sweep, staged, monkeypatch):
  broken = dataclasses.replace(sweep, output_dir=sweep.output_dir + '_broken')
  run, call = sweep_lib.Run(broken), programs.Programs.call
  bad = next(key for key, p in run.points.items() if p.gamma == 3
             and p.temperature == 1.)

  def failing(self, point, *args):
    if point == run.points[bad]:
      raise RuntimeError('out of memory\nat great length')
    return call(self, point, *args)

  monkeypatch.setattr(programs.Programs, 'call', failing)
  done = run(Bar)
  assert done.failures == [
      'SpecDecode, gamma 3 T=1: RuntimeError: out of memory']
  assert [r.key for r in done.rows] == [k for k in run.points if k != bad]
  monkeypatch.undo()
  again = sweep_lib.Run(broken)(Bar)
  assert not again.failures
  assert list(map(results.deterministic, again.rows)) == list(map(
      results.deterministic, staged.rows))


def test_a_sweep_without_a_single_point_says_why(sweep, monkeypatch):
  def failing(*args):
    raise RuntimeError('no device')
  monkeypatch.setattr(programs.Programs, 'call', failing)
  with pytest.raises(ValueError, match='No point could be .* no device'):
    sweep_lib.Run(dataclasses.replace(
        sweep, output_dir=sweep.output_dir + '_none'))(Bar)


ONE = '''
import sys
from spec_cascades import targets
from spec_cascades.evaluation import points, sweep
from tests.evaluation.sweep_run_test import Bar
out, verifier, drafter = sys.argv[1:]
done = sweep.Run(sweep.Sweep(
    out, (points.Curve(targets.Lossless, gammas=(2, 3),
                       temperatures=(0., 1.)),), verifier, drafter,
    examples=5, batch=3, timed=2, trials=2, buckets=((80, 20),),
    predicted=False))(Bar)
print(len(done.rows))
'''


@pytest.mark.slow
@pytest.mark.parametrize('killed', [False, True], ids=['both', 'one_killed'])
def test_two_processes_share_a_sweep(sweep, staged, cache, tmp_path, killed):
  """No decode twice; if one is killed, the other takes its work over."""
  out = tmp_path / 'two'
  command = [sys.executable, '-c', ONE, str(out), sweep.verifier, sweep.drafter]
  env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=cache,
             JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0')
  both = [subprocess.Popen(command, env=env, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
          for _ in range(2)]
  journal = out / sweep_lib.JOURNAL
  if killed:
    while not (journal.exists() and b'"example"' in journal.read_bytes()):
      assert both[0].poll() is None, both[0].stderr.read()
      time.sleep(.01)
    both[0].send_signal(signal.SIGKILL)
    both[0].communicate()
    both = both[1:]
  for process in both:
    text, errors = process.communicate()
    assert text == '8\n', errors
  lines = list(map(results.json.loads, journal.read_text().splitlines()))
  keys = [(x['key'], x['example'], x['trial']) for x in lines
          if x['kind'] == 'example']
  assert len(keys) == len(set(keys)) == 72
  assert sum(x['kind'] == 'sweep' for x in lines) == 1
  rows = results.read_rows(out / sweep_lib.RESULTS)
  assert list(map(results.deterministic, rows)) == list(map(
      results.deterministic, staged.rows))
