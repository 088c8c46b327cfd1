"""Writes a finished sweep in Spec-Bench's layout, for its scripts.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/export_specbench.py --gin_file=gin/sweeps/quickstart.gin

The gin file and its --gin.NAME=VALUE must be those of the sweep. A file per
point, in a folder per trial; docs/sweep.md says what their figures mean.
"""
from __future__ import annotations

import pathlib
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.gin_parser(__doc__)
  parser.add_argument('--output', type=pathlib.Path, metavar='DIR',
                      help='the directory to write; default: OUTPUT_DIR/'
                      'specbench')
  parser.add_argument('--category', metavar='NAME',
                      help="the data's name in Spec-Bench, such as "
                      'translation; default: what the metric is for')
  flags, bindings = _cli.parse(parser, args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import specbench
  from spec_cascades.evaluation import sweep
  _cli.configure(flags.gin_file, bindings)
  run = sweep.Run(_cli.call(sweep.Sweep), _cli.loading_bar())
  for path in specbench.export(run, flags.output or run.directory / 'specbench',
                               flags.category):
    print(path)


if __name__ == '__main__':
  _cli.run(main)
