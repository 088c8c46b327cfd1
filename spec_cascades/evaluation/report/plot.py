"""frontier.png: quality against latency, one panel a temperature."""
from __future__ import annotations

import pathlib
from typing import Sequence

from matplotlib import figure
from matplotlib.backends import backend_agg

from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation.report import style

INK, FAINT = '#1f2937', '#d7dbe0'


def write(path: pathlib.Path, rows: Sequence[results.Row]) -> None:
  """Draws all panels side by side."""
  panels = style.by_temperature(rows)
  marks = style.marks(row.method for row in rows)
  drawing = figure.Figure(figsize=(1.5 + 4.6 * len(panels), 4.6), dpi=150,
                          layout='constrained')
  backend_agg.FigureCanvasAgg(drawing)
  axes = drawing.subplots(1, len(panels), squeeze=False)[0]
  handles: dict[str, object] = {}
  for axis, (heat, curves) in zip(axes, panels.items()):
    for method, line in curves.items():
      artist = _curve(axis, method, line, marks[method])
      handles.setdefault(method, artist)
    _decorate(axis, heat)
  axes[0].set_ylabel(rows[0].metric, color=INK)
  drawing.legend(list(handles.values()), list(handles), frameon=False,
                 loc='outside lower center', ncols=min(8, len(handles)),
                 handlelength=1.8, columnspacing=1.4)
  first = rows[0]
  drawing.suptitle(f'{first.examples} texts of {first.data}, '
                   f'{style.clock(first)}, {first.device}', fontsize=10,
                   color=INK)
  drawing.savefig(path)


def _curve(axis, method, rows, mark):
  x = [row.relative_latency for row in rows]
  y = [row.quality for row in rows]
  if method == points.VERIFIER:
    return axis.axhline(y[0], color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
  line, = axis.plot(x, y, color=mark.light, linewidth=1.6, markersize=6,
                    marker=style.MATPLOTLIB[mark.shape],
                    markeredgecolor='white', markeredgewidth=.6, zorder=3)
  return line


def _decorate(axis, heat) -> None:
  axis.set_title(style.title(heat), fontsize=11, color=INK)
  axis.set_xlabel('latency relative to the verifier alone', color=INK)
  axis.set_xlim(left=0, right=max(1.1, axis.get_xlim()[1]))
  axis.margins(y=.12)
  axis.axvline(1, color=FAINT, linewidth=1, zorder=0)
  axis.grid(color=FAINT, linewidth=.5, alpha=.6)
  axis.set_axisbelow(True)
  axis.spines[['top', 'right']].set_visible(False)
  axis.spines[['left', 'bottom']].set_color(FAINT)
  axis.tick_params(colors=INK, labelsize=9)
