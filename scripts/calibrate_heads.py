"""Chooses the tree that trained heads draft, and saves it beside them.

Example:
  python scripts/calibrate_heads.py --gin_file=gin/train/medusa.gin --nodes=16
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.gin_parser(__doc__)
  parser.add_argument('--nodes', type=int, default=16,
                      help='drafts of the tree')
  parser.add_argument('--ranks', type=int, default=8,
                      help='choices of a head that may be in it')
  parser.add_argument('--sentences', type=int, default=200,
                      help='validation texts to measure on')
  flags, bindings = _cli.parse(parser, args)
  from spec_cascades.training import calibrating  # pylint: disable=g-import-not-at-top
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  calibrating.calibrate(_cli.call(loop.Run), nodes=flags.nodes,
                        ranks=flags.ranks, sentences=flags.sentences)


if __name__ == '__main__':
  _cli.run(main)
