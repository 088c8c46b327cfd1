"""What the launcher refuses before it asks for slices, which cost money."""
from __future__ import annotations

import argparse
import ast
import math
import os
import pathlib
import posixpath
import re
import sys
from typing import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import _cli  # noqa: E402
import slices as lib  # noqa: E402
import sweep as sweep_script  # noqa: E402

RUNS = ('run', 'sweep')                # actions with a sweep behind --
SETS_UP = ('setup', 'sweep')           # actions that copy the sources
MESH = 'mesh.gin'                      # of gin/executors/


def numbers(flags: argparse.Namespace) -> None:
  """Refuses counts and seconds that can't be."""
  for name, low, what in (('slices', 1, '1 or more'),
                          ('restarts', 0, '0 or more')):
    if (value := getattr(flags, name)) < low:
      raise ValueError(f'Got --{name} {value}; allowed: {what}.')
  for name in ('poll', 'collect_every'):
    if not 0 < (value := getattr(flags, name)) < math.inf:
      raise ValueError(f'Got --{name} {value}; allowed: seconds, more than 0.')


def sweep(flags: argparse.Namespace, rest: Sequence[str],
          one: lib.Slice) -> int:
  """Refuses what scripts/sweep.py would refuse on a host, as far as is seen.

  Returns how many devices decode together.

  Args:
    flags: Of the launcher.
    rest: What goes to scripts/sweep.py.
    one: A slice.
  """
  if wrong := [x for x in flags.env if not re.match(r'[A-Za-z_]\w*=', x)]:
    raise ValueError(f'Got --env {wrong[0]!r}; allowed: NAME=VALUE.')
  if flags.action not in RUNS:
    return 1
  if not rest:
    raise ValueError('Nothing to run; give the flags of scripts/sweep.py '
                     'behind --.')
  given, bindings = _cli.parse(sweep_script.parser(), rest)
  files = given.gin_file or [given.config]
  read = dict.fromkeys(files)
  _committed(*files)
  for job in sweep_script.named(given, bindings):
    for name, value in _written(*job, read).items():
      _collected(name, value)
  _committed(*list(read)[len(files):])
  if flags.slices > 1 and given.config:
    raise ValueError(f'Got --slices {flags.slices} with --config {given.config}'
                     '; allowed: one of the two, since --gin_file says that '
                     'workers of Ray decode. Give a sweep as a --gin_file.')
  if flags.slices > 1 and given.profile:
    raise ValueError(f'Got --slices {flags.slices} with --profile; allowed: '
                     'one of the two, since workers of Ray are not traced.')
  if given.profile and not _under_runs(given.profile):
    raise ValueError(f'Got --profile {given.profile!r}; allowed: a folder '
                     'under runs/, which is what is collected.')
  devices = dict(x.split('=', 1) for x in flags.env).get('DEVICES', '1')
  if flags.slices > 1 and devices != '1':
    raise ValueError(
        f'Got --slices {flags.slices} with DEVICES={devices}; allowed: one of '
        f'the two. Name a mesh by --gin_file=gin/executors/{MESH}.')
  most = 1
  for job in sweep_script.named(given, bindings):
    said, count = _meshed(devices, _written(*job))
    _fits(one, said, count)
    if flags.slices > 1 and not said:
      raise ValueError('The sizes of the mesh can not be read off; give them '
                       'as --gin.DATA=N and --gin.MODEL=N.')
    most = max(most, count)
  if flags.slices > 1:
    _worker(one, said, most)
  return most


def _meshed(devices: str, written: dict[str, str]) -> tuple[str, int]:
  """What says how many devices a process decodes on, and how many."""
  said = {name.rpartition('/')[2]: value for name, value in written.items()}
  mesh = {'DEVICES': devices, 'DATA': '1', 'MODEL': '1'}
  for name in ('DATA', 'MODEL'):
    value = said.get(f'meshes.Mesh.{name.lower()}', f'%{name}')
    mesh[name] = said.get(name, '1') if value == f'%{name}' else value
  if any(re.fullmatch(r'\d+', x) is None for x in mesh.values()):
    return '', 1                       # the sweep itself will say so
  count = {name: int(x) for name, x in mesh.items()}
  if count['DEVICES'] > 1:
    return f'DEVICES={devices}', count['DEVICES']
  return (f'DATA={mesh["DATA"]} and MODEL={mesh["MODEL"]}',
          count['DATA'] * count['MODEL'])


