"""Quality against latency as inline SVG, coloured by the page's variables."""
from __future__ import annotations

import html
import math
from typing import Mapping, Sequence

from spec_cascades.evaluation import points
from spec_cascades.evaluation import results
from spec_cascades.evaluation.report import style

WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 30, 44
SIZE = 5.0                        # half a mark


class Scale:
  """Data -> pixels, with round ticks."""

  def __init__(self, low: float, high: float, start: float, end: float,
               count: int):
    self.step = _round_step((high - low) / count)
    self.low = math.floor(low / self.step + 1e-9) * self.step
    self.high = math.ceil(high / self.step - 1e-9) * self.step
    self.start, self.end = start, end

  def __call__(self, value: float) -> float:
    part = (value - self.low) / (self.high - self.low)
    return round(self.start + part * (self.end - self.start), 2)

  @property
  def ticks(self) -> list[float]:
    """Values at round steps, both ends included."""
    count = round((self.high - self.low) / self.step)
    return [self.low + i * self.step for i in range(count + 1)]


def _round_step(raw: float) -> float:
  """The next of 1, 2, 2.5, 5 times a power of ten: 0.13 -> 0.2."""
  power = 10.0 ** math.floor(math.log10(max(raw, 1e-6)))
  return next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= raw * .999)


def panel(heat: float, curves: Mapping[str, Sequence[results.Row]],
          classes: Mapping[str, str], marks: Mapping[str, style.Mark]) -> str:
  """One panel; curve m is drawn in the colour of CSS class classes[m]."""
  rows = [row for line in curves.values() for row in line]
  lows = [r.quality_low for r in rows] + [r.quality for r in rows]
  highs = [r.quality_high for r in rows] + [r.quality for r in rows]
  x = Scale(0, max(1.1, *(r.relative_high for r in rows)), LEFT,
             WIDTH - RIGHT, 6)
  y = Scale(max(min(lows), 0), max(max(highs), min(lows) + 1e-3),
             HEIGHT - BOTTOM, TOP, 5)
  metric = rows[0].metric
  parts = [grid(x, y, metric)]
  for method, line in curves.items():
    parts.append(f'<g class="curve {classes[method]}" '
                 f'data-curve="{classes[method]}">'
                 f'{_curve(x, y, line, marks[method])}</g>')
  label = html.escape(
      f'{metric} against relative latency, {style.title(heat)}')
  return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
          f'aria-label="{label}">{"".join(parts)}</svg>')


def key(mark: style.Mark, *, line: bool = False) -> str:
  """The sign of a curve in a legend."""
  inner = ('<line class="level" x1="1" x2="23" y1="8" y2="8"/>' if line else
           '<line class="line" x1="1" x2="23" y1="8" y2="8"/>'
           + sign(12, 8, mark.shape))
  return ('<svg class="key" viewBox="0 0 24 16" aria-hidden="true">'
          f'{inner}</svg>')


def grid(x: Scale, y: Scale, metric: str) -> str:
  """Lines and ticks; latency goes to the right, `metric` up."""
  parts = []
  for tick in y.ticks:
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                 f'y1="{y(tick)}" y2="{y(tick)}"/>')
    parts.append(f'<text x="{LEFT - 7}" y="{y(tick) + 4}" '
                 f'text-anchor="end">{tick:.4g}</text>')
  for tick in x.ticks:
    parts.append(f'<text x="{x(tick)}" y="{HEIGHT - BOTTOM + 17}" '
                 f'text-anchor="middle">{tick:.3g}</text>')
  parts.append(f'<line class="unit" x1="{x(1)}" x2="{x(1)}" y1="{TOP}" '
               f'y2="{HEIGHT - BOTTOM}"/>')
  parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
               'text-anchor="middle">latency relative to the verifier '
               'alone</text>')
  parts.append(f'<text x="2" y="{TOP - 17}">{metric}</text>')
  return ''.join(parts)


def _curve(x, y, rows, mark) -> str:
  if rows[0].method == points.VERIFIER:
    at = y(rows[0].quality)
    line = (f'<line class="level" x1="{x(x.low)}" x2="{x(x.high)}" y1="{at}" '
            f'y2="{at}"/><text class="strong" x="{LEFT + 4}" y="{at - 5}">'
            'verifier</text>')
  else:
    spots = ' '.join(f'{x(r.relative_latency)},{y(r.quality)}' for r in rows)
    line = f'<polyline class="line" points="{spots}"/>'
  return line + ''.join(_point(x, y, row, mark) for row in rows)


def _point(x, y, row, mark) -> str:
  """A mark with its intervals; a link to its row in the table."""
  a, b = x(row.relative_latency), y(row.quality)
  anchor = style.anchor(row)
  return (
      f'<a class="point" id="point-{anchor}" href="#row-{anchor}">'
      f'<title>{_hint(row)}</title>'
      f'<line class="whisker" x1="{a}" x2="{a}" y1="{y(row.quality_low)}" '
      f'y2="{y(row.quality_high)}"/>'
      f'<line class="whisker" x1="{x(row.relative_low)}" '
      f'x2="{x(row.relative_high)}" y1="{b}" y2="{b}"/>'
      f'{sign(a, b, mark.shape)}</a>')


def sign(x: float, y: float, shape: str) -> str:
  """A mark of a curve; `shape` is a key of `style.SHAPES`."""
  polygon = style.SHAPES[shape]
  if polygon is None:
    return f'<circle class="mark" cx="{x}" cy="{y}" r="{SIZE}"/>'
  corners = ' '.join(f'{x + SIZE * a:.2f},{y + SIZE * b:.2f}'
                     for a, b in polygon)
  return f'<polygon class="mark" points="{corners}"/>'


def _hint(row: results.Row) -> str:
  alpha = '' if row.alpha is None else f', alpha {row.alpha:g}'
  rejected = ('' if row.rejection_rate is None
              else f', {row.rejection_rate:.2f} of drafts rejected')
  return html.escape(
      f'{row.method}{alpha}, T {row.temperature:g}: {row.metric} '
      f'{row.quality:.2f} ({row.quality_low:.1f} to {row.quality_high:.1f}), '
      f'latency {row.relative_latency:.2f} of the verifier '
      f'({row.relative_low:.2f} to {row.relative_high:.2f}; '
      f'{row.latency_mean:.1f} ms), {row.tokens_per_call:.2f} tokens '
      f'per verifier call{rejected}')
