"""Programs are judged by their tests, and can do nothing else."""
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import pytest

from spec_cascades.evaluation import confine, qualities, sandbox

POPEN = subprocess.Popen
HERE = platform.system() == 'Linux' and platform.machine() in confine.AUDIT
confined = pytest.mark.skipif(not HERE, reason='no seccomp filter here')
CALL = sandbox.Result('killed', 'forbidden system call')
NAMES = {'x86_64': dict(open=2, socket=41, clone=56, fork=57, vfork=58,
                        execve=59, kill=62, truncate=76, rename=82, mkdir=83,
                        creat=85, unlink=87, ptrace=101, setsid=112, prctl=157,
                        tgkill=234, unshare=272, prlimit64=302, seccomp=317,
                        memfd_create=319, bpf=321, execveat=322, io_uring=425,
                        clone3=435, openat2=437),
         'aarch64': dict(mkdirat=34, unlinkat=35, truncate=45, unshare=97,
                         ptrace=117, kill=129, tgkill=131, setsid=157,
                         prctl=167, socket=198, clone=220, execve=221,
                         prlimit64=261, seccomp=277, memfd_create=279, bpf=280,
                         execveat=281, io_uring=425, clone3=435, openat2=437)}


def verdict(machine, number, *arguments, audit=None):
  """What the filter says of a call: classic BPF, one instruction at a time."""
  data = {confine.NUMBER: number,
          confine.ARCHITECTURE: audit or confine.AUDIT[machine]}
  data |= {confine.argument(i): x for i, x in enumerate(arguments)}
  rows, at, value = confine.filter_of(machine), 0, None
  while True:
    code, true, false, k = rows[at]
    at += 1
    if code == confine.RETURN:
      return k
    if code == confine.LOAD:
      value = data[k]
    else:
      met = value == k if code == confine.EQUAL else bool(value & k)
      at += true if met else false


@pytest.mark.parametrize('machine', confine.AUDIT)
def test_the_filter_lets_through_what_is_listed(machine):
  calls = list(map(int, confine.CALLS[machine].split()[1::2]))
  assert len(set(calls)) == len(calls)
  assert {verdict(machine, x) for x in calls} == {confine.ALLOW}
  assert {verdict(machine, x) for x in NAMES[machine].values()} == {
      confine.KILL}
  assert verdict(machine, calls[0], audit=0x40000003) == confine.KILL
  assert verdict(machine, calls[0] | 0x40000000) == confine.KILL     # x32
  listed = {*calls, *(table[machine] for table in (
      confine.OPENAT, confine.FCNTL, confine.IOCTL, confine.EPOLL))}
  assert all(verdict(machine, x, 0, 2**31, 2**31) == confine.KILL
             for x in range(600) if x not in listed)


@pytest.mark.parametrize('machine', confine.AUDIT)
def test_the_filter_reads_arguments(machine):
  openat = lambda flags: verdict(machine, confine.OPENAT[machine], 0, 0, flags)
  assert openat(os.O_RDONLY | os.O_CLOEXEC) == confine.ALLOW
  for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND,
               os.O_TMPFILE, 1 << 31):
    assert openat(flag) == openat(flag | os.O_CLOEXEC) == confine.KILL
  for table, good, bad in (
      (confine.FCNTL, confine.FCNTL_COMMANDS, (4, 8, 10, 1024)),  # F_SETOWN...
      (confine.IOCTL, confine.IOCTL_REQUESTS, (0x5412,))):        # TIOCSTI
    assert {verdict(machine, table[machine], 0, x) for x in good} == {
        confine.ALLOW}
    assert {verdict(machine, table[machine], 0, x) for x in bad} == {
        confine.KILL}


@pytest.fixture
def traces(tmp_path, monkeypatch):
  """Where temporary files go, and the processes that were started."""
  started = []

  def start(*args, **kwargs):
    started.append(POPEN(*args, **kwargs))
    return started[-1]
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  monkeypatch.setattr(subprocess, 'Popen', start)
  yield
  assert not list(tmp_path.iterdir())
  for process in started:
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
      os.killpg(process.pid, 0)


@confined
@pytest.mark.parametrize('program,tests,want', [
    ('def f(x): return x + 1', 'assert f(1) == 2', sandbox.Result('passed')),
    ('def f(x): return x', 'assert f(1) == 2',
     sandbox.Result('failed', 'AssertionError')),
    ('def f(x) return', '', sandbox.Result('failed', 'SyntaxError')),
    ('x = 1 / 0', '', sandbox.Result('failed', 'ZeroDivisionError')),
    ('def f(): f()', 'f()', sandbox.Result('failed', 'RecursionError')),
    ('input()', '', sandbox.Result('failed', 'EOFError')),
    ('raise SystemExit(0)', 'assert 0', sandbox.Result('failed', 'SystemExit')),
    ('import os; os._exit(0)', 'x', sandbox.Result('failed', 'early exit')),
    ('print("x" * 10**6, flush=True)', '', sandbox.Result('passed')),
    ('x = "\\ud800 é"', 'assert len(x) == 3', sandbox.Result('passed'))])
