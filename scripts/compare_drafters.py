"""Compares drafters of a verifier: acceptance, predicted and decoded tokens.

Examples:
  python scripts/compare_drafters.py --gin_file=gin/compare/debian_ende.gin
  python scripts/compare_drafters.py --gin_file=gin/compare/losses.gin

The second trains them first. The same command goes on after an interruption.
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  flags, bindings = _cli.parse(_cli.gin_parser(__doc__), args)
  from spec_cascades.training import comparing  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  comparing.compare(_cli.call(comparing.Comparison))


if __name__ == '__main__':
  _cli.run(main)
