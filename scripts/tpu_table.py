"""Compiles pairs of models for many slices of TPUs; makes docs/tpu.md's table.

  pip install 'libtpu==0.0.42.*'
  python scripts/tpu_table.py

Each case is a run of compile_tpu.py, minutes each and hours in all; what it
found is kept in --rows, so that the same command goes on where it was killed.
Lines of the table whose case is not known by then stay; a cell that they lack
is '-'. Cases of other versions of jax or libtpu are compiled again; after other
changes, give another --rows.
"""
from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, Sequence

import _cli

from spec_cascades.evaluation import chips

TOPOLOGIES = ('v4-8', 'v4-128', 'v5e-16', 'v5e-256', 'v5p-8', 'v6e-16')
PAIRS = ('t5_small_xl', 't5_small_xxl', 'gemma2_2b_27b')
BEGIN, END = '<!-- tpu_table.py: begin -->', '<!-- end -->'
HEAD = ('pair', 'slice', 'GiB a chip, the loop', 'exchanged in a round', 'c',
        'verification of 8 over 1', 'a round, ms', 'sampling, acceptance',
        'best gamma, speed-up', 'compile: s, GiB', 'faults of the loop')
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


def _known(path: pathlib.Path, versions: dict[str, str]) -> bool:
  if not path.exists():
    return False
  row = json.loads(path.read_text())
  return versions == {name: row[name] for name in versions}


def _compiled(pair: str, topology: str, path: pathlib.Path,
              acceptance: str) -> None:
  """Compiles a case in a process of its own, whose memory is then free."""
  start, size = time.monotonic(), chips.topology(topology).size
  rows = size // GROUPS.get(pair, {}).get(topology.split('-')[0], size)
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


def _cells(pair: str, topology: str, row: dict[str, Any]) -> list[str]:
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
    steps = [f'{row["cost"]:.3f}', f'{row["flatness"]["8"]:.2f}x',
             f'{row["round_ms"]:.2f}', f'{100 * row["judging"]:.1f} %',
             f'{row["gamma"]}{"+" * (row["gamma"] == row["max_gamma"])}, '
             f'{row["speedup"]:.2f}x']
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


def _table(rows: dict[tuple[str, str], dict[str, Any]], old: str) -> str:
  """What is known, and of an old table what is not."""
  found = _kept(old) | {name: _cells(*name, row) for name, row in rows.items()}
  place = lambda all, x: all.index(x) if x in all else len(all)
  order = lambda name: (place(PAIRS, name[0]), place(TOPOLOGIES, name[1]))
  lines = [HEAD, ['---'] * len(HEAD),
           *(found[name] for name in sorted(found, key=order))]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _parts(path: pathlib.Path) -> tuple[str, str, str]:
  """A document before its table, the table, and after it."""
  text = path.read_text()
  if not 0 <= text.find(BEGIN) < text.find(END):
    raise ValueError(f'{path} lacks the lines {BEGIN} and {END}, between which '
                     'the table goes.')
  before, rest = text.split(BEGIN, 1)
  return before, *rest.split(END, 1)


def main(args: Sequence[str]) -> None:
  """Compiles what is missing, and replaces the table."""
  flags = _flags(args)
  _parts(flags.output)
  versions = _versions()
  cases = [(pair, topology) for pair in flags.pairs.split(',')
           for topology in flags.topologies.split(',')]
  paths = {case: flags.rows / f'{".".join(case)}.json' for case in cases}
  for case, path in paths.items():
    if not _known(path, versions):
      _compiled(*case, path, flags.acceptance)
    rows = {name: json.loads(file.read_text())
            for name, file in paths.items() if _known(file, versions)}
    before, old, after = _parts(flags.output)
    flags.output.write_text(
        f'{before}{BEGIN}\n{_table(rows, old)}\n{END}{after}')


if __name__ == '__main__':
  _cli.run(main)
