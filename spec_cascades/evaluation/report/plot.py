"""Pictures for papers: curves, acceptance by position, the time split."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Callable, Sequence

import matplotlib
from matplotlib import figure

from spec_cascades.evaluation import analysis
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import parts as parts_lib
from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split as split_lib
from spec_cascades.evaluation.report import acceptance
from spec_cascades.evaluation.report import style

INK, FAINT = '#1f2937', '#d7dbe0'
# Inches: a panel fills a column of a paper, two its whole width.
PANEL, HEIGHT, LEGEND = 3.3, 2.6, .17
PER_LINE = 4                      # entries of the legend a panel's width holds
SMALL, SMALL_HEIGHT, COLUMNS = PANEL / 2, 1.3, 4
TITLE, BAR = .7, .13              # inches: what is above and below bars, a bar
PARTS = ('#7a5f10', '#1f5fae', '#c2570c', '#0b7a80')    # as on the page
LATENCY = 'latency relative to the verifier alone'
REJECTED = 'share of drafts rejected'
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


def qualities(rows: Sequence[results.Row],
              found: Sequence[analysis.Rejection]) -> list[Spot]:
  """Quality against the share of drafts rejected, and the verifier's alone."""
  ends = lambda x: (x.value, x.low, x.high)
  return [spot for spot in frontiers(rows) if spot.method == points.VERIFIER
          ] + [Spot(r.point.method, r.point.temperature, r.point.alpha,
                    ends(r.rate), ends(r.quality)) for r in found]


def write(paths: Sequence[pathlib.Path],
          drawn: Callable[[], figure.Figure]) -> None:
  """Draws a picture into one file for each kind, as their endings say."""
  with matplotlib.rc_context(FONTS):
    drawing = drawn()
    drawing.get_layout_engine().execute(drawing)
    drawing.set_layout_engine('none')       # found once, for all files
    for path in paths:
      drawing.savefig(path)


def curves(spots: Sequence[Spot], what: str, rows: Sequence[results.Row],
           across: str = LATENCY) -> figure.Figure:
  """A panel a temperature, side by side.

  Args:
    spots: What to draw.
    what: Its vertical axis.
    rows: Of the sweep: they give curves their colours.
    across: Its horizontal axis.
  """
  panels, marks = style.by_temperature(spots), style.marks(
      row.method for row in rows)
  drawing = figure.Figure(figsize=(PANEL * len(panels), HEIGHT), dpi=300,
                          layout='constrained')
  axes = drawing.subplots(1, len(panels), squeeze=False)[0]
  handles: dict[str, object] = {}
  for axis, (heat, panel) in zip(axes, panels.items()):
    for method, line in panel.items():
      artist = _curve(axis, method, line, marks[method])
      handles.setdefault(method, artist)
    _decorate(axis, heat, across)
  axes[0].set_ylabel(what, color=INK)
  _legend(drawing, handles, PER_LINE * len(panels))
  _entitle(drawing, rows[0])
  return drawing


