"""Draft lengths from a finished sweep's acceptance and measured step costs."""
from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any, Literal, Mapping, Sequence

import numpy as np

from spec_cascades import stats
from spec_cascades import theory
from spec_cascades.evaluation import costs as costs_lib
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import results
from spec_cascades.evaluation import rules

CHAIN = 'chain'
ASSUMED = {
    'positions': 'acceptance by position of a round, as measured at that '
                 'gamma: for shorter drafts an approximation, for longer ones '
                 'unknown',
    'iid': 'i.i.d. acceptance at one rate, whatever the position: what lets a '
           'plan go beyond the measured gamma',
    'texts': 'acceptance token by token, from one teacher-forced pass over the '
             'texts of the sweep: good for any gamma, and it knows where texts '
             'end'}
OMITTED = ('chains verified token by token; encoders, warps, rules and '
           'sampling take no time; unless texts say it, no round is cut short '
           'by the end of a text; a speed-up is over the verifier alone')


@dataclasses.dataclass(frozen=True)
class Forecast:
  """One point of a sweep: what was measured, and what is to be expected.

  Attributes:
    row: The point.
    rate: Accepted over judged drafts.
    rates: The same by position of a round, given those before.
    tokens: Predicted a verifier call, by gamma from 0.
    speedups: Predicted over the verifier alone, by gamma from 0.
    best: The plan; its `max_gamma` is the longest draft predicted.
    break_even: The rate above which a draft of one token pays; above 1, never.
  """
  row: results.Row
  rate: float
  rates: tuple[float, ...]
  tokens: tuple[float, ...]
  speedups: tuple[float, ...]
  best: theory.Plan
  break_even: float

  @property
  def measured_speedup(self) -> float:
    """Of the sweep itself, at its gamma, encoders and all."""
    return 1 / self.row.relative_latency


def read(path: pathlib.Path) -> tuple[list[results.Row], dict[str, int]]:
  """The points of a sweep that can be planned for, and why others can't.

  Raises:
    ValueError: Not a results file, a row that no sweep writes, or nothing to
      plan for; the message names file and line.
    OSError: It can't be read.
  """
  kept, left_out = [], {}
  for i, row in enumerate(results.read_rows(path), 1):
    reason = _unplannable(row, f'{path}, line {i}')
    if reason:
      left_out[reason] = left_out.get(reason, 0) + 1
    else:
      kept.append(row)
  if not kept:
    why = ', '.join(f'{n} {reason}' for reason, n in left_out.items())
    raise ValueError(f'{path} has no point to plan for ({why}); run a sweep '
                     'with a curve whose drafter is a chain.')
  return kept, left_out


def _unplannable(row: results.Row, where: str) -> str:
  """Why a row is left out, or ''; ValueError for what no sweep writes."""
  if not row.rule:
    return 'of a model alone'
  if row.rule not in rules.RULES:
    return 'of rules that are not in targets'
  kinds = dict(drafter=str, method=str, verifier=str, corrected=int, gamma=int,
               temperature=(int, float), histogram=list,
               alpha=(int, float, type(None)), relative_latency=(int, float))
  for name, kind in kinds.items():
    if not isinstance(getattr(row, name), kind):
      raise ValueError(f'{where}: {name} is {getattr(row, name)!r}; no sweep '
                       'writes that. Run it again.')
  if row.drafter.split(':')[0] != CHAIN:
    return f'drafted by {row.drafter.split(":")[0]}, not a chain'
  whole = all(type(x) is int for x in row.histogram)
  if not whole or len(row.histogram) != row.gamma + 1:
    raise ValueError(f'{where}: the histogram {row.histogram} does not go with '
                     f'gamma {row.gamma}. Run the sweep again.')
  return ''


def label(row: results.Row) -> str:
  """Method, alpha, temperature and what else the warp does."""
  alpha = '' if row.alpha is None else f' alpha={row.alpha:g}'
  cuts = ''.join(f' {name}={value:g}' for name, value, off in (
      ('top_k', row.top_k, 0), ('top_p', row.top_p, 1)) if value != off)
  return f'{row.method}{alpha} T={row.temperature:g}{cuts}'


