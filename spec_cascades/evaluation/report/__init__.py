"""What a finished sweep shows: a table, pictures, a page."""
from __future__ import annotations

import os
import pathlib

from spec_cascades.data import files
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import export
from spec_cascades.evaluation.report import html
from spec_cascades.evaluation.report import plot
from spec_cascades.evaluation.report import sections
from spec_cascades.evaluation.report import table

PICTURES, PAGE = ('frontier.png', 'frontier.pdf'), 'report.html'
TABLES = export.FOLDER


def write(directory: pathlib.Path, summary: summary_lib.Summary, *,
          title: str = 'Speculative cascades: cost and quality') -> str:
  """Writes pictures, tables and the page; returns the terminal's tables."""
  partial = {name: directory / f'partial.{os.getpid()}.{name}'
             for name in PICTURES}
  plot.write(list(partial.values()), summary.rows)
  for name, path in partial.items():
    os.replace(path, directory / name)
  files.write_atomically(directory / PAGE, html.page(summary, title))
  tables = sections.of_sweep(summary.rows, summary.comparisons,
                             summary.drafting, summary.analysis)
  export.write(directory, tables)
  return '\n\n'.join([table.everything(summary), sections.text(tables)])
