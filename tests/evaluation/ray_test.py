"""Sweeps on a local Ray cluster of two workers, which are killed."""
import functools
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time

import gin
import processes
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


MESH = 'gin/executors/mesh.gin'


def on_a_mesh(out):
  """Rows but for the names of the mesh's own points."""
  return [{k: x for k, x in row.items() if k not in ('key', 'sweep')}
          for row in deterministic(out)]


@on_cluster
def test_workers_with_a_mesh_each_give_the_rows_of_one_device(
    start, whole, tmp_path, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', os.environ.get('XLA_FLAGS', '') +
                     ' --xla_force_host_platform_device_count=2')
  there, here = tmp_path / 'there', tmp_path / 'here'
  finish(start(there, RAY, MESH, NUM_WORKERS=1), there)
  without = [{k: x for k, x in row.items() if k not in ('key', 'sweep')}
             for row in whole]
  assert on_a_mesh(there) == without
  finish(start(here, MESH), here)               # the same points, the same keys
  assert deterministic(here) == deterministic(there)


WAIT = '''
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
while sum(x['Alive'] for x in ray.nodes()) < int(sys.argv[2]):
  time.sleep(.1)
'''


@pytest.fixture
def slices(monkeypatch):
  """Two slices of two hosts each, and a head: their address and processes."""
  monkeypatch.setenv('RAY_AUTH_MODE', 'disabled')
  port = processes.free_port()
  place, nodes = f'127.0.0.1:{port}', []

  def node(*flags):
    nodes.append(subprocess.Popen(
        [sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block',
         '--disable-usage-stats', *flags], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True))
  try:
    node('--head', f'--port={port}', '--num-cpus=0',
         '--include-dashboard=false')
    processes.wait_for(functools.partial(_answers, port), *nodes)
    for i in range(4):
      node(f'--address={place}', '--num-cpus=1', f'--labels={ray_cluster.SLICE}'
           f'=s{i // 2},{ray_cluster.HOST}={i % 2}')
      subprocess.run(                  # one machine starts one at a time
          [sys.executable, '-c', WAIT, place, str(i + 2)], check=True,
          timeout=120)
    yield place, nodes
  finally:
    for one in [x for node in nodes for x in _below(node)]:
      one.kill()


def _answers(port):
  with socket.socket() as found:
    return not found.connect_ex(('127.0.0.1', port))


def _below(process):
  try:
    found = psutil.Process(process.pid)
    return [*found.children(recursive=True), found]
  except psutil.NoSuchProcess:
    return []


@on_cluster
def test_workers_of_two_hosts_each_of_which_one_is_killed(
    start, whole, tmp_path, slices):
  """A slice's hosts decode each text together; without one, it starts anew."""
  address, nodes = slices
  place = dict(ADDRESS=address, HOSTS=2, MODEL=2)
  process = start(tmp_path, RAY, MESH, **place)
  wait_for(process, tmp_path, 40)
  actors = [x for node in nodes for x in _below(node)
            if x.name().startswith('ray::_Worker')]
  assert len(actors) == 4
  actors[1].kill()
  _, errors = finish(process, tmp_path)
  assert errors.count('is lost: ') == 1 and 'started again' in errors, errors
  without = [{k: x for k, x in row.items() if k not in ('key', 'sweep')}
             for row in whole]
  assert on_a_mesh(tmp_path) == without
  refused = start(tmp_path / 'no', RAY, MESH, **{**place, 'NUM_WORKERS': 3})
  _, errors = refused.communicate()
  assert refused.returncode == 2 and errors.count('\n') == 1
  assert 'num_workers=3 of 2 hosts, each of which takes CPU 1;' in errors
  assert 'at most 2, since the nodes have ' in errors
  assert errors.count('CPU 1 (host ') == 4 and '(host 1 of s0)' in errors


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


@on_cluster
def test_a_worker_that_fails_at_its_start_is_one_line(
    start, tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'nonesuch')        # the workers', too
  process = start(tmp_path / 'out', RAY)
  text, errors = process.communicate()
  assert process.returncode == 3 and not text
  assert errors.startswith('sweep.py: A worker could not be started: ')
  assert 'nonesuch' in errors and errors.count('\n') == 1, errors


@on_cluster
@pytest.mark.parametrize('bindings,message', [
    (dict(MODEL=99), 'A worker: Got a mesh of data=1, model=99, which takes'),
    (dict(HOSTS=2, MODEL=3, ADDRESS='auto'),
     'workers of 2 hosts and a mesh of 3 devices')])
def test_a_mesh_that_no_worker_has_is_refused_in_one_line(
    start, tmp_path, bindings, message):
  process = start(tmp_path / 'out', RAY, MESH, **bindings)
  text, errors = process.communicate()
  assert process.returncode == 2 and message in errors, errors
  assert not text and errors.count('\n') == 1, errors


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
