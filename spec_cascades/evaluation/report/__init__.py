"""What a finished sweep shows: a table, a picture, a page."""
from __future__ import annotations

import os
import pathlib

from spec_cascades.data import files
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import html
from spec_cascades.evaluation.report import plot
from spec_cascades.evaluation.report import table

PICTURE, PAGE = 'frontier.png', 'report.html'


def write(directory: pathlib.Path, summary: summary_lib.Summary, *,
          title: str = 'Speculative cascades: cost and quality') -> str:
  """Writes `frontier.png` and `report.html`; returns the terminal's table."""
  partial = directory / f'partial.{os.getpid()}.png'
  plot.write(partial, summary.rows)
  os.replace(partial, directory / PICTURE)
  files.write_atomically(directory / PAGE, html.page(summary, title))
  return table.everything(summary)
