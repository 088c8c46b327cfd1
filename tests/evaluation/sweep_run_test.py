"""A small sweep, run here: programs, rows, equality, and going on."""
import dataclasses
import fcntl
import json

import pytest

from spec_cascades import targets
from spec_cascades import theory
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib
from spec_cascades.evaluation import timing

CURVES = (points.Curve(targets.Lossless),
          points.Curve(targets.Chow, (.3,), (1.,)),
          points.Curve(targets.OPT, (5.,), (1.,)))


class Bar:
  """What a sweep asks of tqdm."""

  def __init__(self, **settings):
    self.total, self.initial = settings['total'], settings['initial']

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    pass

  def set_description(self, _):
    pass

  unpause = lambda self: None
  update = lambda self, count: None


@pytest.fixture(scope='module')
def sweep(pair_dir, tmp_path_factory):
  return sweep_lib.Sweep(
      str(tmp_path_factory.mktemp('sweep') / 'out'), CURVES,
      str(pair_dir / 'verifier'), str(pair_dir / 'drafter'), examples=3,
      gamma=3, buckets=((80, 20),))


@pytest.fixture(scope='module')
def done(sweep):
  run = sweep_lib.Run(sweep)
  return run, run(Bar)


def test_three_programs_and_none_while_the_clock_runs(done):
  """Both models alone, and all rules in one, whether they read q or not."""
  run, found = done
  assert found.compilations.programs == run.most_programs() == 3
  assert found.compilations.while_timing == 0
  assert all(row.programs == 1 for row in found.rows)
  assert all(row.compile_seconds > 0 for row in found.rows)


def test_rows_are_written_and_add_up(done):
  run, found = done
  rows = results.read_rows(run.directory / sweep_lib.RESULTS)
  assert rows == found.rows and len(rows) == 8
  for row in rows:
    assert row.emitted == row.accepted + row.corrected + row.bonus > 0
    assert row.examples == 3 and row.schema == results.SCHEMA
    assert row.dtype == 'float32'
    assert sum(row.histogram) == row.rounds and row.latency_mean > 0
    assert row.tokens_per_call == row.emitted / row.verifier_calls
    assert (row.relative_latency == 1) == (row.method == 'verifier')
  assert len({row.key for row in rows}) == 8


def test_greedy_lossless_equals_the_verifier(done):
  equality, = done[1].equalities
  assert (equality.method, equality.equal, equality.examples) == (
      'SpecDecode', 3, 3)


def test_the_journal_is_interleaved(done):
  run, _ = done
  lines = [json.loads(x) for x in
           (run.directory / sweep_lib.JOURNAL).read_text().splitlines()]
  order = [x['example'] for x in lines if x['kind'] == 'example']
  assert order == sorted(order) and len(order) == 24


def test_a_finished_sweep_runs_nothing_again(sweep, done):
  with timing.CompileLog() as log:
    again = sweep_lib.Run(sweep)(Bar)
  assert log.programs == 0
  assert again.rows == done[1].rows


class Killed(BaseException):
  """As if by a signal: nothing gets to tidy up."""


def test_nobody_else_writes_while_the_last_rows_are_made(
    sweep, done, monkeypatch):
  """Or a process that lacks a point would remove another's row of it."""
  run, held = done[0], []

  def locked(make):
    def wrapped(*args, **kwargs):
      with (run.directory / sweep_lib.JOURNAL).open() as other:
        with pytest.raises(BlockingIOError):
          fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
      held.append(make.__name__)
      return make(*args, **kwargs)
    return wrapped
  for module, name in ((sweep_lib.summary, 'summarise'),
                       (sweep_lib.results, 'write_rows')):
    monkeypatch.setattr(module, name, locked(getattr(module, name)))
  sweep_lib.Run(sweep)(Bar)
  assert held == ['summarise', 'write_rows']


def test_rows_are_written_as_their_points_finish(sweep, done, monkeypatch,
                                                 tmp_path):
  """A sweep that dies with rows on the disk goes on from there."""
  resumed = dataclasses.replace(sweep, output_dir=str(tmp_path / 'out'),
                                predicted=False)
  write, counts = results.write_rows, []

  def interrupted(path, rows):
    write(path, rows)
    counts.append(len(rows))
    if len(counts) == 4:
      raise Killed

  monkeypatch.setattr(results, 'write_rows', interrupted)
  with pytest.raises(Killed):
    sweep_lib.Run(resumed)(Bar)
  path = tmp_path / 'out' / sweep_lib.RESULTS
  assert counts == sorted(counts) and 1 <= counts[-1] < 8
  assert len(results.read_rows(path)) == counts[-1]
  sweep_lib.Run(resumed)(Bar)
  assert counts[4] >= counts[3] and counts[-1] == 8
  assert [results.deterministic(row) for row in results.read_rows(path)] == [
      results.deterministic(row) for row in done[1].rows]


