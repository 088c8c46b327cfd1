"""Measures quality and latency of rules at thresholds; draws the frontier.

Example:
  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
The same command goes on where a sweep was stopped.
"""
from __future__ import annotations

import argparse
import functools
import sys
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
      epilog='Any name in the gin file can be set with --gin.NAME=VALUE, for '
      'example --gin.OUTPUT_DIR=runs/other --gin.EXAMPLES=50')
  parser.add_argument('--gin_file', action='append', required=True,
                      metavar='FILE', help='may be given more than once')
  flags, bindings = _cli.parse(parser, args)
  from spec_cascades.evaluation import sweep  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  run = sweep.Run(_cli.call(sweep.Sweep))

  import tqdm  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import report  # pylint: disable=g-import-not-at-top
  print(f'{len(run.points)} points on {len(run.examples)} texts -> '
        f'{run.directory}', flush=True)
  done = run(functools.partial(
      tqdm.tqdm, dynamic_ncols=True,
      mininterval=0.5 if sys.stderr.isatty() else 15))
  print(report.write(run.directory, done))
  for name in (sweep.RESULTS, report.PICTURE, report.PAGE):
    print(run.directory / name)


if __name__ == '__main__':
  _cli.run(main)