def forecast(rows: Sequence[results.Row], costs: costs_lib.Costs, *,
             acceptance: Literal['positions', 'iid', 'texts'] = 'positions',
             texts: Mapping[str, theory.Texts] | None = None,
             max_gamma: int | None = None) -> list[Forecast]:
  """What each point's rule would do at every draft length, in order.

  Args:
    rows: Points drafted by chains.
    costs: Step times.
    acceptance: A key of `ASSUMED`.
    texts: For 'texts': by the key of a row, what `forced.acceptance` says.
    max_gamma: Longest draft; None for as long as costs and acceptance allow.

  Raises:
    ValueError: Counts or times that can't be; the message names the point.
  """
  times = costs.times
  given = dict(verifier=times.verifier, drafter=times.drafter)
  if acceptance not in ASSUMED or (acceptance == 'texts') != bool(texts):
    has = 'with' if texts else 'without'
    raise ValueError(f'acceptance {acceptance!r} {has} texts; allowed: '
                     f'{", ".join(ASSUMED)}, the last with texts that a chain '
                     'drafted.')
  if acceptance == 'texts':
    rows = [row for row in rows if row.key in texts]
  return [_forecast(row, times, given, acceptance, texts, max_gamma)
          for row in rows]


def _forecast(row, times, given, acceptance, texts, max_gamma) -> Forecast:
  name, uses_q = label(row), rules.RULES[row.rule].uses_q
  try:
    counts = row.histogram, row.corrected
    rate, rates = stats.iid_rate(*counts), stats.rates_by_position(*counts)
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from None
  judged = rates[~np.isnan(rates)]
  estimate: dict[str, Any] = dict(
      iid=dict(rate=rate), positions=dict(rates=judged),
      texts=dict(texts=(texts or {}).get(row.key)))[acceptance]
  best, = theory.plan({name: dict(uses_q=uses_q, **estimate)}, given, max_gamma)
  expected = dict(
      iid=lambda gamma: theory.expected_tokens(rate, gamma),
      positions=lambda gamma: theory.tokens_of_rates(judged[:gamma]),
      texts=lambda gamma: theory.tokens_per_call(texts[row.key], gamma))
  tokens = tuple(map(expected[acceptance], range(best.max_gamma + 1)))
  speedups = tuple(theory.speedup(x, gamma, times, uses_q=uses_q)
                   for gamma, x in enumerate(tokens))
  return Forecast(row, rate, tuple(judged.tolist()), tokens, speedups, best,
                  theory.break_even(times, uses_q=uses_q))


def errors(found: Sequence[Forecast]) -> list[float]:
  """Predicted over decoded tokens a call, less 1, each at its own gamma."""
  return [foretold.off(x.tokens[x.row.gamma], x.row.tokens_per_call)
          for x in found if x.row.gamma < len(x.tokens)]


def columns(longest: int) -> list[str]:
  """The head of `cells`."""
  return ['point', 'rate', 'by position',
          *(f'gamma {g}' for g in range(1, longest + 1)), 'best',
          'pays above', 'measured']


def cells(x: Forecast, longest: int) -> list[str]:
  """One line of the table: tokens a round and speed-up for each gamma."""
  each = [f'{t:.2f} {s:.2f}x' for t, s in zip(x.tokens[1:], x.speedups[1:])]
  best = f'{x.best.gamma}: {x.best.speedup:.2f}x'
  more = '+' * (x.best.gamma == x.best.max_gamma)
  above = f'{x.break_even:.2f}' if x.break_even <= 1 else 'never'
  fast = x.measured_speedup if x.row.relative_latency > 0 else math.nan
  return [label(x.row), f'{x.rate:.2f}', ' '.join(f'{r:.2f}' for r in x.rates),
          *each, *[''] * (longest - len(each)), best + more, above,
          f'{x.row.gamma}: {x.row.tokens_per_call:.2f} {fast:.2f}x']
