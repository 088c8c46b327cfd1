"""Trains and builds what drafters of the shipped verifier need, in order.

  python scripts/build_drafters.py --list          what is there, what is not
  python scripts/build_drafters.py                 everything that is missing
  python scripts/build_drafters.py medusa eagle    these, and what they need

What is there is not made again, and the same command goes on where it was
stopped. Of what came along with the project, only what is named is made. Then:

  python scripts/sweep.py --config=configs/drafters.py
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  """Lists, or runs one command after the other."""
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='*', help='of instances; default: all')
  parser.add_argument('--list', action='store_true',
                      help='only print what is there, and the commands')
  flags = parser.parse_args(args)
  from spec_cascades.evaluation import instances  # pylint: disable=g-import-not-at-top
  os.chdir(_cli.ROOT)                 # where the commands' files are
  todo = instances.wanted(flags.names)
  if flags.list:
    print(instances.table())
    if not flags.names:               # how to make anew what came along, too
      todo = [x for x in instances.INSTANCES if not x.made()]
  for x in todo:
    print('\n'.join((f'\n{x.name}: {x.what}', *x.lines())), flush=True)
    if not flags.list:
      make(x)


def make(instance) -> None:
  """Runs the commands of an instance; ValueError if one fails."""
  began = time.monotonic()
  for command in instance.commands:
    done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode:
      raise ValueError(f'{instance.name} failed, exit code {done.returncode}; '
                       'the same command goes on from there.')
  if not instance.made():
    raise ValueError(f'{instance.name} ended early: {instance.makes} is not '
                     'there yet. The same command goes on.')
  print(f'{instance.name}: {(time.monotonic() - began) / 60:.0f} min')


if __name__ == '__main__':
  _cli.run(main)
