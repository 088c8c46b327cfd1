"""Exports a training run as a model directory and prints its quality.

Example:
  python scripts/export.py --gin_file=gin/train/drafter.gin --output=runs/model
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.gin_parser(__doc__)
  parser.add_argument('--output', required=True, help='the directory to write')
  parser.add_argument('--sentences', type=int, help='texts of each set to '
                      'decode for its quality; default: all')
  flags, bindings = _cli.parse(parser, args)
  from spec_cascades.training import export  # pylint: disable=g-import-not-at-top
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  run = _cli.call(loop.Run)
  export.export(run, flags.output, sentences=flags.sentences)


if __name__ == '__main__':
  _cli.run(main)
