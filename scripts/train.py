"""Trains a model; the same command resumes a run that was interrupted.

Example:
  python scripts/train.py --gin_file=gin/train/drafter.gin
"""
from __future__ import annotations

import argparse
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--gin_file', action='append', required=True,
                      metavar='FILE', help='may be given more than once')
  flags, bindings = _cli.parse(parser, args)
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  _cli.call(loop.train)


if __name__ == '__main__':
  _cli.run(main)
