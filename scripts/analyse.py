"""Writes the tables of a finished sweep anew: seconds, no model, no decoding.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/analyse.py runs/quickstart
  python scripts/analyse.py runs/quickstart --validation=0.3 --seed=1
  python scripts/analyse.py runs/quickstart --draw SpecDecode OPT TokenV3

Needs what the sweep left in the folder: scores.jsonl, examples.jsonl and
results.jsonl, and split.jsonl and predicted.jsonl if it made them. Without
--validation and --seed these are the sweep's own tables, in
runs/quickstart/tables as Markdown, LaTeX and CSV; report.html is left alone.
--draw adds a picture of some curves, for a sweep of many: curves.png and .pdf.
--tpu adds to the table of drafters what each would gain on a slice of TPUs, by
what `compile_tpu.py --json` has written of a pair of models there.
"""
from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  """Writes the tables and prints those that a sweep prints."""
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('directory', type=pathlib.Path, help='OUTPUT_DIR of the sweep')
  add('--validation', type=float,
      help="share of the texts to choose settings on; default: the sweep's")
  add('--seed', type=int, help='of these texts and of the resamples; default: '
      "the sweep's")
  add('--output', type=pathlib.Path,
      help='where the folder of tables goes; default: OUTPUT_DIR')
  add('--draw', nargs='+', metavar='METHOD', help='curves of a picture, by '
      'their names in the tables')
  add('--tpu', type=pathlib.Path, metavar='FILE',
      help='estimates of scripts/compile_tpu.py --json')
  flags = parser.parse_args(args)
  if flags.seed is not None and flags.seed < 0:
    raise ValueError(f'Got --seed {flags.seed}; allowed: whole numbers from 0.')
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import analysis
  from spec_cascades.evaluation import choosing
  from spec_cascades.evaluation import details
  from spec_cascades.evaluation import estimated
  from spec_cascades.evaluation import measured as measured_lib
  from spec_cascades.evaluation import report
  from spec_cascades.evaluation import sweep
  from spec_cascades.evaluation.report import export
  from spec_cascades.evaluation.report import sections
  given = {name: getattr(flags, name) for name in ('validation', 'seed')
           if getattr(flags, name) is not None}
  if flags.validation is not None:
    choosing.check_share(flags.validation)
  on = flags.tpu and estimated.read(flags.tpu.expanduser())
  measured = dataclasses.replace(
      measured_lib.read(flags.directory / sweep.SCORES,
                        flags.directory / sweep.JOURNAL), **given)
  rows = measured.rows(flags.directory / sweep.RESULTS)
  output = flags.output or flags.directory
  drawn = report.draw(output, rows, flags.draw) if flags.draw else []
  samples = measured.samples()
  tables = sections.of_sweep(
      rows, analysis.comparisons(measured.points, samples), measured.drafting(),
      analysis.analyse(measured, samples),
      details.splits(flags.directory, rows[0].sweep), on,
      details.predictions(flags.directory, rows[0].sweep))
  print(sections.text(tables))
  for path in (*drawn, export.write(output, tables)):
    print(path)


if __name__ == '__main__':
  _cli.run(main)
