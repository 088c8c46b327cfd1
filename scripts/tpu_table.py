"""Compiles pairs of models for many slices of TPUs; makes docs/tpu.md's table.

  pip install 'libtpu==0.0.42.*'
  python scripts/tpu_table.py

Each case is a run of compile_tpu.py, minutes each and hours in all; what it
found is kept in --rows, so that the same command goes on where it was killed.
The table has all of its cases that are known by then. Cases of other versions
of jax or libtpu are compiled again; after other changes, give another --rows.
"""
from __future__ import annotations

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import time
from typing import Any, Sequence

import _cli

TOPOLOGIES = ('v4-8', 'v4-128', 'v5e-16', 'v5e-256', 'v5p-8', 'v6e-16')
PAIRS = ('t5_small_xl', 't5_small_xxl', 'gemma2_2b_27b')
BEGIN, END = '<!-- tpu_table.py: begin -->', '<!-- end -->'
HEAD = ('pair', 'slice', 'GiB a chip, the loop', 'exchanged in a round', 'c',
        'verification of 8 over 1', 'a round, ms', 'sampling, acceptance',
        'best gamma, speed-up', 'compile: s, GiB')


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
  start = time.monotonic()
  run = subprocess.run(
      [sys.executable, _cli.ROOT / 'scripts/compile_tpu.py',
       f'--config={_cli.ROOT}/gin/tpu/{pair}.gin', f'--topology={topology}',
       '--widths=1,6,8', f'--acceptance={acceptance}', f'--json={path}'],
      check=False, capture_output=True, text=True)
  if run.returncode:
    said = run.stderr.strip().splitlines() or [f'exit code {run.returncode}']
    raise ValueError(f'{pair} for {topology} failed: {said[-1]}')
  print(f'{pair}, {topology}: {time.monotonic() - start:.0f} s', flush=True)


def _cells(pair: str, topology: str, row: dict[str, Any]) -> list[str]:
  """One line of the table."""
  gib = lambda x: f'{x / 2**30:.1f}'
  programs = [x for x in row.values() if isinstance(x, dict) and 'seconds' in x]
  spent = (f'{sum(x["seconds"] for x in programs):.0f}, '
           f'{gib(row["host_bytes"])}')
  loop = row['whole loop']
  if loop['excess']:
    return [pair, topology, loop['excess'], *['-'] * 6, spent]
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
             f'{row["gamma"]}, {row["speedup"]:.2f}x']
  return [pair, topology, gib(loop['total']), exchanged or 'nothing', *steps,
          spent]


def _table(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
  lines = [HEAD, ['---'] * len(HEAD)]
  lines += [_cells(*name, row) for name, row in rows.items()]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main(args: Sequence[str]) -> None:
  """Compiles what is missing, and replaces the table."""
  flags = _flags(args)
  text = flags.output.read_text()
  if not 0 <= text.find(BEGIN) < text.find(END):
    raise ValueError(f'{flags.output} lacks the lines {BEGIN} and {END}, '
                     'between which the table goes.')
  versions = _versions()
  cases = [(pair, topology) for pair in flags.pairs.split(',')
           for topology in flags.topologies.split(',')]
  paths = {case: flags.rows / f'{".".join(case)}.json' for case in cases}
  for case, path in paths.items():
    if not _known(path, versions):
      _compiled(*case, path, flags.acceptance)
    rows = {name: json.loads(file.read_text())
            for name, file in paths.items() if _known(file, versions)}
    table = f'{BEGIN}\n{_table(rows)}\n{END}'
    before, rest = text.split(BEGIN, 1)
    flags.output.write_text(before + table + rest.split(END, 1)[1])


if __name__ == '__main__':
  _cli.run(main)
