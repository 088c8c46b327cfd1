"""Fetching with stand-ins for apt-get and dpkg; the real ones if asked."""

import os
import shutil

import pytest

from spec_cascades.data import debian

APT = """\
#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
  *update*) {update} ;;
  *download*) touch foo_1%3a2.0_all.deb ;;
esac
"""
DPKG = '#!/bin/sh\nmkdir -p "$3/usr"\n'
FULL = 'for x in a_Packages a_Translation-en a_Translation-de; do ' \
    'touch "{cache}/apt/lists/$x"; done'


@pytest.fixture
def programs(tmp_path, monkeypatch):
  """Puts stand-ins on the path; returns a function that sets `update`."""

  def install(update):
    directory = tmp_path / 'bin'
    directory.mkdir(exist_ok=True)
    update = update.format(cache=tmp_path / 'cache')
    apt = APT.format(log=tmp_path / 'log', update=update)
    for name, text in (('apt-get', apt), ('dpkg', DPKG)):
      (directory / name).write_text(text)
      (directory / name).chmod(0o755)
    monkeypatch.setenv('PATH', f'{directory}:{os.environ["PATH"]}')
    return tmp_path / 'cache', tmp_path / 'log'

  return install


def test_indices_are_fetched_once(programs):
  cache, log = programs(FULL)
  found = debian.fetch_indices(cache)
  assert [x.name for x in found['de']] == ['a_Translation-de']
  assert debian.fetch_indices(cache) == found
  assert len(log.read_text().splitlines()) == 1
  debian.fetch_indices(cache, refresh=True)
  assert len(log.read_text().splitlines()) == 2


def test_the_machine_is_left_alone(programs):
  cache, log = programs(FULL)
  debian.fetch_indices(cache)
  words = log.read_text().split()
  for name in ('Dir::State::Lists', 'Dir::Cache', 'Dir::Cache::Archives'):
    assert any(x.startswith(f'{name}={cache}') for x in words)


def test_missing_translations_are_an_error(programs):
  cache, _ = programs('touch "{cache}/apt/lists/a_Packages"')
  with pytest.raises(debian.SourceError, match='no en, de index'):
    debian.fetch_indices(cache)


def test_failure_gives_the_reason_of_apt(programs):
  cache, _ = programs('echo "W: x" >&2; echo "E: no network" >&2; exit 100')
  with pytest.raises(debian.SourceError, match='code 100: E: no network'):
    debian.fetch_indices(cache)


def test_a_broken_extra_source_does_not_matter(programs):
  cache, _ = programs(FULL + '; exit 100')
  assert all(debian.fetch_indices(cache).values())


def test_package_is_unpacked_once(programs):
  cache, log = programs(FULL)
  root = debian.fetch_package('foo', cache)
  assert (root / 'usr').is_dir() and debian.fetch_package('foo', cache) == root
  assert log.read_text().count('download foo') == 1
  assert debian.package_version('foo', cache) == '1:2.0'
  assert debian.package_version('bar', cache) == 'unknown'


def test_two_may_unpack_one_package(programs, monkeypatch):
  """Neither has its files removed by the other; the first that ends has it."""
  cache, _ = programs(FULL)
  run = debian._run

  def meanwhile(args, **options):
    done = run(args, **options)
    if args[0] == 'dpkg':
      monkeypatch.setattr(debian, '_run', run)
      assert (debian.fetch_package('foo', cache) / 'usr').is_dir()
      assert os.path.isdir(f'{args[-1]}/usr')
    return done

  monkeypatch.setattr(debian, '_run', meanwhile)
  root = debian.fetch_package('foo', cache)
  assert (root / 'usr').is_dir() and os.listdir(root.parent) == ['foo']


def test_missing_programs_are_named(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(debian.SourceError, match='apt-get and dpkg not found'):
    debian.fetch_indices(tmp_path / 'cache')


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('apt-get'), reason='needs apt-get')
def test_real_indices_have_german(tmp_path):
  found = debian.fetch_indices(tmp_path)
  assert all(found.values())
  assert 'Description-de' in found['de'][0].read_text(encoding='utf-8')[:1000]
