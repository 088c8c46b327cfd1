"""Chooses the tree that trained heads draft, and saves it beside them.

  python scripts/calibrate_heads.py --gin_file=gin/train/medusa.gin --nodes=16

Of a layer such as EAGLE's, which drafts chains, it prints tokens per verifier
call instead, decoded and predicted, and writes nothing; so of one that came
along, too:

  python scripts/calibrate_heads.py --gin_file=gin/train/eagle.gin \
    --part=spec_cascades/assets/debian_ende/parts/eagle
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
  parser.add_argument('--gamma', type=int, default=4,
                      help='draft length of a layer')
  parser.add_argument('--part', help='the folder of a layer to read, in place '
                      "of the run's newest checkpoint")
  flags, bindings = _cli.parse(parser, args)
  from spec_cascades.training import calibrating  # pylint: disable=g-import-not-at-top
  from spec_cascades.training import following  # pylint: disable=g-import-not-at-top
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  run = _cli.call(loop.Run)
  if flags.part or following.follows(run.lm):
    following.report(run, flags.gamma, flags.sentences, flags.part)
  else:
    calibrating.calibrate(run, nodes=flags.nodes, ranks=flags.ranks,
                          sentences=flags.sentences)


if __name__ == '__main__':
  _cli.run(main)
