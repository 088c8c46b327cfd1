"""Writes a corpus with a verifier's translations, to train drafters on.

Example:
  python scripts/distill.py --gin_file=gin/train/distill.gin

The same command goes on after an interruption.
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
  from spec_cascades.training import distill  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  _cli.call(distill.distill)


if __name__ == '__main__':
  _cli.run(main)
