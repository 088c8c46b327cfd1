"""The environment that the scripts make: whole, or made again."""
import pathlib
import stat
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'
# Plays Python: says what it is asked to do, and makes an environment of itself.
PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
  "-m venv --clear .venv")
    mkdir -p .venv/bin; cp "{good}" .venv/bin/python;;
  "-m pip --version") exit {pip};;
esac
"""


def fake(path, log, good, pip):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(PYTHON.format(log=log, good=good, pip=pip))
  path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize('there, made', [
    (None, 1), (0, 0), (1, 1)], ids=['none', 'whole', 'without pip'])
def test_an_environment_that_was_interrupted_is_made_again(tmp_path, there,
                                                           made):
  log, good = tmp_path / 'log', tmp_path / 'python'
  fake(good, log, good, 0)
  if there is not None:
    fake(tmp_path / '.venv/bin/python', log, good, there)
  for name in ('requirements.txt', 'pyproject.toml'):
    (tmp_path / name).write_text('')
  run = lambda: subprocess.run(
      ['bash', '-euc', f'. {SCRIPTS}/setup.sh requirements.txt'],
      cwd=tmp_path, env=dict(PATH='/usr/bin:/bin', PYTHON=str(good)),
      capture_output=True, text=True, check=True)
  assert 'installing requirements.txt' in run().stdout
  said = log.read_text().splitlines()
  assert said.count('-m venv --clear .venv') == made
  installed = [x for x in said if x.startswith('-m pip install')]
  assert len(installed) == 2
  assert run().stdout == ''                    # once


@pytest.mark.parametrize('version, allowed', [
    ((3, 10, 9, 'final', 0), False), ((3, 11, 0, 'final', 0), True),
    ((3, 11, 0, 'candidate', 1), False), ((3, 13, 9, 'final', 0), True),
    ((3, 14, 0, 'final', 0), False)], ids=str)
def test_another_python_is_refused_in_one_line(tmp_path, version, allowed):
  path = tmp_path / 'python'
  path.write_text(f"""#!/bin/sh
case $1 in
  -c) exec {sys.executable} -c "import sys; sys.version_info = {version}; $2";;
  -V) echo Python of old;;
  *) exit 9;;
esac
""")
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  done = subprocess.run(
      ['bash', '-euc', f'. {SCRIPTS}/setup.sh requirements.txt'], cwd=tmp_path,
      env=dict(PATH='/usr/bin:/bin', PYTHON=str(path)), capture_output=True,
      text=True)
  if allowed:
    assert done.returncode == 9 and not done.stderr    # to make .venv
  else:
    assert done.returncode == 2 and not (tmp_path / '.venv').exists()
    assert done.stderr.startswith(f'setup: {path} is Python of old; a final ')
    assert done.stderr.count('\n') == 1
