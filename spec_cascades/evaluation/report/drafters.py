"""Drafters beside each other: what drafts yield, cost and would gain elsewhere.
"""
from __future__ import annotations

from typing import Sequence

from spec_cascades.evaluation import estimated
from spec_cascades.evaluation import kinds
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split as split_lib
from spec_cascades.evaluation.report import table as table_lib

TITLE = 'What drafts cost and gain'
MEANING = (
    'accepted: share of the rounds that judged a draft at a depth which kept '
    'one there. '
    'drafting: share of the time of a text, parts timed apart. if flat: the '
    'speed-up if a block cost the verifier what a token does, all else as '
    'timed here: what verification costs beyond that is why a drafter that '
    'gains there gains less here, or loses.')
ELSEWHERE = (
    ' on {name}: estimated, the tokens of this table at the costs of {models} '
    'there. Nothing but the verifier, small models, layers and heads costs '
    'there; a call of Medusa counts as one head. "-": not known from that.')


def meaning(on: estimated.Slice | None = None) -> str:
  """The note below the table."""
  return MEANING + (ELSEWHERE.format(name=on.name, models=on.models)
                    if on else '')


def table(rows: Sequence[results.Row],
          drafting: Sequence[tuple[points_lib.Point, metrics.Drafting]],
          splits: Sequence[split_lib.Split],
          on: estimated.Slice | None = None) -> table_lib.Table:
  """One line per curve with drafts and temperature, the most tokens first.

  Args:
    rows: Of a sweep.
    drafting: What its drafts yielded, see `metrics.drafting`.
    splits: Where its time went; points that are not there have no such cells.
    on: A slice of TPUs to estimate speed-ups on.

  Returns:
    Cells: method, alpha, T, tokens a verifier call and their interval,
    acceptance by depth, drafting's share of the time, speed-up over the
    verifier alone and its interval, the speed-up were verification flat, and
    that on the slice, if one is given.
  """
  head = ['method', 'alpha', 'T', 'tokens/call', '95 %', 'accepted',
          'drafting', 'speed-up', '95 %', 'if flat',
          *([f'on {on.name}'] if on else ())]
  name = lambda x: (x.method, x.alpha, x.temperature)
  yields = {name(point): found for point, found in drafting}
  parts = {name(x): x for x in splits}
  body = []
  for row in sorted((x for x in rows if name(x) in yields),
                    key=lambda x: (-x.temperature, -x.tokens_per_call)):
    found, part = yields[name(row)], parts.get(name(row))
    alone = parts.get((points_lib.VERIFIER, None, row.temperature))
    body.append([
        row.method, table_lib.NONE if row.alpha is None else f'{row.alpha:g}',
        f'{row.temperature:g}', f'{found.tokens.value:.2f}',
        table_lib.span(found.tokens.low, found.tokens.high, 2),
        ' '.join(f'{x.value:.2f}' for x in found.accepted) or table_lib.NONE,
        f'{part.drafting / sum(part.parts):.0%}' if part else table_lib.NONE,
        f'{1 / row.relative_latency:.2f}x',
        table_lib.span(1 / row.relative_high, 1 / row.relative_low, 2),
        f'{flat(part, alone):.2f}x' if part and alone else table_lib.NONE,
        *([_elsewhere(row, on)] if on else ())])
  return head, body


def _elsewhere(row, on) -> str:
  if row.rule.split('(')[0] in points_lib.UNJUDGED:    # its rounds are tokens
    return table_lib.NONE
  name, _, path = row.drafter.partition(':')
  found = estimated.speedup(row, kinds.KINDS[name].cost_of(path), on)
  return table_lib.NONE if found is None else f'{found:.2f}x'


def flat(part: split_lib.Split, alone: split_lib.Split) -> float:
  """Speed-up if each verification took what a step of the verifier takes.

  Args:
    part: Of a point with one verification a round.
    alone: Of the verifier alone, at the same temperature.
  """
  step = alone.verification / alone.rounds
  return sum(alone.parts) / (part.prefill + part.drafting + part.sampling
                             + part.rounds * step)
