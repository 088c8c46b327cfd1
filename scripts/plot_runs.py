"""Draws training runs: losses, quality and acceptance against steps.

Example:
  python scripts/plot_runs.py ~/.cache/spec_cascades/runs/verifier \
    ~/.cache/spec_cascades/runs/drafter --output=curves.png
"""
from __future__ import annotations

import argparse
import pathlib
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.Parser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('model_dirs', nargs='+', help='of scripts/train.py')
  parser.add_argument('--output', required=True,
                      help='the picture: a .png, .pdf or .svg')
  flags = parser.parse_args(args)
  output = pathlib.Path(flags.output).expanduser()
  if output.suffix not in ('.png', '.pdf', '.svg'):
    raise ValueError(f'Got --output={flags.output}; allowed: a name that ends '
                     'in .png, .pdf or .svg.')
  from spec_cascades.training import curves  # pylint: disable=g-import-not-at-top
  runs = {pathlib.Path(x).expanduser().resolve().name: curves.read(x)
          for x in flags.model_dirs}
  output.parent.mkdir(parents=True, exist_ok=True)
  curves.draw(runs).savefig(output)
  print(output)


if __name__ == '__main__':
  _cli.run(main)
