"""Several processes of one command: joined, alike, and none left behind."""
import json
import signal
import subprocess
import sys

import jax
import pytest

import processes
from spec_cascades import fatal
from spec_cascades import hosts

PLACE = 'localhost:1234'
CASES = {
    'nothing': (dict(), {}, None),
    'flags': (dict(coordinator=PLACE, num_processes=3, process_id=2), {},
              (PLACE, 3, 2)),
    'variables': (dict(), dict(JAX_COORDINATOR_ADDRESS=PLACE,
                               JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='1'),
                  (PLACE, 2, 1)),
    'flags first': (dict(process_id=0), dict(
        JAX_COORDINATOR_ADDRESS=PLACE, JAX_NUM_PROCESSES='2',
        JAX_PROCESS_ID='1'), (PLACE, 2, 0)),
    'one process': (dict(coordinator=PLACE, num_processes=1, process_id=0), {},
                    None),
    'found out': (dict(coordinator='auto'), {}, (None, None, None)),
    'a pod': (dict(), dict(TPU_WORKER_HOSTNAMES='a,b'), (None, None, None)),
    'one host of TPUs': (dict(), dict(TPU_WORKER_HOSTNAMES='a'), None)}


@pytest.mark.parametrize('name', CASES)
def test_flags_then_variables_then_what_jax_finds_out(name):
  given, environ, want = CASES[name]
  every = {**dict(coordinator=None, num_processes=None, process_id=None),
           **given}
  assert hosts._completed(environ, **every) == want


@pytest.mark.parametrize('given,what', [
    (dict(coordinator=PLACE), 'num_processes and process_id must be given'),
    (dict(coordinator='auto', process_id=1), 'process_id=1; allowed: .*alone'),
    (dict(coordinator=':1234', num_processes=2, process_id=0), 'HOST:PORT'),
    (dict(coordinator='h:99999', num_processes=2, process_id=0), '65535'),
    (dict(num_processes=2, process_id=0), 'JAX_COORDINATOR_ADDRESS'),
    (dict(coordinator=PLACE, num_processes=2, process_id=2), 'process_id'),
    (dict(coordinator=PLACE, num_processes=0, process_id=0), 'num_processes'),
    (dict(coordinator=PLACE, num_processes='x', process_id=0), "'x'"),
    (dict(coordinator='localhost', num_processes=2, process_id=0),
     "'localhost'; allowed: HOST:PORT")])
def test_what_can_not_be_is_refused_before_joining(given, what):
  with pytest.raises(ValueError, match=what):
    hosts.start(**given, environ={})
  assert hosts.count() == 1 and hosts.first()


@pytest.mark.parametrize('given,error,what', [
    (dict(coordinator='auto'), ValueError('coordinator_address should be'),
     'auto did not find other processes (coordinator_address should be)'),
    (dict(coordinator='auto'), RuntimeError('Deadline\nexceeded'),
     'in 0 s (Deadline exceeded); check that every host'),
    (dict(coordinator=PLACE, num_processes=2, process_id=0),
     RuntimeError('in use'), f'in 0 s (in use); check that every host runs the '
     f'same command, and the coordinator {PLACE}.')])
def test_a_failed_join_says_no_time_that_was_not_waited(given, error, what,
                                                        monkeypatch):
  def fail(*args, **rest):
    raise error
  monkeypatch.setattr(jax.distributed, 'initialize', fail)
  monkeypatch.setattr(jax.config, 'update', lambda *pair: None)
  monkeypatch.setattr(hosts, '_explain', lambda: None)
  kind = ValueError if isinstance(error, ValueError) else ConnectionError
  with pytest.raises(kind) as raised:
    hosts.start(**given, environ={})
  assert what in str(raised.value) and '\n' not in str(raised.value)
  assert '300' not in str(raised.value)


def test_an_error_of_a_collective_is_explained(monkeypatch):
  broken = jax.errors.JaxRuntimeError(
      'INTERNAL: Gloo all-reduce failed: Connection closed by peer\nmore')
  assert hosts.cut_off(broken) is None            # of one process alone
  monkeypatch.setattr(hosts, 'count', lambda: 4)
  line = hosts.cut_off(broken)
  assert line.startswith('process 0 of 4 stops') and '\n' not in line
  assert 'Connection closed' in line and 'The same command goes on' in line
  assert hosts.cut_off(jax.errors.JaxRuntimeError('out of memory')) is None
  assert hosts.cut_off(RuntimeError('connection')) is None


LOG = '''bar 1\rbar 2\rW line of our own
E1123 06:58:47.1 1 coordination_service_agent.cc:289] Polled an error
F1123 06:58:47.4 1 client.h:80] {} detected fatal errors. absl::Status: {}
*** Check failure stack trace: ***
    @     0x7f4307140634  absl::lts_20260107::log_internal::LogMessage::Send()
'''


@pytest.mark.parametrize('status,want', [
    ('UNAVAILABLE: Failed to send. Either the leader task was', 'process 0'),
    ('UNAVAILABLE: The following tasks are unhealthy (stopped sending '
     'heartbeats):\n3\nThe tasks have crashed.', 'process 3 has given no')])
def test_a_page_of_text_becomes_a_line(status, want):
  done = subprocess.run(
      [sys.executable, '-P', '-S', fatal.__file__, 'sweep.py'], check=True,
      input=LOG.format(fatal.END.decode(), status), capture_output=True,
      text=True)
  *ours, line = done.stderr.split('\n')[:-1]
  assert ours == ['bar 1', 'bar 2', 'W line of our own']
  assert line.startswith('sweep.py: stopped') and want in line
  assert line.endswith('The same command goes on.')


