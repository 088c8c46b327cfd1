"""The tables of a report, as cells, and as aligned text for a terminal."""
from __future__ import annotations

from typing import Sequence

from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import style

Table = tuple[list[str], list[list[str]]]
NONE = '-'
SHOWN_FAULTS = 5


def points(rows: Sequence[results.Row],
           predicted: Sequence[foretold.Foretold] | None = None) -> Table:
  """One line per point; with predictions, if there are any."""
  told = {x.key: foretold.shown(x.predicted, x.decoded)
          for x in predicted or ()}
  head = ['method', 'alpha', 'T', rows[0].metric, '95 %', 'ms', 'relative',
          '95 %', 'rejected', 'tokens/call', *['predicted'] * bool(told),
          'deferred']
  body = []
  for row in ordered(rows):
    alone = not row.gamma
    body.append([
        row.method, NONE if row.alpha is None else f'{row.alpha:g}',
        f'{row.temperature:g}', f'{row.quality:.2f}',
        span(row.quality_low, row.quality_high, 1), f'{row.latency_mean:.1f}',
        f'{row.relative_latency:.2f}',
        span(row.relative_low, row.relative_high, 2),
        NONE if row.rejection_rate is None else f'{row.rejection_rate:.2f}',
        f'{row.tokens_per_call:.2f}',
        *[told.get(row.key, NONE)] * bool(told),
        NONE if alone else f'{row.deferral_rate:.2f}'])
  return head, body


def ordered(rows: Sequence[results.Row]) -> list[results.Row]:
  """Rows as the table of points has them."""
  return sorted(rows, key=lambda row: -row.temperature)


def comparisons(items: Sequence[frontier.Comparison], metric: str) -> Table:
  """One line per curve: speed at equal quality, quality at equal latency."""
  head = ['method', 'T', 'speed-up', '95 %', '', f'best {metric}', 'gain',
          '95 %', '', 'area', '95 %']
  body = []
  for item in sorted(items, key=lambda c: -c.temperature):
    fast, good, area = item.speedup, item.gain, item.area
    best = NONE if item.best is None else f'{item.best:.2f}'
    body.append([
        item.method, f'{item.temperature:g}', number(fast.value, '.2f', 'x'),
        span(fast.low, fast.high, 2), verdict(fast), best,
        number(good.value, '+.2f'), span(good.low, good.high, 2),
        verdict(good), number(area.value, '.2f'),
        span(area.low, area.high, 2)])
  return head, body


def drafting(items: Sequence[tuple[points_lib.Point, metrics.Drafting]]
             ) -> Table:
  """One line per point with drafts: tokens a call, acceptance by position."""
  deepest = max((len(found.accepted) for _, found in items), default=0)
  head = ['method', 'alpha', 'T', 'tokens/call', '95 %', 'without bonus',
          '95 %']
  for depth in range(1, deepest + 1):
    head += [f'accepted at {depth}', '95 %']
  body = []
  for point, found in sorted(items, key=lambda x: -x[0].temperature):
    line = [point.method, NONE if point.alpha is None else f'{point.alpha:g}',
            f'{point.temperature:g}']
    for x in (found.tokens, found.without_bonus, *found.accepted):
      line += [f'{x.value:.2f}', span(x.low, x.high, 2)]
    body.append(line + [NONE] * (len(head) - len(line)))
  return head, body


def text(table: Table) -> str:
  """Columns aligned: the first to the left, the others to the right."""
  head, body = table
  widths = [max(map(len, column)) for column in zip(head, *body)]
  lines = [head, ['-' * w for w in widths], *body]
  line = lambda cells: '  '.join(
      [cells[0].ljust(widths[0]),
       *(c.rjust(w) for c, w in zip(cells[1:], widths[1:]))]).rstrip()
  return '\n'.join(map(line, lines))


def notes(summary: summary_lib.Summary) -> list[str]:
  """What else a reader must know, one sentence each."""
  first, cost = summary.rows[0], summary.compilations
  out = [f'{e.method} at T=0 equals the verifier alone, token for token, on '
         f'{e.equal} of {e.examples} examples.' for e in summary.equalities]
  out.append(f'{cost.programs} XLA programs, compiled in {cost.seconds:.0f} s '
             'before the clock started; '
             f'{cost.while_timing} compiled while it ran.')
  out += [line for x in summary.predicted or () if (
      line := foretold.warning(x.point, x.predicted, x.decoded))]
  out += [f'Failed: {line}' for line in summary.failures]
  if summary.faults:
    more = len(summary.faults) - SHOWN_FAULTS
    out.append(f'{len(summary.faults)} decodes stopped at non-finite logits: '
               + '; '.join(summary.faults[:SHOWN_FAULTS])
               + (f'; and {more} more, see fault in examples.jsonl.'
                  if more > 0 else '.'))
  out.append(f'{first.metric}: {first.signature}.')
  out.append(f'{first.device} ({first.machine}), {style.clock(first)}, seed '
             f'{first.seed}, jax {first.versions["jax"]}.')
  return out


def everything(summary: summary_lib.Summary) -> str:
  """What a sweep prints when it is done."""
  return '\n\n'.join([
      text(points(summary.rows, summary.predicted)),
      'Against the verifier alone: speed-up at its quality, gain within its '
      'time\n("illustrative": the interval includes no difference, so '
      f'{_texts(summary.rows[0])} can\'t decide)\n'
      + text(comparisons(summary.comparisons, summary.rows[0].metric)),
      '\n'.join(notes(summary))])


def _texts(row: results.Row) -> str:
  """How many there are, and how many of them are timed."""
  some = '' if row.timed == row.examples else f', {row.timed} of them timed,'
  return f'{row.examples} texts{some}'


def span(low: float | None, high: float | None, digits: int) -> str:
  """An interval; an end that a frontier does not reach is called none."""
  ends = ['none' if x is None else f'{x:.{digits}f}' for x in (low, high)]
  return NONE if low is None and high is None else ' to '.join(ends)


def number(value: float | None, form: str, unit: str = '') -> str:
  """A figure in a format like '.2f', or that the frontier has none."""
  return 'not reached' if value is None else f'{value:{form}}{unit}'


def verdict(estimate: frontier.Estimate) -> str:
  """What a page marks; empty where the interval is on one side."""
  return 'illustrative' if estimate.illustrative else ''
