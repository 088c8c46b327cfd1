"""Rejection rate against latency as SVG: a panel a temperature."""
from __future__ import annotations

import html
from typing import Mapping, Sequence

from spec_cascades.evaluation import analysis
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import svg

Line = Sequence[analysis.Rejection]


def panels(found: Line, classes: Mapping[str, str],
           marks: Mapping[str, style.Mark]) -> str:
  """All panels; method m has the CSS class classes[m]."""
  by_point = {x.point: x for x in found}
  figures = ''.join(
      f'<figure><figcaption>{html.escape(style.title(heat))}</figcaption>'
      + _panel(heat, {method: [by_point[p] for p in curve]
                      for method, curve in curves.items()}, classes, marks)
      + '</figure>'
      for heat, curves in style.by_temperature(list(by_point)).items())
  return f'<div class="panels">{figures}</div>'


def _panel(heat, curves: Mapping[str, Line], classes, marks) -> str:
  every = [x for line in curves.values() for x in line]
  x = svg.Scale(0, max(1.1, *(r.high for r in every)), svg.LEFT,
                svg.WIDTH - svg.RIGHT, 6)
  y = svg.Scale(0, max(.1, *(r.rate.high for r in every)),
                svg.HEIGHT - svg.BOTTOM, svg.TOP, 5)
  lines = ''.join(f'<g class="{classes[method]}">'
                  f'{_line(x, y, line, marks[method])}</g>'
                  for method, line in curves.items())
  label = html.escape(f'share of drafts rejected against relative latency, '
                      f'{style.title(heat)}')
  return (f'<svg role="img" viewBox="0 0 {svg.WIDTH} {svg.HEIGHT}" '
          f'aria-label="{label}">{svg.grid(x, y, "rejected")}{lines}</svg>')


def _line(x, y, line: Line, mark: style.Mark) -> str:
  spots = ' '.join(f'{x(r.latency)},{y(r.rate.value)}' for r in line)
  return (f'<polyline class="line" points="{spots}"/>'
          + ''.join(_spot(x, y, r, mark) for r in line))


def _spot(x, y, found: analysis.Rejection, mark) -> str:
  a, b, rate = x(found.latency), y(found.rate.value), found.rate
  hint = html.escape(
      f'{found.point.label}: {rate.value:.2f} of drafts rejected '
      f'({rate.low:.2f} to {rate.high:.2f}), latency {found.latency:.2f} of '
      f'the verifier ({found.low:.2f} to {found.high:.2f})')
  return (f'<g><title>{hint}</title>'
          f'<line class="whisker" x1="{a}" x2="{a}" y1="{y(rate.low)}" '
          f'y2="{y(rate.high)}"/><line class="whisker" x1="{x(found.low)}" '
          f'x2="{x(found.high)}" y1="{b}" y2="{b}"/>'
          f'{svg.sign(a, b, mark.shape)}</g>')