def test_honest_programs_pass_or_fail(traces, program, tests, want):
  assert sandbox.run(program, tests) == want


@confined
def test_the_standard_library_is_there(traces):
  program = '''
import bisect, cmath, collections, copy, dataclasses, datetime, decimal
import fractions, functools, hashlib, heapq, itertools, json, math, operator
import random, re, socket, statistics, string, subprocess, sys, time, typing

@dataclasses.dataclass
class Point:
  x: 'int'

time.strptime('2020', '%Y'), datetime.datetime.now(), time.sleep(.01)
random.random(), hashlib.sha256(b'').hexdigest()
'''
  assert sandbox.run(program, 'assert Point(1).x == 1').passed


@confined
@pytest.mark.parametrize('program,want', [
    ('import time; time.sleep(60)', sandbox.Result('timeout', 'wall clock')),
    ('import os\nwhile True: os.fork()', CALL),
    ('import threading; threading.Thread(target=print).start()', CALL),
    ('bytearray(10**10)', sandbox.Result('killed', 'memory')),
    ('x = [0]\nwhile True: x += x', sandbox.Result('killed', 'memory')),
    ('import socket; socket.socket()', CALL),
    ('import socket; socket.create_connection(("127.0.0.1", 9))', CALL),
    ('import os; os.kill(os.getppid(), 9)', CALL),
    ('import os; os.system("true")', CALL),
    ('import os; os.execv("/bin/true", ["true"])', CALL),
    ('import subprocess; subprocess.run(["true"])', CALL),
    ('import ctypes; ctypes.CDLL(None).system(b"true")', CALL),
    ('import ctypes; ctypes.CDLL(None).fork()', CALL),
    ('import ctypes; ctypes.CDLL(None).socket(2, 1, 0)', CALL),
    ('import ctypes; ctypes.CDLL(None).prctl(22, 0, 0, 0, 0)', CALL),
    ('import resource as r; r.setrlimit(r.RLIMIT_CPU, (99, 99))', CALL),
    ('import os; os.setsid()', CALL), ('import os; os.setuid(0)', CALL),
    ('import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, 1)', CALL),
    ('import ctypes; ctypes.string_at(0)',
     sandbox.Result('killed', 'SIGSEGV'))])
def test_attacks_are_stopped(traces, program, want):
  start = time.monotonic()
  assert sandbox.run(program, seconds=1, memory=2**28) == want
  assert time.monotonic() - start < 2 * sandbox.WALL


@confined
def test_an_endless_loop_ends(traces):
  """By either clock: a busy machine may not give it a second in time."""
  assert sandbox.run('while True: pass', seconds=1) in (
      sandbox.Result('timeout', 'processor time'),
      sandbox.Result('timeout', 'wall clock'))
  deaf = 'import signal as s\ns.signal(s.SIGXCPU, s.SIG_IGN)\nwhile True: pass'
  assert sandbox.run(deaf, seconds=1) in (
      sandbox.Result('killed', 'SIGKILL'),
      sandbox.Result('timeout', 'wall clock'))


@confined
@pytest.mark.parametrize('attack', [
    'open({path!r}, "w")', 'open({path!r}, "a")', 'open({path!r}, "x")',
    'open("here", "w")', 'import pathlib; pathlib.Path({path!r}).touch()',
    'import os; os.mkdir({path!r})', 'import os; os.remove({kept!r})',
    'import os; os.rename({kept!r}, {path!r})', 'open({kept!r}, "r+")',
    'import os; os.symlink("x", {path!r})', 'import os; os.mkfifo({path!r})',
    'import os; os.truncate({kept!r}, 0)', 'import os; os.chmod({kept!r}, 0)',
    'import ctypes; ctypes.CDLL(None).creat({path!r}.encode(), 511)',
    'import ctypes; ctypes.CDLL(None).unlink({kept!r}.encode())'])
def test_no_file_is_written(traces, tmp_path_factory, attack):
  place = tmp_path_factory.mktemp('place')
  kept, path = place / 'kept', place / 'made'
  kept.write_text('content')
  before = kept.stat()
  assert sandbox.run(attack.format(path=str(path), kept=str(kept))) == CALL
  assert list(place.iterdir()) == [kept] and kept.read_text() == 'content'
  assert (kept.stat().st_mode, kept.stat().st_mtime) == (
      before.st_mode, before.st_mtime)


@confined
def test_a_program_sees_none_of_our_surroundings(traces, monkeypatch):
  """Neither variables nor files nor descriptors: 3 is the pipe."""
  monkeypatch.setenv('SECRET', 'x')
  with open(os.devnull) as held:
    os.set_inheritable(held.fileno(), True)
    assert sandbox.run('''
import os
opened = []
for i in range(32):
  try: opened.append((i, os.readlink(f'/proc/self/fd/{i}')))
  except OSError: pass
''', '''
assert 'SECRET' not in os.environ and os.listdir() == []
assert [i for i, _ in opened] == [0, 1, 2, 3], opened
assert {name for _, name in opened[:3]} == {os.devnull}
''') == sandbox.Result('passed')


