"""Fetches Debian package indices and packages without touching the system.

Everything goes through `apt-get` and `dpkg` by package name, with private list
and cache directories, so that the machine's own apt state, its languages and
its installed packages stay as they are. Root is not needed.
"""

from collections.abc import Sequence
import os
import pathlib
import shutil
import subprocess

from spec_cascades.data import files

LANGUAGES = ('en', 'de')
_PROGRAMS = ('apt-get', 'dpkg')


class SourceError(OSError):
  """A corpus source could not be fetched or read; the message is one line."""


def _require_programs():
  """Raises `SourceError` unless the Debian tools are on the path."""
  missing = [name for name in _PROGRAMS if shutil.which(name) is None]
  if missing:
    raise SourceError(
        f'{" and ".join(missing)} not found: the Debian sources are fetched '
        'with the tools of Debian or Ubuntu. Run this on such a system or '
        'container, or copy a finished --cache_dir from one.'
    )


def _run(args: Sequence[str], *, cwd: pathlib.Path | None = None) -> str:
  """Runs a program and returns its output, or raises a one-line error."""
  env = {**os.environ, 'LC_ALL': 'C'}
  done = subprocess.run(
      list(args), cwd=cwd, env=env, capture_output=True, text=True, check=False
  )
  if done.returncode:
    lines = (done.stderr or done.stdout).strip().splitlines() or ['no output']
    reasons = [x for x in lines if x.startswith('E:')] or lines
    raise SourceError(
        f'{args[0]} failed with exit code {done.returncode}: {reasons[0]}'
    )
  return done.stdout


def apt_options(cache_dir: pathlib.Path) -> list[str]:
  """The `-o` options that make apt-get work inside `cache_dir` only."""
  options = {
      'Dir::State::Lists': f'{cache_dir}/apt/lists',
      'Dir::Cache': f'{cache_dir}/apt',
      'Dir::Cache::Archives': f'{cache_dir}/apt/archives',
      'Acquire::Languages': ','.join(LANGUAGES),
      'Acquire::GzipIndexes': 'false',
      'APT::Sandbox::User': 'root',  # root's home is closed to `_apt`.
  }
  return [x for k, v in options.items() for x in ('-o', f'{k}={v}')]


def find_indices(cache_dir: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """Index files already in `cache_dir`: 'Packages', 'en' and 'de'."""
  lists = cache_dir / 'apt' / 'lists'
  found = {'Packages': sorted(lists.glob('*_Packages'))}
  for language in LANGUAGES:
    found[language] = sorted(lists.glob(f'*_Translation-{language}'))
  return found


def fetch_indices(
    cache_dir: pathlib.Path, *, refresh: bool = False
) -> dict[str, list[pathlib.Path]]:
  """Downloads the package and description indices unless they are there.

  Args:
    cache_dir: directory that receives `apt/lists`.
    refresh: download again even if a complete set is in the cache.

  Returns:
    Paths of the plain-text indices under the keys 'Packages', 'en' and 'de'.

  Raises:
    SourceError: if the tools are missing or an index could not be fetched.
  """
  found = find_indices(cache_dir)
  if all(found.values()) and not refresh:
    return found
  _require_programs()
  for name in ('lists', 'archives'):
    (cache_dir / 'apt' / name / 'partial').mkdir(parents=True, exist_ok=True)
  try:
    _run(['apt-get', *apt_options(cache_dir), 'update'])
  except SourceError:
    # One broken third-party source makes apt-get fail; the rest may be there.
    if refresh or not all(find_indices(cache_dir).values()):
      raise
  found = find_indices(cache_dir)
  absent = [name for name, paths in found.items() if not paths]
  if absent:
    raise SourceError(
        f'apt-get update brought no {", ".join(absent)} index: the configured '
        'apt sources need a Debian suite, which has Packages and Translation '
        'files. Add one to the apt sources and try again.'
    )
  return found


def fetch_package(name: str, cache_dir: pathlib.Path) -> pathlib.Path:
  """Downloads and unpacks (does not install) a package; returns its root.

  Raises:
    SourceError: if the tools are missing or the package is not available.
  """
  root = cache_dir / 'packages' / name
  if root.is_dir():
    return root
  _require_programs()
  fetch_indices(cache_dir)
  debs = cache_dir / 'debs'
  debs.mkdir(parents=True, exist_ok=True)
  if not list(debs.glob(f'{name}_*.deb')):
    _run(['apt-get', *apt_options(cache_dir), 'download', name], cwd=debs)
  root.parent.mkdir(parents=True, exist_ok=True)
  try:
    with files.appearing(root) as partial:
      partial.mkdir()
      _run(['dpkg', '-x', str(max(debs.glob(f'{name}_*.deb'))), str(partial)])
  except OSError:
    if not root.is_dir():               # else another process was faster
      raise
  return root


def package_version(name: str, cache_dir: pathlib.Path) -> str:
  """Version of a fetched package, from the name of its archive."""
  archive = max((cache_dir / 'debs').glob(f'{name}_*.deb'), default=None)
  if archive is None:
    return 'unknown'
  return archive.name.split('_')[1].replace('%3a', ':')