def accepted(drafting: Sequence[tuple[points.Point, metrics.Drafting]],
             rows: Sequence[results.Row]) -> figure.Figure:
  """Acceptance by position: a panel a method and temperature."""
  known = {point: found.accepted for point, found in drafting if found.accepted}
  panels = [(method, line) for panel in style.by_temperature(
      list(known)).values() for method, line in panel.items()]
  across = min(COLUMNS, len(panels))
  down, deepest = -(-len(panels) // across), max(map(len, known.values()))
  drawing = figure.Figure(figsize=(
      max(SMALL * across, PANEL), SMALL_HEIGHT * down + TITLE), dpi=300,
                          layout='constrained')
  axes = drawing.subplots(down, across, squeeze=False, sharey=True)
  marks = style.marks(row.method for row in rows)
  for axis, (method, line) in zip(axes.flat, panels):
    _positions(axis, [(x.alpha, known[x]) for x in line], marks[method].light)
    axis.set_xlim(.6, deepest + .9)
    axis.set_xticks(range(1, deepest + 1, -(-deepest // 8)))
    axis.set_title(f'{method}\n{style.title(line[0].temperature)}', fontsize=6,
                   color=INK)
  for axis in axes.flat[len(panels):]:
    axis.set_visible(False)
  drawing.supxlabel('position of the draft token', fontsize=8, color=INK)
  drawing.supylabel('share accepted', fontsize=8, color=INK)
  _entitle(drawing, rows[0])
  return drawing


def split(splits: Sequence[split_lib.Split],
          rows: Sequence[results.Row]) -> figure.Figure:
  """Where the time goes: a panel a temperature, a bar a point."""
  panels = style.by_temperature(splits)
  bars = {heat: [x for line in panel.values() for x in line]
          for heat, panel in panels.items()}
  drawing = figure.Figure(figsize=(
      PANEL * len(panels), BAR * max(map(len, bars.values())) + 2 * TITLE),
                          dpi=300, layout='constrained')
  axes = drawing.subplots(1, len(panels), squeeze=False, sharex=True)[0]
  for axis, (heat, some) in zip(axes, bars.items()):
    axis.set_ylim(max(map(len, bars.values())) - .4, -.6)
    handles = _bars(axis, some)
    axis.set_title(style.title(heat), fontsize=8, color=INK)
    axis.set_xlabel('milliseconds a text', color=INK)
    _plain(axis)
  drawing.legend(
      list(handles.values()), list(handles), frameon=False, fontsize=7,
      loc='outside lower center', ncols=len(handles) if len(axes) > 1 else 3,
      columnspacing=1, handletextpad=.5)
  _entitle(drawing, rows[0])
  return drawing


def _entitle(drawing, first: results.Row) -> None:
  drawing.suptitle(f'{first.examples} texts of {first.data}\n'
                   f'{style.clock(first)}, {first.device}', fontsize=7,
                   color=INK)


def _positions(axis, lines, colour) -> None:
  """A line an alpha, with intervals side by side, named at its end."""
  height, ends = 72 * SMALL_HEIGHT, []
  for i, (alpha, estimates) in enumerate(lines):
    aside = (i - (len(lines) - 1) / 2) * .06
    x = [depth + aside for depth in range(1, len(estimates) + 1)]
    y = [e.value for e in estimates]
    axis.errorbar(x, y, [[max(e.value - e.low, 0) for e in estimates],
                         [max(e.high - e.value, 0) for e in estimates]],
                  fmt='none', ecolor=colour, elinewidth=.7, alpha=.4)
    axis.plot(x, y, color=colour, linewidth=1, marker='o', markersize=2.5,
              markeredgecolor='white', markeredgewidth=.3)
    if alpha is not None:
      ends.append(((1 - y[-1]) * height, alpha))
  for y, alpha in acceptance.apart(ends, least=9):
    axis.annotate(f'{alpha:g}', (x[-1], 1 - y / height), xytext=(5, -2),
                  textcoords='offset points', fontsize=5, color=INK,
                  annotation_clip=False)
  axis.set_ylim(-.05, 1.05)
  _plain(axis)


def _bars(axis, splits) -> dict[str, object]:
  """The parts side by side and a line at the whole; what a legend names."""
  left, at = [0.] * len(splits), range(len(splits))
  handles = {}
  for name, colour in zip(parts_lib.PARTS, PARTS):
    widths = [getattr(x, name) for x in splits]
    handles[name] = axis.barh(at, widths, left=left, color=colour, height=.7)
    left = [a + b for a, b in zip(left, widths)]
  handles['the whole, as one program'] = axis.vlines(
      [x.whole for x in splits], [i - .48 for i in at], [i + .48 for i in at],
      color=INK, linewidth=1)
  axis.set_yticks(at, [x.method + (
      '' if x.alpha is None else f' {x.alpha:g}') for x in splits])
  return handles


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


def _decorate(axis, heat, across) -> None:
  axis.set_title(style.title(heat), fontsize=8, color=INK)
  axis.set_xlabel(across, color=INK)
  right = axis.get_xlim()[1]
  axis.set_xlim(0, max(1.1, right) if across == LATENCY else 1.04 * right)
  axis.margins(y=.12)
  if across == LATENCY:
    axis.axvline(1, color=FAINT, linewidth=.8, zorder=0)
  _plain(axis)


def _plain(axis) -> None:
  axis.grid(color=FAINT, linewidth=.5, alpha=.6)
  axis.set_axisbelow(True)
  axis.spines[['top', 'right']].set_visible(False)
  axis.spines[['left', 'bottom']].set_color(FAINT)
  axis.tick_params(colors=INK, labelsize=7)
