"""Measures quality and latency of rules at thresholds; draws the frontier.

Examples:
  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/sweep.py --config=configs/gammas.py
The same command goes on where a sweep was stopped; given twice at a time, or on
several machines of a kind that share OUTPUT_DIR, it shares the work. Hosts that
share no files are joined by --coordinator, --num_processes and --process_id.
"""
from __future__ import annotations

import argparse
import functools
import importlib.util
import pathlib
import sys
import time
from typing import Any, Callable, Mapping, Sequence

import _cli

Job = tuple[Sequence[str], list[str]]     # gin files, and bindings


def parser() -> _cli.Parser:
  """Of this script's flags."""
  found = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
      epilog='Any name in the gin file can be set with --gin.NAME=VALUE, for '
      'example --gin.OUTPUT_DIR=runs/other --gin.EXAMPLES=50')
  add_sweeps(found)
  found.add_argument('--profile', metavar='DIR', help='write a trace for '
                     'xprof there, and say where the time went; for a few '
                     'EXAMPLES, not with Ray; of several processes the first '
                     'is traced')
  _cli.add_hosts(found)
  return found


def main(args: Sequence[str]) -> None:
  flags, bindings = _cli.parse(parser(), args)
  jobs, wrong = [], None
  try:
    jobs = named(flags, bindings)
  except ValueError as error:          # the others are told, too
    wrong = error
  if _cli.named_hosts(flags) or all(map(joins, jobs)):
    _cli.join(flags, mesh=max(map(devices, jobs), default=1))
  if wrong:
    raise wrong
  if flags.profile:
    check_profile(flags.profile, jobs)
  if jobs[1:]:               # before the first one compiles anything
    check_all(jobs)
  failures = []
  for number, job in enumerate(jobs, 1):
    if number > 1:      # programs take memory maps, of which there are 65,530
      import jax  # pylint: disable=g-import-not-at-top
      jax.clear_caches()
    try:
      failures += measure(*job, profile=flags.profile)
    except ValueError as error:       # those behind it may run
      # Not where other processes may wait for this one in an exchange.
      if not jobs[1:] or described(*job).mesh.spans:
        raise
      print(f'sweep {number} of {len(jobs)}: {error}', file=sys.stderr)
      failures.append(str(error))
  if failures:
    raise ValueError(f'Failures: {len(failures)}; the first is '
                     f'{failures[0]} The same command tries them again.')


def check_profile(directory: str, jobs: Sequence[Job]) -> None:
  """Reads no models; ValueError if there would be no trace of a sweep."""
  # pylint: disable=g-import-not-at-top
  from spec_cascades import hosts
  from spec_cascades.evaluation import executors
  from spec_cascades.evaluation import profiling
  if any(isinstance(described(*job).executor, executors.Ray) for job in jobs):
    raise ValueError('Got --profile and workers of Ray, which decode where '
                     'this process does not see it; allowed: a sweep without '
                     'Ray. Leave out one of the two.')
  if hosts.first():
    profiling.writable(directory)


def add_sweeps(parser: argparse.ArgumentParser) -> None:
  """Flags that name a sweep, or several; see `named`."""
  group = parser.add_mutually_exclusive_group(required=True)
  group.add_argument('--gin_file', action='append', metavar='FILE',
                     help='may be given more than once')
  group.add_argument('--config', metavar='FILE',
                     help='Python with get_sweep(): several sweeps in turn')


def named(flags: argparse.Namespace, bindings: Sequence[str]) -> list[Job]:
  """Gin files and bindings of each sweep that flags name."""
  if not flags.config:
    return [(flags.gin_file, list(bindings))]
  return [(files, [*own, *bindings])
          for files, own in several(pathlib.Path(flags.config))]


def check_all(jobs: Sequence[Job],
              also: Callable[[Any], Any] = lambda run: None) -> None:
  """Loads one after the other: memory need not hold the models of all.

  Raises:
    ValueError: One can't be run, or `also` refuses it, or two have one folder.
  """
  folders = set()
  for job in jobs:
    run = checked(*job)
    also(run)
    folders.add(run.directory)
  if len(folders) < len(jobs):
    raise ValueError('Two sweeps of --config would share one OUTPUT_DIR; leave '
                     'it out: each has its own.')


