"""The tables of an analysis, as cells."""
from __future__ import annotations

from typing import Sequence

from spec_cascades.evaluation import analysis as analysis_lib
from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import contests
from spec_cascades.evaluation import findings
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation.report import table


def chosen(choices: Sequence[choosing.Choice], metric: str) -> table.Table:
  """Two lines per curve: the fastest setting and the best."""
  head = ['method', 'T', 'picked as', 'alpha', 'speed-up', '95 %', '', metric,
          'gain', '95 %', '']
  body = []
  for choice in sorted(choices, key=lambda c: -c.temperature):
    line = [choice.method, f'{choice.temperature:g}', choice.goal]
    if choice.point is None:
      line += ['none fits', *[table.NONE] * 2, '', *[table.NONE] * 3, '']
    else:
      alpha, fast, good = choice.point.alpha, choice.speedup, choice.gain
      line += [table.NONE if alpha is None else f'{alpha:g}',
               f'{fast.value:.2f}x', table.span(fast.low, fast.high, 2),
               table.verdict(fast), f'{choice.quality:.2f}',
               f'{good.value:+.2f}', table.span(good.low, good.high, 2),
               table.verdict(good)]
    body.append(line)
  return head, body


def claims(items: Sequence[findings.Finding]) -> table.Table:
  """A line per claim and curve that it is about."""
  head = ['claim', 'curve', 'figure', 'value', '95 %', 'verdict', 'curves']
  body = []
  for item in items:
    found = item.estimate
    figures = [table.NONE, table.NONE] if found is None else [
        f'{found.value:.2f}', table.span(found.low, found.high, 2)]
    body.append([item.claim, item.where or table.NONE,
                 item.figure or table.NONE, *figures, item.verdict,
                 table.NONE if item.meet is None else _curves(item.meet)])
  return head, body


def truncation(items: Sequence[contests.Contest]) -> list[contests.Contest]:
  """Those of a token rule against a truncation with drafts like its own."""
  return [c for c in items if c.one.rule in contests.TOKEN
          and c.other.rule in contests.TRUNCATED
          and (c.one.gamma, c.one.drafter) == (c.other.gamma, c.other.drafter)]


def controls(items: Sequence[contests.Contest], metric: str) -> table.Table:
  """A line per pair of curves."""
  head = ['token rule', 'truncation', 'T', 'times as fast', '95 %', '',
          f'{metric} more', '95 %', '', 'curves']
  body = [[c.one.method, c.other.method, f'{c.one.temperature:g}',
           f'{c.speed.value:.2f}', table.span(c.speed.low, c.speed.high, 2),
           contests.outcome(c.speed, 1.), f'{c.quality.value:+.2f}',
           table.span(c.quality.low, c.quality.high, 2),
           contests.outcome(c.quality, 0.), _curves(c.meet)]
          for c in sorted(items, key=lambda c: -c.one.temperature)]
  return head, body


def wins(items: Sequence[contests.Contest], *, speed: bool) -> table.Table:
  """Rows against columns, at equal quality (`speed`) or at equal latency."""
  methods = list(dict.fromkeys(
      name for c in items for name in (c.one.method, c.other.method)))
  cells, scores = {}, {name: [] for name in methods}
  for c in items:
    found, neutral = (c.speed, 1.) if speed else (c.quality, 0.)
    scores[c.one.method].append(contests.outcome(found, neutral))
    cells[c.one.method, c.other.method] = _cell(
        found, neutral, speed, c.meet)
  counts = lambda name: [str(scores[name].count(contests.WIN)),
                         str(scores[name].count(contests.LOSS))]
  body = [[one, *counts(one), *(cells.get((one, other), table.NONE)
                                for other in methods)] for one in methods]
  return ['method', 'won', 'lost', *methods], body


def rejection(items: Sequence[analysis_lib.Rejection]) -> table.Table:
  """A line per point."""
  head = ['method', 'alpha', 'T', 'rejected', '95 %', 'relative', '95 %']
  body = [[x.point.method,
           table.NONE if x.point.alpha is None else f'{x.point.alpha:g}',
           f'{x.point.temperature:g}', f'{x.rate.value:.2f}',
           table.span(x.rate.low, x.rate.high, 2), f'{x.latency:.2f}',
           table.span(x.low, x.high, 2)]
          for x in sorted(items, key=lambda x: -x.point.temperature)]
  return head, body


def _curves(meet: bool) -> str:
  return 'meet' if meet else 'ends'


def _cell(found: frontier.Estimate, neutral: float, speed: bool,
          meet: bool) -> str:
  figure = f'{found.value:.2f}x' if speed else f'{found.value:+.2f}'
  ends = ', ends' if speed and not meet else ''
  return (f'{contests.outcome(found, neutral)} {figure} '
          f'({table.span(found.low, found.high, 2)}{ends})')
