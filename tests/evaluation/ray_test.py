"""Sweeps on a local Ray cluster of two workers, which are killed."""
import functools
import importlib.util
import signal
import time

import gin
import psutil
import pytest
import sweeping
from sweeping import EXAMPLES
from sweeping import POINTS
from sweeping import records

from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import points
from spec_cascades.evaluation import ray_cluster
from spec_cascades.evaluation import results
from spec_cascades.evaluation import sweep as sweep_lib

RAY = 'gin/executors/ray.gin'


def on_cluster(test):
  """Takes a minute; needs Ray."""
  missing = importlib.util.find_spec('ray') is None
  reason = 'needs ray: pip install -r requirements-ray.txt'
  return pytest.mark.slow(pytest.mark.skipif(missing, reason=reason)(test))


@pytest.fixture(scope='module')
def start(pair_dir, tmp_path_factory):
  return functools.partial(sweeping.start, pair_dir,
                           tmp_path_factory.mktemp('cache'))


@pytest.fixture(scope='module')
def whole(start, tmp_path_factory):
  """Rows of the sweep, run in one process that nobody kills."""
  out = tmp_path_factory.mktemp('whole')
  _, err = (process := start(out)).communicate()
  assert process.returncode == 0, err
  return deterministic(out)


def deterministic(out):
  return list(map(results.deterministic, results.read_rows(
      out / sweep_lib.RESULTS)))


def wait_for(process, out, count):
  """Until so many decodes are in the journal."""
  while len(records(out / sweep_lib.JOURNAL)) < count:
    assert process.poll() is None, process.communicate()
    time.sleep(.02)


def workers(process):
  """Of the cluster that a sweep has started."""
  try:
    return [x for x in psutil.Process(process.pid).children(recursive=True)
            if x.name().startswith('ray::_Worker')]
  except psutil.NoSuchProcess:
    return []


def finish(process, out):
  """Output and errors of a sweep that ends well, with every decode once."""
  text, errors = process.communicate()
  assert process.returncode == 0, errors
  seen = [(x['key'], x['example']) for x in records(out / sweep_lib.JOURNAL)]
  assert len(seen) == len(set(seen)) == EXAMPLES * POINTS
  return text, errors


@on_cluster
def test_begun_here_and_finished_by_workers_of_which_one_is_killed(
    start, whole, tmp_path):
  here = start(tmp_path)
  wait_for(here, tmp_path, 30)
  here.send_signal(signal.SIGKILL)
  here.communicate()
  before = len(records(tmp_path / sweep_lib.JOURNAL))
  there = start(tmp_path, RAY)
  wait_for(there, tmp_path, before + 40)
  both = workers(there)
  assert len(both) == 2
  both[0].kill()
  text, errors = finish(there, tmp_path)
  assert 'is lost: ActorDiedError' in errors and 'started again' in errors
  assert 'raylet' not in text + errors and 'Ray' not in text + errors
  assert deterministic(tmp_path) == whole


@on_cluster
def test_begun_by_workers_that_all_die_and_finished_here(
    start, whole, tmp_path):
  there = start(tmp_path, RAY, RESTARTS=0)
  wait_for(there, tmp_path, 40)
  for one in workers(there):
    one.kill()
  _, errors = there.communicate()
  last = errors.rstrip('\n').split('\n')[-1]
  assert there.returncode == 3 and last.startswith(
      'sweep.py: No worker is left.'), errors
  assert 'the same command goes on' in last and 'Traceback' not in errors
  assert 40 <= len(records(tmp_path / sweep_lib.JOURNAL)) < EXAMPLES * POINTS
  finish(start(tmp_path), tmp_path)
  assert deterministic(tmp_path) == whole


@on_cluster
@pytest.mark.parametrize('bindings,message', [
    (dict(RESOURCES={'TPU': 4}), 'take CPU 1, TPU 4 each; no node has that'),
    (dict(NUM_WORKERS=99), 'num_workers=99, each with CPU 1; allowed: at most'),
    (dict(ADDRESS='localhost:1'), "address='localhost:1', but no Ray cluster")])
def test_what_no_cluster_has_is_refused_in_one_line(
    start, tmp_path, bindings, message):
  process = start(tmp_path / 'out', RAY, **bindings)
  text, errors = process.communicate()
  assert process.returncode == 2 and message in errors
  assert not text and errors.count('\n') == 1, errors
  assert not (tmp_path / 'out').exists()


def test_without_ray_one_line_says_what_to_install(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match='-r requirements-ray.txt'):
    executors.Ray().check(sweep_lib.Sweep('x', ()))


def test_details_are_for_the_finished_sweep():
  for wanted in (dict(split=True), dict(inspected=3), dict(predicted=True)):
    made = sweep_lib.Sweep('x', (), executor=executors.Ray(), **wanted)
    with pytest.raises(ValueError, match='Ask the finished sweep'):
      sweep_lib.Run(made)


def test_an_executor_that_was_not_called_is_refused():
  with pytest.raises(ValueError, match=r'allowed: @executors.InProcess\(\)'):
    sweep_lib.Sweep('x', (), executor=executors.Ray)


def test_rules_can_be_sent_without_gin():
  """Gin's classes can not be pickled; options stay with the rule."""
  gin.parse_config('''
    from __gin__ import dynamic_registration
    from spec_cascades import baselines
    from spec_cascades import targets
    from spec_cascades.evaluation import points
    chow/points.Curve.rule = @targets.Chow
    points.Curve.rule = @baselines.OracleCascade
    baselines.OracleCascade.rule = @targets.OPT''')
  try:
    bound = ray_cluster.plain(gin.get_configurable(points.Curve)().rule)
    with gin.config_scope('chow'):
      chow = gin.get_configurable(points.Curve)().rule
    assert chow is not targets.Chow
    assert ray_cluster.plain(chow) is targets.Chow
  finally:
    gin.clear_config()
  assert bound.__name__ == 'OracleCascade' and bound.uses_q is True
  assert bound(alpha=.3) == baselines.OracleCascade(.3, rule=targets.OPT)