def _fits(one: lib.Slice, said: str, devices: int) -> None:
  own = one.devices // one.hosts
  if devices > own and devices != one.devices:
    every = f', or {one.devices}, for a mesh of all hosts' * (one.hosts > 1)
    raise ValueError(
        f'Got {said} on a {one.kind}, whose hosts have {own} devices each; '
        f'allowed: up to {own}{every}.')


def _worker(one: lib.Slice, said: str, devices: int) -> None:
  """Refuses meshes that no worker of Ray has: of chips, or of a whole slice."""
  whole = one.devices if one.hosts > 1 else 0
  few = {n * one.devices // one.chips for n in (1, 2, one.chips)
         if n <= one.chips and (one.hosts == 1 or n < 3)}
  if devices not in (allowed := sorted({1, *few, whole} - {0})):
    raise ValueError(
        f'Got {said} on several slices of {one.kind}; allowed for a worker of '
        f'Ray: {", ".join(map(str, allowed))} devices.')


def _committed(*paths: str) -> None:
  """Refuses files that HEAD, which is what hosts get, does not have."""
  git = lambda *args: lib.Gcloud()(['-C', str(_cli.ROOT), *args], 'git')
  for path in paths:
    ended = git('cat-file', '-e', f'HEAD:{posixpath.normpath(path)}')
    if ended.code:
      raise ValueError(f'{path} is not in HEAD, which is what hosts get; '
                       'commit it here first '
                       f'({" ".join(ended.lines)[:200]}).')
    if git('diff', '--quiet', 'HEAD', '--', path).code:
      print(f'# {path} has changes that are not committed; hosts get that of '
            'HEAD')


def head(flags: argparse.Namespace) -> str:
  """The commit that hosts get, where they are set up."""
  if flags.dry_run or flags.action not in SETS_UP:
    return 'HEAD'
  return lib.Gcloud().done(['-C', str(_cli.ROOT), 'rev-parse', 'HEAD'],
                           'git').split()[-1]


def _written(files: Sequence[str], bindings: Sequence[str],
             seen: dict[str, None] | None = None) -> dict[str, str]:
  """The last value that each name gets, as text, in files and bindings.

  Args:
    files: Of gin.
    bindings: Of the command line.
    seen: Gets the files, and what they include.
  """
  found, seen = {}, {} if seen is None else seen

  def read(path, *above):
    if path in above:
      return                           # gin will say so
    seen[path] = None
    place = pathlib.Path(path)
    place = place if place.is_file() else _cli.ROOT / path
    if not place.is_file():
      return                           # told where it is looked for
    for line in place.read_text(encoding='utf-8').splitlines():
      if other := re.match(r"""include\s+['"](.+)['"]""", line):
        read(other[1], path, *above)
      elif one := re.match(r'([\w./]+)\s*=\s*(.+)', line):
        found[one[1]] = _uncommented(one[2])
  for path in files:
    read(path)
  found.update(x.split(' = ', 1) for x in bindings)
  return found


def _uncommented(value: str) -> str:
  """A literal without what is said behind it; else the text as it is."""
  try:
    return repr(ast.literal_eval(value))
  except (ValueError, SyntaxError):
    return value.partition(' #')[0].rstrip()


def _collected(name: str, value: str) -> None:
  """Refuses an OUTPUT_DIR outside of runs/, which is what is copied."""
  if name.rpartition('.')[2].lower() != 'output_dir':
    return
  try:
    folder = str(ast.literal_eval(value))
  except (ValueError, SyntaxError):    # another name's value
    return
  if not _under_runs(folder):
    raise ValueError(f'Got {name} {folder!r}; allowed: a folder under runs/, '
                     'which is what is collected.')


def _under_runs(folder: str) -> bool:
  return posixpath.normpath(folder).split('/')[0] == 'runs'


def output(flags: argparse.Namespace) -> None:
  """Makes --output where results will come, unless nothing is to be run."""
  path = pathlib.Path(flags.output).expanduser()
  if flags.action not in (*RUNS, 'collect'):
    return
  why = 'it is no directory' if path.exists() and not path.is_dir() else None
  if why is None and not flags.dry_run:
    try:
      path.mkdir(parents=True, exist_ok=True)
      why = None if os.access(path, os.W_OK) else 'it is read-only'
    except OSError as error:
      why = error.strerror
  if why:
    raise ValueError(f'Got --output {flags.output!r}; allowed: a directory to '
                     f'write ({why}).')
