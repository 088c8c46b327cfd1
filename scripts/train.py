"""Trains a model; the same command resumes a run that was interrupted.

Several processes train one model on the devices of all of them, `mesh`.

Example:
  python scripts/train.py --gin_file=gin/train/drafter.gin
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.gin_parser(__doc__)
  _cli.add_hosts(parser)
  flags, bindings = _cli.parse(parser, args)
  _cli.join(flags, training=True)
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  _cli.call(loop.train)


if __name__ == '__main__':
  _cli.run(main)
