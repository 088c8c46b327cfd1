"""What a finished sweep shows: a table, pictures, a page."""
from __future__ import annotations

import contextlib
import functools
import pathlib
from typing import Any, Callable, Sequence

from spec_cascades.data import files
from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import export
from spec_cascades.evaluation.report import html
from spec_cascades.evaluation.report import plot
from spec_cascades.evaluation.report import sections
from spec_cascades.evaluation.report import table

FRONTIER = ('frontier.png', 'frontier.pdf')
REJECTION = ('rejection.png', 'rejection.pdf')
QUALITY = ('quality_by_rejection.png', 'quality_by_rejection.pdf')
ACCEPTANCE = ('acceptance.png', 'acceptance.pdf')
SPLIT = ('split.png', 'split.pdf')
CURVES = ('curves.png', 'curves.pdf')
PAGE = 'report.html'
TABLES = export.FOLDER


def write(directory: pathlib.Path, summary: summary_lib.Summary, *,
          title: str = 'Speculative cascades: cost and quality') -> str:
  """Writes pictures, tables and the page; returns the terminal's tables."""
  rows, found = summary.rows, summary.analysis.rejections
  metric = rows[0].metric
  _draw(directory, FRONTIER, plot.curves, plot.frontiers(rows), metric, rows)
  if found:
    _draw(directory, REJECTION, plot.curves, plot.rejections(found),
          plot.REJECTED, rows)
    _draw(directory, QUALITY, plot.curves, plot.qualities(rows, found), metric,
          rows, plot.REJECTED)
  if any(x.accepted for _, x in summary.drafting):
    _draw(directory, ACCEPTANCE, plot.accepted, summary.drafting, rows)
  if summary.split:
    _draw(directory, SPLIT, plot.split, summary.split, rows)
  files.write_atomically(directory / PAGE, html.page(summary, title))
  tables = sections.of_sweep(summary.rows, summary.comparisons,
                             summary.drafting, summary.analysis,
                             summary.split, predicted=summary.predicted)
  export.write(directory, tables)
  return '\n\n'.join([table.everything(summary), sections.text(tables)])


def pictures(directory: pathlib.Path) -> list[pathlib.Path]:
  """Those that there are: without drafts nothing can be rejected."""
  return [path for name in (*FRONTIER, *REJECTION, *QUALITY, *ACCEPTANCE,
                            *SPLIT)
          if (path := directory / name).is_file()]


def draw(directory: pathlib.Path, rows: Sequence[results.Row],
         methods: Sequence[str]) -> list[pathlib.Path]:
  """Draws the frontiers of some methods, beside both models alone.

  Args:
    directory: For the pictures, `CURVES`.
    rows: Of all points.
    methods: Names of curves, in the order of the legend.

  Raises:
    ValueError: The sweep has no such curve.
  """
  alone = (points.VERIFIER, points.DRAFTER)
  curves = list(dict.fromkeys(row.method for row in rows
                              if row.method not in alone))
  if unknown := [name for name in methods if name not in curves]:
    raise ValueError(f'Got the curve {unknown[0]!r}; allowed: '
                     f'{"; ".join(curves)}.')
  some = [row for name in (*alone, *methods) for row in rows
          if row.method == name]
  directory.mkdir(parents=True, exist_ok=True)
  _draw(directory, CURVES, plot.curves, plot.frontiers(some), some[0].metric,
        some)
  return [directory / name for name in CURVES]


def _draw(directory, names, picture: Callable[..., Any], *args: Any) -> None:
  with contextlib.ExitStack() as stack:
    plot.write([stack.enter_context(files.appearing(
        path, f'.partial{path.suffix}')) for path in map(
            directory.joinpath, names)], functools.partial(picture, *args))
