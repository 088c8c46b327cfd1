"""Writes a corpus with a verifier's translations, to train drafters on.

Example:
  python scripts/distill.py --gin_file=gin/train/distill.gin

The same command goes on after an interruption.
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  flags, bindings = _cli.parse(_cli.gin_parser(__doc__), args)
  from spec_cascades.training import distill  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  _cli.call(distill.distill)


if __name__ == '__main__':
  _cli.run(main)
