"""A run for TensorBoard per finished point, whole, and never twice."""
import dataclasses

import fakesweep
import pytest

from spec_cascades import targets
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import sweep as sweep_lib
from spec_cascades.evaluation import tensorboard
from tests.evaluation import sweep_run_test

CURVES = (points_lib.Curve(targets.Chow, (.2, .5), (1.,)),)


@pytest.fixture(name='rows', scope='module')
def _rows():
  return fakesweep.make(limit=3, curves=CURVES).rows


def read(run):
  """Scalars by name, and events with hyperparameters, of a run's one file."""
  import tensorflow as tf
  path, = run.iterdir()
  scalars, settings = {}, 0
  for event in tf.compat.v1.train.summary_iterator(str(path)):
    for value in event.summary.value:
      if value.metadata.plugin_data.plugin_name == 'hparams':
        settings += value.tag == '_hparams_/session_start_info'
      else:
        assert event.step == 0 and value.tag not in scalars
        scalars[value.tag] = float(tf.make_ndarray(value.tensor))
  return scalars, settings


def test_each_point_has_a_run_with_its_figures(rows, tmp_path):
  points = fakesweep.points(CURVES)
  tensorboard.write(tmp_path, points, rows[:2])
  first = {path: path.stat().st_mtime_ns
           for path in tmp_path.rglob('events.*')}
  assert len(first) == 2
  tensorboard.write(tmp_path, points, rows)
  names = {row.key: tensorboard.run_name(row, points[row.key]) for row in rows}
  assert {p.name for p in (tmp_path / tensorboard.FOLDER).iterdir()} == set(
      names.values())
  for key, label in points_lib.file_names(points).items():
    assert names[key].startswith(f'{label}_')
  assert all(path.stat().st_mtime_ns == time for path, time in first.items())
  for row in rows:
    scalars, settings = read(tmp_path / tensorboard.FOLDER / names[row.key])
    want = {x: getattr(row, x) for x in tensorboard.SCALARS
            if getattr(row, x) is not None}
    assert scalars == pytest.approx(want, rel=1e-6) and settings == 1
    assert ('rejection_rate' in scalars) == (row.rejection_rate is not None)


@pytest.mark.parametrize('change', [
    dict(key='f' * 64), dict(sweep='t' * 64), dict(started='2027-01-01')])
def test_figures_that_another_sweep_left_are_not_this_ones(rows, tmp_path,
                                                           change):
  """Its other files were moved away; or it is measured again."""
  old, point = rows[0], fakesweep.points(CURVES)[rows[0].key]
  new = dataclasses.replace(old, quality=1., **change)
  for row in (old, new, new):
    tensorboard.write(tmp_path, {row.key: point}, [row])
  found = [read(run)[0]['quality']
           for run in (tmp_path / tensorboard.FOLDER).iterdir()]
  assert sorted(found) == pytest.approx(sorted([old.quality, 1.]))


def test_what_a_kill_left_is_no_run(rows, tmp_path):
  partial = tmp_path / f'{tensorboard.FOLDER}.partial'
  partial.mkdir()
  (partial / 'events.out.tfevents.torn').write_bytes(b'torn')
  points = fakesweep.points(CURVES)
  tensorboard.write(tmp_path, points, rows[:1])
  assert not partial.exists()
  run, = (tmp_path / tensorboard.FOLDER).iterdir()
  assert read(run)[0]['quality'] == pytest.approx(rows[0].quality)


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
  monkeypatch.setattr(tensorboard, 'NEEDED', ('clu', 'no_such_package'))
  with pytest.raises(ValueError, match='no_such_package is not installed'):
    sweep_lib.Run(sweep_lib.Sweep(str(tmp_path), CURVES, tensorboard=True))


def test_a_sweep_writes_them_and_a_finished_one_catches_up(pair_dir, tmp_path):
  chosen = sweep_lib.Sweep(
      str(tmp_path), CURVES[:1], str(pair_dir / 'verifier'),
      str(pair_dir / 'drafter'), examples=2, gamma=3, buckets=((80, 20),),
      tensorboard=True, predicted=False)
  found = sweep_lib.Run(chosen)(sweep_run_test.Bar)
  runs = {p: [x.name for x in p.iterdir()]
          for p in (tmp_path / tensorboard.FOLDER).iterdir()}
  assert len(runs) == len(found.rows) == 4
  assert all(len(names) == 1 for names in runs.values())
  gone = min(runs)
  next(gone.iterdir()).unlink()
  gone.rmdir()
  sweep_lib.Run(chosen)(sweep_run_test.Bar)
  again = {p: [x.name for x in p.iterdir()]
           for p in (tmp_path / tensorboard.FOLDER).iterdir()}
  assert set(again) == set(runs) and len(again[gone]) == 1
  assert all(again[p] == runs[p] for p in runs if p != gone)
  # Whether it is written is no part of what a sweep is.
  sweep_lib.Run(dataclasses.replace(chosen, tensorboard=False))
