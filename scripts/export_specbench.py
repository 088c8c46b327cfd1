"""Writes a finished sweep in Spec-Bench's layout, for its scripts.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/export_specbench.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/export_specbench.py --config=configs/debian.py

The gin file or the configuration, and --gin.NAME=VALUE, must be those of the
sweep. A file per point, in a folder per trial; docs/sweep.md says what their
figures mean.
"""
from __future__ import annotations

import argparse
import pathlib
from typing import Any, Sequence

import _cli
import sweep as sweep_script


def main(args: Sequence[str]) -> None:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  sweep_script.add_sweeps(parser)
  parser.add_argument('--output', type=pathlib.Path, metavar='DIR',
                      help='the directory to write; default: OUTPUT_DIR/'
                      'specbench; of several sweeps each has its own in it')
  parser.add_argument('--category', metavar='NAME',
                      help="the data's name in Spec-Bench, such as "
                      'translation; default: what the metric is for')
  flags, bindings = _cli.parse(parser, args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import specbench
  jobs = sweep_script.named(flags, bindings)

  def output(run: Any) -> pathlib.Path:
    if flags.output is None:
      return run.directory / 'specbench'
    return flags.output / run.directory.name if jobs[1:] else flags.output

  if jobs[1:]:               # before anything is written
    sweep_script.check_all(jobs, lambda run: specbench.check(run, output(run)))
  for job in jobs:
    run = sweep_script.checked(*job)
    for path in specbench.export(run, output(run), flags.category):
      print(path)


if __name__ == '__main__':
  _cli.run(main)