def test_the_line_is_below_a_bar():
  log = LOG.replace('W line of our own\n', '').format(
      fatal.END.decode(), 'heartbeats):\n3\n')
  done = subprocess.run(
      [sys.executable, '-P', '-S', fatal.__file__, 'sweep.py'], check=True,
      input=log.encode(), capture_output=True)
  assert done.stderr.startswith(b'bar 1\rbar 2\r\nsweep.py: stopped, ')


def test_what_is_no_end_is_passed_on():
  text = 'one\nE1123 06:58:47.1 1 coordination_service.cc:2] odd\ntwo\nthree'
  done = subprocess.run(
      [sys.executable, '-P', '-S', fatal.__file__, 'x'], check=True, text=True,
      input=text, capture_output=True)
  assert done.stderr == text


TALK = '''
import json, sys, time
import jax
import numpy as np
from spec_cascades import hosts
from spec_cascades.models import pages
hosts.start()
weights = pages.Piece(640).put(np.arange(9.))
board = hosts.Board('b')
mine = [board.draw() for _ in range(3)]
board.put(f'said/{hosts.index()}', mine)
everybody = hosts.gathered(dict(me=hosts.index()))
out = dict(index=hosts.index(), count=hosts.count(), first=hosts.first(),
           everybody=everybody, mine=mine, said=hosts.said(lambda: 'only once'),
           devices=jax.device_count(), local=jax.local_device_count(),
           weights=float(jax.jit(lambda x: x.sum())(weights)))
hosts.barrier('read')
if hosts.first():
  out['board'], out['again'] = board.collect('said'), board.collect('said')
print(json.dumps(out), flush=True)
if sys.argv[1:]:
  time.sleep(200)
hosts.finish()
'''


APART = '''
import sys
sys.path.insert(0, 'scripts')
import _cli, jax
from spec_cascades import hosts
def initialize(*args, **kwargs):
  raise {}
jax.distributed.initialize = initialize
_cli.run(lambda args: hosts.start('localhost:1', 2, 1))
'''


@pytest.mark.parametrize('error,code', [
    ("RuntimeError('DEADLINE_EXCEEDED: Barrier timed\\nout')", 3),
    ("OSError('metadata')", 3), ("ValueError('no coordinator')", 2)])
def test_others_that_do_not_come_are_no_bad_input(error, code):
  done = subprocess.run(
      [sys.executable, '-c', APART.replace('{}', error)], text=True,
      cwd=processes.ROOT, capture_output=True)
  assert done.returncode == code, done.stderr
  assert done.stderr.count('\n') == 1, done.stderr
  assert 'did not come together' in done.stderr


def test_two_processes_talk():
  first, second = [json.loads(out) for out, _ in processes.finish(
      processes.start(2, '-c', TALK, devices=2))]
  assert (first['index'], second['index']) == (0, 1)
  assert first['first'] and not second['first'] and first['count'] == 2
  for one in (first, second):
    assert one['everybody'] == [dict(me=0), dict(me=1)]
    assert one['said'] == 'only once'
    assert (one['devices'], one['local'], one['weights']) == (4, 2, 36)
  assert sorted(first['mine'] + second['mine']) == list(range(6))
  assert first['board'] == [first['mine'], second['mine']]
  assert first['again'] == []


FOLDER = '''
import os, sys
from spec_cascades import hosts
hosts.start()
try:
  hosts.folder('model_dir', sys.argv[1])
  hosts.folder('model_dir', sys.argv[2] + os.environ['JAX_PROCESS_ID'])
except ValueError as error:
  print(error)
hosts.finish()
'''


def test_a_folder_that_is_not_shared_is_refused_by_all(tmp_path):
  for out, _ in processes.finish(processes.start(
      2, '-c', FOLDER, tmp_path / 'one', tmp_path / 'own')):
    assert out.startswith(f'model_dir={tmp_path}/own')
    assert 'of process 1 is another folder than that of process 0' in out
  assert not list((tmp_path / 'one').iterdir())
  assert not list((tmp_path / 'own0').iterdir())


def test_a_bucket_is_no_folder():
  with pytest.raises(ValueError, match='gs://b/run; allowed: a folder. Mount'):
    hosts.folder('model_dir', 'gs://b/run')


PARTED = '''
import json
from spec_cascades import hosts
hosts.start()
def made(i):
  if i == 3:
    raise ValueError(f'{i} is wrong')
  return [hosts.index(), i]
out = [hosts.parted(3, made)]
for size in (5, 2 + hosts.index()):
  try:
    hosts.parted(size, made)
  except ValueError as error:
    out.append(str(error))
print(json.dumps(out), flush=True)
hosts.finish()
'''


def test_each_of_two_processes_makes_its_part():
  for out, _ in processes.finish(processes.start(2, '-c', PARTED)):
    parts, wrong, unlike = json.loads(out)
    assert parts == [[0, 0], [1, 1], [0, 2]]
    assert wrong == '3 is wrong'
    assert unlike.startswith('Processes differ in number of texts: 2, 3; ')
  assert hosts.parted(2, str) == ['0', '1']         # of one process


@pytest.mark.parametrize('victim', [
    0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_death_ends_the_other_within_a_minute_in_one_line(victim):
  both = processes.start(2, '-c', TALK, 'wait')
  for process in both:
    process.stdout.readline()
  both[victim].send_signal(signal.SIGKILL)
  err, = processes.stopped([both[1 - victim]])
  both[victim].communicate()
  assert err.count('\n') == 1, err
  assert f'process {victim}' in err and 'The same command goes on' in err