def test_other_settings_are_refused_before_anything_happens(sweep, done):
  before = {p.name: p.read_bytes() for p in done[0].directory.iterdir()}
  with timing.CompileLog() as log:
    for changes, what in (
        (dict(seed=1), 'seed is 0 there and 1 here'),
        (dict(gamma=4), 'gamma in points is 3 there and 4 here'),
        (dict(examples=2), 'examples is 3 there and 2 here'),
        (dict(buckets=((80, 30),)), 'buckets'),
        (dict(top_p=.9), 'top_p in points is 1.0 there and 0.9 here'),
        (dict(dtype='bfloat16'), 'dtype is float32 there and bfloat16 here'),
        (dict(verifier=sweep.drafter), 'verifier differs')):
      with pytest.raises(ValueError, match=what):
        sweep_lib.Run(dataclasses.replace(sweep, **changes))
  assert log.programs == 0
  after = {p.name: p.read_bytes() for p in done[0].directory.iterdir()}
  assert after == before


def test_inputs_that_do_not_fit_are_refused(sweep, tmp_path):
  for changes, what in (
      (dict(buckets=((8, 20),)), 'widest bucket takes 8'),
      (dict(data=str(tmp_path / 'none.tsv')), 'No evaluation set'),
      (dict(quality='GSM8K'), 'has no number; end it with'),
      (dict(quality=['BLEU']), r"Unknown quality \['BLEU'\]; allowed: BLEU"),
      (dict(drafter='x'), 'No checkpoint at x')):
    with pytest.raises(ValueError, match=what):
      sweep_lib.Run(dataclasses.replace(
          sweep, output_dir=str(tmp_path / 'out'), **changes))
  for bad in (dict(seed=-1), dict(seed=2**32), dict(seed=True),
              dict(curves=CURVES[0]), dict(examples=0), dict(timed=0),
              dict(batch=.5), dict(timed_batch=0), dict(timed_batch=None),
              dict(trials=None), dict(buckets=((1, 5),)),
              dict(asking=asking.Asking), dict(asking='{source}')):
    with pytest.raises(ValueError):
      dataclasses.replace(sweep, **bad)
  assert not (tmp_path / 'out').exists()


def test_inputs_take_the_narrowest_bucket():
  narrow, wide = programs.Bucket(8, 9), programs.Bucket(16, 20)
  for length, want in ((3, narrow), (8, narrow), (9, wide), (16, wide)):
    assert programs.bucket_of(length, [wide, narrow]) == want
  with pytest.raises(ValueError, match='17 tokens; the widest bucket takes 16'):
    programs.bucket_of(17, [wide, narrow])


def test_rounds_predicted_from_the_texts_are_those_decoded(done):
  """Exactly at temperature 0, where nothing is drawn."""
  run, found = done
  rates = run.acceptance(lambda keys, **_: keys)
  rows = {row.key: row for row in found.rows if row.drafter}
  assert set(rates) == set(rows) == {x.key for x in found.predicted}
  said = {x.key: x.predicted for x in found.predicted}
  for key, row in rows.items():
    predicted = theory.tokens_per_call(rates[key], row.gamma)
    assert predicted == said[key] and 1 <= predicted <= 4
    if not row.temperature:
      assert predicted == pytest.approx(row.tokens_per_call)


def test_an_unfinished_sweep_predicts_nothing(done, tmp_path):
  run, _ = done
  other = sweep_lib.Run(dataclasses.replace(run.sweep,
                                            output_dir=str(tmp_path)))
  with pytest.raises(ValueError, match='No examples.jsonl .* Run the sweep'):
    other.acceptance(lambda keys, **_: keys)
  assert not list(tmp_path.iterdir())
  lines = (run.directory / sweep_lib.JOURNAL).read_text().splitlines(True)
  (tmp_path / sweep_lib.JOURNAL).write_text(lines[0])
  with pytest.raises(ValueError, match='24 decodes .* are missing; finish it'):
    other.acceptance(lambda keys, **_: keys)
