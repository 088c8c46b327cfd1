"""Where the time goes: a bar per point, and the table behind it."""
from __future__ import annotations

import html
from typing import Sequence

from spec_cascades.evaluation import parts as parts_lib
from spec_cascades.evaluation import split as split_lib
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import table as table_lib

WIDTH, HEIGHT = 996, 14         # in a box of 1,000: lines have a width
MEANING = (
    'Milliseconds a text. Each part was jitted and timed by itself, the points '
    'in turn: a part is its median times how often the sweep ran it. The line '
    'is the whole decode, as the sweep measured it in one program. The two '
    'differ by what runs between the parts, by what stays in a cache where a '
    'part is repeated, and by what else the machine did.')
ALONE = (
    'Verification is the forward passes of the model that decodes: of a model '
    'alone all of them. Baselines, and drafters whose drafts differ in length '
    'or may be empty, are left out: their rounds differ in cost.')


def bars(splits: Sequence[split_lib.Split]) -> str:
  """All bars on one scale, by temperature."""
  longest = max(max(x.whole, sum(x.parts)) for x in splits)
  legend = ''.join(
      f'<span><svg class="key" viewBox="0 0 24 16" aria-hidden="true"><rect '
      f'class="{name}" width="24" height="16"/></svg><b>{name}</b> {what}'
      '</span>' for name, what in parts_lib.PARTS.items())
  groups = []
  for heat, curves in style.by_temperature(splits).items():
    lines = ''.join(_bar(x, longest) for line in curves.values() for x in line)
    groups.append(f'<h3>{html.escape(style.title(heat))}</h3>'
                  f'<div class="bars">{lines}</div>')
  return f'<div class="parts">{legend}</div>{"".join(groups)}'


def table(splits: Sequence[split_lib.Split]) -> table_lib.Table:
  """One line per point: parts, their sum, and the whole beside it."""
  head = ['method', 'alpha', 'T', *parts_lib.PARTS, 'sum', 'whole',
          'sum/whole', 'rounds']
  body = []
  for curves in style.by_temperature(splits).values():
    for x in (x for line in curves.values() for x in line):
      total = sum(x.parts)
      body.append([
          x.method, table_lib.NONE if x.alpha is None else f'{x.alpha:g}',
          f'{x.temperature:g}', *(f'{part:.2f}' for part in x.parts),
          f'{total:.2f}', f'{x.whole:.2f}', f'{total / x.whole:.0%}',
          f'{x.rounds:.1f}'])
  return head, body


def _bar(x: split_lib.Split, longest: float) -> str:
  """The name, the parts side by side, and a line at the whole."""
  scale = lambda ms: round(WIDTH * ms / longest, 1)
  parts, at = [], 0.
  for name, ms in zip(parts_lib.PARTS, x.parts):
    parts.append(f'<rect class="{name}" x="{scale(at)}" y="2" '
                 f'width="{scale(ms)}" height="{HEIGHT - 4}"/>')
    at += ms
  whole = scale(x.whole)
  parts.append(f'<line class="whole" x1="{whole}" x2="{whole}" y1="0" '
               f'y2="{HEIGHT}"/>')
  label = x.method + ('' if x.alpha is None else f' {x.alpha:g}')
  hint = ', '.join(f'{name} {ms:.2f}' for name, ms in zip(parts_lib.PARTS,
                                                         x.parts))
  hint = html.escape(f'{label}: {hint}; sum {at:.2f} of {x.whole:.2f} ms')
  return (f'<div><span>{html.escape(label)}</span><svg viewBox="0 0 1000 '
          f'{HEIGHT}" preserveAspectRatio="none" role="img" '
          f'aria-label="{hint}"><title>{hint}</title>{"".join(parts)}</svg>'
          '</div>')
