"""Compiles pairs of models for many slices of TPUs; makes docs/tpu.md's table.

  pip install 'libtpu==0.0.42.*'
  python scripts/tpu_table.py

Each case is a run of compile_tpu.py, minutes each and hours in all; what it
found is kept in --rows, so that the same command goes on where it was killed.
Lines of the table whose case is not known by then stay; a cell that they lack
is '-'. Cases that were compiled with other versions of jax or libtpu, or of
other files of gin/tpu, are compiled again; after other changes, give another
--rows. The best gamma and speed-up are made from the times in it.
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import time
import types
from typing import Any, Sequence

import _cli

from spec_cascades.data import files
from spec_cascades.evaluation import chips

TOPOLOGIES = ('v4-8', 'v4-128', 'v5e-16', 'v5e-256', 'v5p-8', 'v6e-16')
PAIRS = ('t5_small_xl', 't5_small_xxl', 'gemma2_2b_27b')
BEGIN, END = '<!-- tpu_table.py: begin -->', '<!-- end -->'
HEAD = ('pair', 'slice', 'GiB a chip, the loop', 'exchanged in a round', 'c',
        'verification of 8 over 1', 'a round, ms', 'sampling, acceptance',
        'best gamma, speed-up', 'compile: s, GiB', 'faults of the loop')
# What a plan is made from; rows without it have one, at their acceptance.
TIMES = {'draft_ms', 'verify_ms', 'flatness', 'round_ms', 'judging', 'case'}
WIDTHS = '1,6,8,16,32'               # drafts of up to 16 tokens are tried
# Chips that hold a pair: larger slices have several such groups, a row each.
# For one group of 64 chips Gemma took over 17 GiB to compile.
GROUPS = {'gemma2_2b_27b': {'v4': 4, 'v5p': 4, 'v5e': 16, 'v6e': 16}}


def _flags(args: Sequence[str]) -> argparse.Namespace:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--rows', type=pathlib.Path, default=pathlib.Path('runs/tpu_table'),
      help='directory of what was found (default: %(default)s)')
  add('--topologies', default=','.join(TOPOLOGIES))
  add('--pairs', default=','.join(PAIRS), help='names of files in gin/tpu')
  add('--acceptance', default='.8', help='see compile_tpu.py')
  add('--output', type=pathlib.Path, default=_cli.ROOT / 'docs/tpu.md',
      help='whose table is replaced (default: docs/tpu.md)')
  return parser.parse_args(args)


def _versions() -> dict[str, str]:
  version = importlib.metadata.version
  try:
    return dict(jax=version('jax'), libtpu=version('libtpu'))
  except importlib.metadata.PackageNotFoundError:
    raise ValueError('libtpu is not installed, and without it nothing can be '
                     "compiled for a TPU: pip install 'libtpu==0.0.42.*'."
                    ) from None


def _groups(pair: str, topology: str) -> int:
  """Of chips that each hold the pair: as many as there are rows."""
  size = chips.topology(topology).size
  needed = GROUPS.get(pair, {}).get(topology.split('-')[0], size)
  if size < needed:
    raise ValueError(f'{pair} takes {needed} chips of this kind; {topology} '
                     f'has {size}. Take a larger slice.')
  return size // needed


def _wanted(pair: str, topology: str, versions: dict[str, str]
            ) -> dict[str, Any]:
  """What a row of this case says it is.

  Raises:
    ValueError: No such pair in gin/tpu, or no such slice.
  """
  from spec_cascades.evaluation import tpu  # pylint: disable=g-import-not-at-top
  rows = _groups(pair, topology)
  pairs = [x.stem for x in sorted((_cli.ROOT / 'gin/tpu').glob('*.gin'))
           if '\nVERIFIER = ' in x.read_text()]
  if pair not in pairs:
    raise ValueError(f'Unknown pair {pair!r}; allowed: {", ".join(pairs)}.')
  _cli.configure([f'gin/tpu/{pair}.gin'], [f'DATA = {rows}', f'BATCH = {rows}'])
  case = dataclasses.asdict(_cli.call(tpu.Case))
  return versions | dict(topology=topology, case=json.loads(json.dumps(case)))


def _differs(row: dict[str, Any], wanted: dict[str, Any],
             rates: Sequence[float]) -> list[str]:
  """Where a row is of another case; what an older one does not say is none."""
  case = wanted['case']
  names = [x for x in ('jax', 'libtpu') if row[x] != wanted[x]]
  if row.get('topology', wanted['topology']) != wanted['topology']:
    names.append('topology')
  names += [x for x, value in row.get('case', {}).items()
            if case.get(x, value) != value]
  if not TIMES <= row.keys() and row.get('acceptance', rates) != rates:
    names.append('acceptance')
  return names


def _known(paths: dict[tuple[str, str], pathlib.Path],
           wanted: dict[tuple[str, str], dict[str, Any]],
           rates: Sequence[float]) -> dict[tuple[str, str], dict[str, Any]]:
  """Rows by pair and slice, of those that are there and of the case.

  Raises:
    ValueError: A file that is no such row.
  """
  rows = {}
  for name, path in paths.items():
    if not path.exists():
      continue
    try:
      row = json.loads(path.read_text())
      if other := _differs(row, wanted[name], rates):
        print(f'{path} is of another {", ".join(other)}: not used', flush=True)
        continue
      _cells(*name, row, rates)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
      raise ValueError(
          f'{path} is no row that compile_tpu.py wrote as a whole '
          f'({type(error).__name__}: {_cli.one_line(error)}); remove it, and '
          'its case is compiled again.') from None
    rows[name] = row
  return rows


def _compiled(pair: str, topology: str, path: pathlib.Path,
              acceptance: str) -> None:
  """Compiles a case in a process of its own, whose memory is then free."""
  start, rows = time.monotonic(), _groups(pair, topology)
  run = subprocess.run(
      [sys.executable, _cli.ROOT / 'scripts/compile_tpu.py',
       f'--config={_cli.ROOT}/gin/tpu/{pair}.gin', f'--topology={topology}',
       f'--widths={WIDTHS}', f'--acceptance={acceptance}', f'--json={path}',
       f'--gin.DATA={rows}', f'--gin.BATCH={rows}'],
      check=False, capture_output=True, text=True)
  if run.returncode < 0:
    raise ValueError(f'{pair} for {topology} was ended by signal '
                     f'{-run.returncode}; with 9 the machine may be short of '
                     'memory.')
  if run.returncode:
    said = run.stderr.strip().splitlines() or [f'exit code {run.returncode}']
    raise ValueError(f'{pair} for {topology} failed: {said[-1]}')
  print(f'{pair}, {topology}: {time.monotonic() - start:.0f} s', flush=True)


def _planned(row: dict[str, Any], rates: Sequence[float]) -> tuple[str, float]:
  """The best gamma and its speed-up, from a row's times.

  Sampling and acceptance are as long as the nodes are many; rows that do not
  say what it takes to draw a token of the verifier alone: half of a node's.
  """
  plan = types.SimpleNamespace(**row)
  if TIMES <= row.keys():
    from spec_cascades import theory  # pylint: disable=g-import-not-at-top
    from spec_cascades.evaluation import roofline  # pylint: disable=g-import-not-at-top
    judging = row['judging'] * row['round_ms'] / (row['case']['gamma'] + 1)
    blocks = {int(width): row['verify_ms'] * x
              for width, x in row['flatness'].items()}
    plan = roofline.Estimate(
        theory.StepTimes(blocks, row['draft_ms']),
        row.get('sampling_ms', judging / 2), judging).plan(
            rates, uses_q=row['case']['uses_q'])
  return f'{plan.gamma}{"+" * (plan.gamma == plan.max_gamma)}', plan.speedup


def _cells(pair: str, topology: str, row: dict[str, Any],
           rates: Sequence[float]) -> list[str]:
  """One line of the table."""
  data = row['mesh']['data']
  topology += f', {data} rows' if data > 1 else ''
  gib = lambda x: f'{x / 2**30:.1f}'
  programs = [x for x in row.values() if isinstance(x, dict) and 'seconds' in x]
  spent = (f'{sum(x["seconds"] for x in programs):.0f}, '
           f'{gib(row["host_bytes"])}')
  loop = row['whole loop']
  if loop['excess']:
    return [pair, topology, loop['excess'], *['-'] * 6, spent, '-']
  kinds: dict[str, list[float]] = {}
  for x in row['one round']['work']['collectives']:
    found = kinds.setdefault(x['kind'], [0, 0.])
    found[0] += x['times']
    found[1] += x['times'] * x['nbytes'] / 1e6
  exchanged = ', '.join(f'{n} {kind}, {size:.2f} MB'
                        for kind, (n, size) in sorted(kinds.items()))
  steps = ['-'] * 5
  if 'round_ms' in row:
    gamma, speedup = _planned(row, rates)
    steps = [f'{row["cost"]:.3f}', f'{row["flatness"]["8"]:.2f}x',
             f'{row["round_ms"]:.2f}', f'{100 * row["judging"]:.1f} %',
             f'{gamma}, {speedup:.2f}x']
  faults = collections.Counter(
      re.search(r' ([a-z][a-z-]*)\(', x)[1] for x in loop['faults'])
  return [pair, topology, gib(loop['total']), exchanged or 'nothing', *steps,
          spent, ', '.join(f'{n} {x}' for x, n in faults.items()) or 'none']


def _kept(table: str) -> dict[tuple[str, str], list[str]]:
  """Lines that a table has, by pair and slice."""
  lines = [[cell.strip() for cell in line.strip('| ').split(' | ')]
           for line in table.splitlines() if line.startswith('|')]
  return {(line[0], line[1].split(',')[0]): line + ['-'] * (
      len(HEAD) - len(line))
          for line in lines[2:]}


def _table(rows: dict[tuple[str, str], dict[str, Any]], old: str,
           rates: Sequence[float]) -> str:
  """What is known, and of an old table what is not."""
  found = _kept(old) | {
      name: _cells(*name, row, rates) for name, row in rows.items()}
  place = lambda all, x: all.index(x) if x in all else len(all)
  order = lambda name: (place(PAIRS, name[0]), place(TOPOLOGIES, name[1]))
  lines = [HEAD, ['---'] * len(HEAD),
           *(found[name] for name in sorted(found, key=order))]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _parts(path: pathlib.Path) -> tuple[str, str, str]:
  """A document before its table, the table, and after it."""
  text = path.read_text(encoding='utf-8')
  if not 0 <= text.find(BEGIN) < text.find(END):
    raise ValueError(f'{path} lacks the lines {BEGIN} and {END}, between which '
                     'the table goes.')
  before, rest = text.split(BEGIN, 1)
  return before, *rest.split(END, 1)


def main(args: Sequence[str]) -> None:
  """Compiles what is missing, and replaces the table."""
  flags = _flags(args)
  _parts(flags.output)
  rates = chips.rates(flags.acceptance)
  if any(x.exists() and not x.is_dir()
         for x in (flags.rows, *flags.rows.parents)):
    raise ValueError(f'Got --rows {flags.rows}; give a directory.')
  versions = _versions()
  cases = [(pair, topology) for pair in flags.pairs.split(',')
           for topology in flags.topologies.split(',')]
  wanted = {case: _wanted(*case, versions) for case in cases}
  paths = {case: flags.rows / f'{".".join(case)}.json' for case in cases}
  rows = _known(paths, wanted, rates)
  for case, path in paths.items():
    if case not in rows:
      _compiled(*case, path, flags.acceptance)
      rows = _known(paths, wanted, rates)
    before, old, after = _parts(flags.output)
    files.write_atomically(
        flags.output,
        f'{before}{BEGIN}\n{_table(rows, old, rates)}\n{END}{after}')


if __name__ == '__main__':
  _cli.run(main)
