"""frontier.png and .pdf: quality against latency, a panel a temperature."""
from __future__ import annotations

import pathlib
from typing import Sequence

import matplotlib
from matplotlib import figure

from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation.report import style

INK, FAINT = '#1f2937', '#d7dbe0'
# Inches: a panel fills a column of a paper, two its whole width.
PANEL, HEIGHT, LEGEND = 3.3, 2.6, .17
PER_LINE = 4                      # entries of the legend a panel's width holds
# Text as text: TrueType, which every publisher takes; Type 3 is refused.
FONTS = {'pdf.fonttype': 42, 'font.size': 8}


def write(paths: Sequence[pathlib.Path], rows: Sequence[results.Row]) -> None:
  """Draws all panels side by side, as the file names' endings say."""
  with matplotlib.rc_context(FONTS):
    drawing = _draw(rows)
    for path in paths:
      drawing.savefig(path)


def _draw(rows) -> figure.Figure:
  panels = style.by_temperature(rows)
  marks = style.marks(row.method for row in rows)
  columns = PER_LINE * len(panels)
  lines = -(-len(marks) // columns)
  drawing = figure.Figure(
      figsize=(PANEL * len(panels), HEIGHT + LEGEND * lines), dpi=300,
      layout='constrained')
  axes = drawing.subplots(1, len(panels), squeeze=False)[0]
  handles: dict[str, object] = {}
  for axis, (heat, curves) in zip(axes, panels.items()):
    for method, line in curves.items():
      artist = _curve(axis, method, line, marks[method])
      handles.setdefault(method, artist)
    _decorate(axis, heat)
  axes[0].set_ylabel(rows[0].metric, color=INK)
  drawing.legend(list(handles.values()), list(handles), frameon=False,
                 loc='outside lower center', ncols=min(columns, len(handles)),
                 fontsize=7, handlelength=1.6, columnspacing=1,
                 handletextpad=.5, labelspacing=.3)
  first = rows[0]
  drawing.suptitle(f'{first.examples} texts of {first.data}\n'
                   f'{style.clock(first)}, {first.device}', fontsize=7,
                   color=INK)
  return drawing


def _curve(axis, method, rows, mark):
  x = [row.relative_latency for row in rows]
  y = [row.quality for row in rows]
  if method == points.VERIFIER:
    return axis.axhline(y[0], color=INK, linewidth=.9, linestyle=(0, (5, 3)))
  ends = lambda figure, low, high: [
      [max(getattr(row, figure) - getattr(row, low), 0) for row in rows],
      [max(getattr(row, high) - getattr(row, figure), 0) for row in rows]]
  axis.errorbar(x, y, ends('quality', 'quality_low', 'quality_high'),
                ends('relative_latency', 'relative_low', 'relative_high'),
                fmt='none', ecolor=mark.light, elinewidth=.7, alpha=.3)
  line, = axis.plot(x, y, color=mark.light, linewidth=1.1, markersize=4,
                    marker=style.MATPLOTLIB[mark.shape],
                    markeredgecolor='white', markeredgewidth=.4, zorder=3)
  return line


def _decorate(axis, heat) -> None:
  axis.set_title(style.title(heat), fontsize=8, color=INK)
  axis.set_xlabel('latency relative to the verifier alone', color=INK)
  axis.set_xlim(left=0, right=max(1.1, axis.get_xlim()[1]))
  axis.margins(y=.12)
  axis.axvline(1, color=FAINT, linewidth=.8, zorder=0)
  axis.grid(color=FAINT, linewidth=.5, alpha=.6)
  axis.set_axisbelow(True)
  axis.spines[['top', 'right']].set_visible(False)
  axis.spines[['left', 'bottom']].set_color(FAINT)
  axis.tick_params(colors=INK, labelsize=7)
