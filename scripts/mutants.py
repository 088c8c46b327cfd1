"""Runs every mutant of tests/mutants.py against the test that must kill it.

Example:
  python scripts/mutants.py                # all of them, in turn
  python scripts/mutants.py --only lenience --only EOS

Each is applied to a copy of the package in a temporary folder. Exits 1 if one
survives, and prints which test kills which mutant.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Sequence

import _cli

sys.path.insert(0, str(_cli.ROOT / 'tests'))
import mutants  # pylint: disable=wrong-import-position

TIMEOUT = 600                         # seconds
COPIED = ('spec_cascades', 'tests', 'pyproject.toml')


def main(args: Sequence[str]) -> None:
  """Runs the chosen mutants and prints a table."""
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--only', action='append', metavar='WORDS',
                      help='mutants whose name contains this; may be repeated')
  flags = parser.parse_args(args)
  chosen = [m for m in mutants.MUTANTS if not flags.only or any(
      words.lower() in m.name.lower() for words in flags.only)]
  if not chosen:
    names = ', '.join(m.name for m in mutants.MUTANTS)
    raise ValueError(f'No mutant is called {flags.only}; allowed: {names}.')
  survivors, began = [], time.time()
  for i, mutant in enumerate(chosen, 1):
    started, killed = time.time(), dies(mutant)
    left = (time.time() - began) / i * (len(chosen) - i)
    print(f'{"killed  " if killed else "SURVIVED"}  {mutant.name:<52} '
          f'{" ".join(mutant.test)}  ({time.time() - started:.0f} s, left '
          f'{left / 60:.0f} min)', flush=True)
    survivors += [] if killed else [mutant.name]
  print(f'{len(chosen) - len(survivors)} of {len(chosen)} killed.')
  sys.exit(bool(survivors))


def dies(mutant: mutants.Mutant) -> bool:
  """Whether the mutant's test fails on a mutated copy, by assertion.

  Raises:
    ValueError: The mutant no longer applies, or pytest found no such test.
  """
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name in COPIED:
      source = _cli.ROOT / name
      if source.is_dir():
        shutil.copytree(source, root / name,
                        ignore=shutil.ignore_patterns('__pycache__'))
      else:
        shutil.copy(source, root / name)
    path = root / 'spec_cascades' / mutant.file
    text = path.read_text(encoding='utf-8')
    if text.count(mutant.old) != 1:
      raise ValueError(f'{mutant.name}: {mutant.old!r} occurs '
                       f'{text.count(mutant.old)} times in {mutant.file}; '
                       'update tests/mutants.py.')
    path.write_text(text.replace(mutant.old, mutant.new), encoding='utf-8')
    try:
      done = subprocess.run(
          [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider',
           *mutant.test], cwd=root, env=dict(os.environ, PYTHONPATH=str(root)),
          capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
      return False                       # a test has to fail, not to hang
  if done.returncode not in (0, 1):
    raise ValueError(f'{mutant.name}: pytest exited with {done.returncode}: '
                     f'{done.stdout[-300:]}')
  return done.returncode == 1 and 'SyntaxError' not in done.stdout


if __name__ == '__main__':
  _cli.run(main)