def several(path: pathlib.Path) -> list[Job]:
  """Gin files and bindings of each sweep that a configuration names.

  Raises:
    ValueError: The file is not there or is no configuration, or two sweeps
      have one name.
  """
  path = next((p for p in (path, _cli.ROOT / path) if p.is_file()), None)
  if path is None:
    raise ValueError('No such --config; those that exist are in configs/.')
  if path.suffix != '.py':
    raise ValueError(f'Got --config {path}; allowed: a file of Python. For a '
                     'gin file say --gin_file.')
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    make = getattr(module, 'get_sweep', None)
    sweeps = make and make()
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise ValueError(f'{path} does not run: {type(error).__name__}: {error}'
                     ) from None
  if make is None:
    raise ValueError(f'{path} has no get_sweep(); see configs/gammas.py.')
  some = lambda x: isinstance(x, (list, tuple))
  if not (some(sweeps) and all(
      some(x) and len(x) == 3 and isinstance(x[0], str)
      and some(x[1]) and some(x[2]) for x in sweeps)):
    raise ValueError(f'get_sweep() of {path} gives {sweeps!r}; allowed: a list '
                     'of (name, gin files, bindings); see configs/gammas.py.')
  names = [name for name, *_ in sweeps]
  if not names or len(set(names)) < len(names):
    raise ValueError(f'{path} names the sweeps {", ".join(names) or "not one"};'
                     ' give each a name of its own.')
  return [(files, [f'OUTPUT_DIR = {f"runs/{path.stem}/{name}"!r}', *own])
          for name, files, own in sweeps]


def described(files: Sequence[str], bindings: Sequence[str]) -> Any:
  """A `sweep.Sweep`, of which nothing is read yet."""
  from spec_cascades.evaluation import sweep  # pylint: disable=g-import-not-at-top
  _cli.configure(files, bindings)
  return _cli.call(sweep.Sweep)


def devices(job: Job) -> int:
  """How many decode together in a sweep; 1 if it can't be described."""
  try:
    return described(*job).mesh.size
  except ValueError:
    return 1                 # to be said when all processes are there


def joins(job: Job) -> bool:
  """Whether processes decode a sweep together, where the environment says so.

  Not for a sweep whose workers are elsewhere: on a host of a slice, say.
  """
  try:
    return described(*job).executor.joins
  except ValueError:
    return True


def checked(files: Sequence[str], bindings: Sequence[str]) -> Any:
  """A sweep that is ready to run."""
  from spec_cascades.evaluation import sweep  # pylint: disable=g-import-not-at-top
  return sweep.Run(described(files, bindings), _cli.loading_bar())


def measure(files: Sequence[str], bindings: Sequence[str], *,
            profile: str | None = None) -> list[str]:
  """Runs a sweep, shows its progress, and writes its report.

  Returns a line for each point that failed.
  """
  began = time.monotonic()
  import tqdm  # pylint: disable=g-import-not-at-top
  from spec_cascades import hosts  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import profiling  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import report  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import sweep  # pylint: disable=g-import-not-at-top
  run = checked(files, bindings)
  if not hosts.first():
    print(f'{run.help_out()} units decoded for {run.directory}', flush=True)
    return []
  print(f'{len(run.points)} points on {len(run.examples)} texts, at most '
        f'{run.most_programs()} programs -> {run.directory}', flush=True)
  bar = functools.partial(tqdm.tqdm, dynamic_ncols=True,
                          mininterval=0.5 if sys.stderr.isatty() else 15)
  with profiling.traced(profile):
    done = run(bar)
  print(report.write(run.directory, done))
  if run.sweep.predicted is None and not run.sweep.predicts:
    print('no predictions of tokens a call: several processes on a mesh, or '
          'workers, decoded; ask the finished sweep in one (docs/sweep.md)')
  for path in (run.directory / sweep.RESULTS, *report.pictures(run.directory),
               run.directory / report.PAGE, run.directory / report.TABLES):
    print(path)
  if done.spent:
    print(took(time.monotonic() - began, done.spent))
  return done.failures


def took(seconds: float, spent: Mapping[str, float]) -> str:
  """60, {'compiling': 7., 'decoding': 51.} -> '60 s: ..., all else 2 (3.3 %)'.

  Workers elsewhere decode at the same time: then nothing is left to be said.
  """
  parts = ', '.join(f'{name} {part:.0f}' for name, part in spent.items())
  rest = seconds - sum(spent.values())
  if rest > 0:
    parts += f', all else {rest:.0f} ({100 * rest / seconds:.1f} %)'
  return f'{seconds:.0f} s: {parts}'


if __name__ == '__main__':
  _cli.run(main)
