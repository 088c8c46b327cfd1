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


def named(places: Sequence[str]) -> dict[str, pathlib.Path]:
  """Runs by the shortest ends of their paths that tell them apart.

  Raises:
    ValueError: One is there twice.
  """
  found = [pathlib.Path(x).expanduser().resolve() for x in places]
  for count in range(1, max(len(x.parts) for x in found) + 1):
    names = ['/'.join(x.parts[-count:]) for x in found]
    if len(set(names)) == len(found):
      return dict(zip(names, found))
  raise ValueError(f'Got {" ".join(map(str, places))}; allowed: each run once.')


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
  runs = {name: curves.read(place)
          for name, place in named(flags.model_dirs).items()}
  output.parent.mkdir(parents=True, exist_ok=True)
  curves.draw(runs).savefig(output)
  print(output)


if __name__ == '__main__':
  _cli.run(main)
