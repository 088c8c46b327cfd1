"""Acceptance by position as small SVG charts: a chart per method."""
from __future__ import annotations

import html
from typing import Iterable, Mapping, Sequence

from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points
from spec_cascades.evaluation.report import style

WIDTH, HEIGHT = 240, 150
LEFT, RIGHT, TOP, BOTTOM = 28, 38, 8, 32
LABEL = 12                        # least distance of two labels, by default
Line = tuple[points.Point, list[metrics.Estimate]]


def charts(drafting: Sequence[tuple[points.Point, metrics.Drafting]],
           classes: Mapping[str, str]) -> str:
  """All charts, by temperature; method m has the CSS class classes[m]."""
  accepted = {point: found.accepted for point, found in drafting
              if found.accepted}
  deepest = max(map(len, accepted.values()), default=0)
  parts = []
  for heat, curves in style.by_temperature(list(accepted)).items():
    figures = ''.join(
        f'<figure class="{classes[method]}">'
        f'<figcaption>{html.escape(method)}</figcaption>'
        f'{_chart(method, [(p, accepted[p]) for p in curve], deepest)}'
        '</figure>' for method, curve in curves.items())
    parts.append(f'<h3>{html.escape(style.title(heat))}</h3>'
                 f'<div class="smalls">{figures}</div>')
  return ''.join(parts)


def _chart(method: str, lines: Sequence[Line], deepest: int) -> str:
  label = html.escape(f'share accepted by position, {method}')
  parts = [_grid(deepest)]
  ends = []
  for i, (point, estimates) in enumerate(lines):
    aside = (i - (len(lines) - 1) / 2) * 3   # intervals side by side
    spots = [(_x(depth, deepest) + aside, e)
             for depth, e in enumerate(estimates, 1)]
    parts.append(_line(point, spots))
    ends.append((_y(spots[-1][1].value), point.alpha))
  parts += [f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4:.1f}">{alpha:g}</text>'
            for y, alpha in apart(e for e in ends if e[1] is not None)]
  return (f'<svg class="small" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
          f'aria-label="{label}">{"".join(parts)}</svg>')


def _x(depth: int, deepest: int) -> float:
  """Columns of equal width: 1 of 2 is a quarter of the way."""
  return LEFT + (depth - .5) / deepest * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
  return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _grid(deepest) -> str:
  parts = []
  for share in (0, .5, 1):
    y = _y(share)
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                 f'y1="{y}" y2="{y}"/><text x="{LEFT - 6}" y="{y + 4}" '
                 f'text-anchor="end">{share:g}</text>')
  every = -(-deepest // 8)
  parts += [f'<text x="{_x(depth, deepest):.1f}" y="{HEIGHT - BOTTOM + 15}" '
            f'text-anchor="middle">{depth}</text>'
            for depth in range(1, deepest + 1, every)]
  middle = (LEFT + WIDTH - RIGHT) / 2
  parts.append(f'<text x="{middle}" y="{HEIGHT - 3}" '
               'text-anchor="middle">position</text>')
  return ''.join(parts)


def _line(point, spots) -> str:
  path = ' '.join(f'{x:.1f},{_y(e.value):.1f}' for x, e in spots)
  bars = ''.join(
      f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(e.low):.1f}" '
      f'y2="{_y(e.high):.1f}"/><circle class="mark" cx="{x:.1f}" '
      f'cy="{_y(e.value):.1f}" r="3"/>' for x, e in spots)
  shares = '; '.join(f'{e.value:.2f} ({e.low:.2f} to {e.high:.2f}) at {depth}'
                     for depth, (_, e) in enumerate(spots, 1))
  hint = html.escape(f'{point.label}: accepted {shares}')
  return (f'<g><title>{hint}</title><polyline class="line" points="{path}"/>'
          f'{bars}</g>')


def apart(ends: Iterable[tuple[float, float]], least: float = LABEL
          ) -> list[tuple[float, float]]:
  """Moves labels down until none overlap: 10, 12 -> 10, 22."""
  placed: list[tuple[float, float]] = []
  for y, alpha in sorted(ends):
    placed.append((max(y, placed[-1][0] + least) if placed else y, alpha))
  return placed
