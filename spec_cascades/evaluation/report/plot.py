"""Pictures for papers, a panel a temperature: frontiers, and rejections."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Mapping, Sequence

import matplotlib
from matplotlib import figure

from spec_cascades.evaluation import analysis
from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation.report import style

INK, FAINT = '#1f2937', '#d7dbe0'
# Inches: a panel fills a column of a paper, two its whole width.
PANEL, HEIGHT, LEGEND = 3.3, 2.6, .17
PER_LINE = 4                      # entries of the legend a panel's width holds
# Text as text: TrueType, which every publisher takes; Type 3 is refused.
FONTS = {'pdf.fonttype': 42, 'font.size': 8}
Estimate = tuple[float, float, float]        # and the ends of its interval


@dataclasses.dataclass(frozen=True)
class Spot:
  """A point of a sweep in a picture."""
  method: str
  temperature: float
  alpha: float | None
  x: Estimate
  y: Estimate


def frontiers(rows: Sequence[results.Row]) -> list[Spot]:
  """Quality against latency."""
  return [Spot(r.method, r.temperature, r.alpha,
               (r.relative_latency, r.relative_low, r.relative_high),
               (r.quality, r.quality_low, r.quality_high)) for r in rows]


def rejections(found: Sequence[analysis.Rejection]) -> list[Spot]:
  """The share of drafts that was rejected, against latency."""
  return [Spot(r.point.method, r.point.temperature, r.point.alpha,
               (r.latency, r.low, r.high),
               (r.rate.value, r.rate.low, r.rate.high)) for r in found]


def write(paths: Sequence[pathlib.Path], spots: Sequence[Spot], what: str,
          rows: Sequence[results.Row]) -> None:
  """Draws all panels side by side, as the file names' endings say.

  Args:
    paths: One for each kind of file.
    spots: What to draw.
    what: Its vertical axis.
    rows: Of the sweep: they give curves their colours.
  """
  with matplotlib.rc_context(FONTS):
    drawing = _draw(spots, what, rows[0],
                    style.marks(row.method for row in rows))
    for path in paths:
      drawing.savefig(path)


def _draw(spots, what, first: results.Row, marks: Mapping[str, style.Mark]
          ) -> figure.Figure:
  panels = style.by_temperature(spots)
  drawing = figure.Figure(figsize=(PANEL * len(panels), HEIGHT), dpi=300,
                          layout='constrained')
  axes = drawing.subplots(1, len(panels), squeeze=False)[0]
  handles: dict[str, object] = {}
  for axis, (heat, curves) in zip(axes, panels.items()):
    for method, line in curves.items():
      artist = _curve(axis, method, line, marks[method])
      handles.setdefault(method, artist)
    _decorate(axis, heat)
  axes[0].set_ylabel(what, color=INK)
  _legend(drawing, handles, PER_LINE * len(panels))
  drawing.suptitle(f'{first.examples} texts of {first.data}\n'
                   f'{style.clock(first)}, {first.device}', fontsize=7,
                   color=INK)
  return drawing


def _legend(drawing, handles, most: int) -> None:
  """Below all panels, in as many columns as there is room for."""
  for columns in range(min(most, len(handles)), 0, -1):
    legend = drawing.legend(
        list(handles.values()), list(handles), frameon=False,
        loc='outside lower center', ncols=columns, fontsize=7, handlelength=1.6,
        columnspacing=1, handletextpad=.5, labelspacing=.3)
    if columns == 1 or legend.get_window_extent().width <= drawing.bbox.width:
      break
    legend.remove()
  drawing.set_figheight(HEIGHT + LEGEND * -(-len(handles) // columns))


def _curve(axis, method, spots, mark):
  x, y = ([getattr(spot, name)[0] for spot in spots] for name in 'xy')
  if method == points.VERIFIER:
    return axis.axhline(y[0], color=INK, linewidth=.9, linestyle=(0, (5, 3)))
  ends = lambda every: [[max(value - low, 0) for value, low, _ in every],
                        [max(high - value, 0) for value, _, high in every]]
  axis.errorbar(x, y, ends([spot.y for spot in spots]),
                ends([spot.x for spot in spots]),
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