@confined
def test_a_program_that_floods_the_pipe_does_not_pass(traces):
  program = '''
import os
for i in range(3, 9):
  try: os.write(i, b'passed \\n' * 10**5)
  except OSError: pass
'''
  assert sandbox.run(program, seconds=1).outcome == 'timeout'
  assert sandbox.run(program.replace('* 10**5', '') + 'os._exit(0)') == (
      sandbox.Result('failed', 'early exit'))


@confined
def test_an_interrupted_run_leaves_nothing(traces, monkeypatch):
  wait = POPEN.wait

  def interrupted(process, timeout=None):
    if timeout is not None:
      raise KeyboardInterrupt
    return wait(process)
  monkeypatch.setattr(POPEN, 'wait', interrupted)
  with pytest.raises(KeyboardInterrupt):
    sandbox.run('import time; time.sleep(60)')


@confined
def test_a_program_dies_with_the_process_that_asked_for_it():
  asking = subprocess.Popen([sys.executable, '-c', (
      'from spec_cascades.evaluation import sandbox\n'
      'sandbox.run("import time; time.sleep(60)")')])
  children = pathlib.Path(f'/proc/{asking.pid}/task/{asking.pid}/children')
  found = lambda: [int(x) for x in children.read_text().split()
                   if 'confine' in command(x)]
  wait_for(found)
  child, = found()
  wait_for(lambda: status(child) == 'S')         # asleep, the filter is on
  asking.kill()
  asking.wait()
  wait_for(lambda: status(child) in 'ZX')


def command(pid):
  return pathlib.Path(f'/proc/{pid}/cmdline').read_text()


def status(pid):
  """'S' asleep with a filter, 'R' not yet, 'Z' or 'X' gone."""
  try:
    text = pathlib.Path(f'/proc/{pid}/status').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return 'X'
  state = text.split('State:')[1].split()[0]
  return 'R' if state == 'S' and 'Seccomp:\t2' not in text else state


def wait_for(condition, seconds=60):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(.02)


def test_without_a_filter_nothing_runs(monkeypatch):
  monkeypatch.setattr(platform, 'system', lambda: 'Darwin')
  with pytest.raises(ValueError, match="can't be confined on Darwin .*; score"):
    sandbox.run('')


@confined
def test_a_kernel_that_refuses_is_said_to(tmp_path_factory, monkeypatch):
  """The script, asking for a mode that there is not."""
  script = tmp_path_factory.mktemp('script') / 'confine.py'
  source = pathlib.Path(confine.__file__).read_text()
  assert '(22, 2,' in source
  script.write_text(source.replace('(22, 2,', '(22, 99,'))
  monkeypatch.setattr(confine, '__file__', str(script))
  with pytest.raises(ValueError, match='refused to confine .* not run; allow'):
    sandbox.run('')


@confined
@pytest.mark.parametrize('line,wall,why', [
    ('exit 127', sandbox.WALL, 'exit code 127'),
    ('kill -STOP $$', .5, 'not within 0.5 s')])
def test_an_interpreter_that_does_not_start_is_said_to(
    tmp_path, monkeypatch, line, wall, why):
  """As one whose libraries are not found, or on a machine that is too busy."""
  program = tmp_path / 'python'
  program.write_text(f'#!/bin/sh\n{line}\n')
  program.chmod(0o755)
  monkeypatch.setattr(sys, 'executable', str(program))
  monkeypatch.setattr(sandbox, 'WALL', wall)
  with pytest.raises(ValueError, match=f'not start \\({why}\\), so no') as told:
    sandbox.run('', seconds=1)
  assert 'kernel refused' not in str(told.value)


@confined
def test_an_interpreter_finds_its_libraries(traces, monkeypatch):
  monkeypatch.setenv('LD_LIBRARY_PATH', '/nowhere', prepend=os.pathsep)
  test = 'assert os.environ["LD_LIBRARY_PATH"].startswith("/nowhere")'
  assert sandbox.run('import os', test) == sandbox.Result('passed')


@confined
def test_pass_at_1_is_of_code_and_all_tests():
  mbpp = qualities.make('MBPP')
  tests = ['assert f(1) == 1', 'assert f(2) == 4']
  texts = ['```python\ndef f(x):\n  return x * x\n```', 'def f(x): return x',
           '[BEGIN]\ndef f(x): return x ** 2\n[DONE]', '']
  parts = mbpp.parts(texts, [tests] * 4)
  assert parts.tolist() == [[100, 1], [0, 1], [100, 1], [0, 1]]
  assert mbpp(texts, [tests] * 4) == 50
