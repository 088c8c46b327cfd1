"""What the paper found, held against the curves of a sweep.

Each claim becomes a figure with an interval, and a bound that the figure has to
keep: confirmed where the whole interval keeps it, refuted where none of it
does, else undecided. Against several rivals a claim is confirmed where it is
against each, and refuted where it is against one whose interval is widened for
their number (Bonferroni): each has a figure of its own, as the least of several
looks small even where all are equal.

Reference: Narasimhan et al. (2025), https://arxiv.org/abs/2405.19261
"""
from __future__ import annotations

import dataclasses
from typing import Iterable, Sequence

import numpy as np

from spec_cascades.evaluation import contests
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import metrics

CONFIRMED, REFUTED, UNDECIDED = 'confirmed', 'refuted', 'undecided'
ABSENT = 'not in this sweep'
CASCADES = ('Chow', 'Diff', 'OPT', *contests.TOKEN)
SEQUENTIAL = ('SeqCascade', 'TokenCascade')
TUNED = ('LossyBeta', 'LossyBudget')
AS_GOOD = .95                   # no more than 5 % slower is as good
Lines = Sequence[contests.Line]


@dataclasses.dataclass(frozen=True)
class Finding:
  """A claim on some curves.

  Attributes:
    claim: In words.
    where: Curves and temperature; empty if the sweep has none for it.
    figure: What was estimated.
    estimate: None if the sweep has no curves for it.
    verdict: One of the words above.
    meet: Whether the curves span some quality together; None where the figure
      is not one at equal quality.
  """
  claim: str
  where: str = ''
  figure: str = ''
  estimate: frontier.Estimate | None = None
  verdict: str = ABSENT
  meet: bool | None = None


@dataclasses.dataclass(frozen=True)
class Duel:
  """The claim that some rules beat, or lose to, all of some others.

  Attributes:
    claim: In words.
    ours: Rules that the claim is about, each by itself.
    theirs: Rules that each is compared with: the one that decides is shown.
    bound: Of the figure, how many times as fast.
    strict: Whether the figure has to be above the bound.
    slower: The claim is that theirs are the faster ones.
    paired: Only curves of one gamma and drafter are compared.
  """
  claim: str
  ours: tuple[str, ...]
  theirs: tuple[str, ...]
  bound: float = 1.
  strict: bool = False
  slower: bool = False
  paired: bool = True

  def __call__(self, lines: Lines) -> list[Finding]:
    """A finding for each of ours at each temperature."""
    found = []
    for line in lines:
      rivals = [x for x in lines if x.rule in self.theirs
                and x.temperature == line.temperature
                and (not self.paired or _drafting(x) == _drafting(line))]
      if line.rule in self.ours and rivals:
        found.append(self._against(line, rivals))
    return found or [Finding(self.claim)]

  def _against(self, line, rivals) -> Finding:
    found = [_judged(
        self.claim, f'{line.method}, T={line.temperature:g}',
        f'{x.method} times as fast' if self.slower
        else f'times as fast as {x.method}',
        _speed(x, line) if self.slower else _speed(line, x), self.bound,
        self.strict, _meet(line, x), len(rivals)) for x in rivals]
    weight = (REFUTED, UNDECIDED, CONFIRMED).index
    return min(found, key=lambda x: (weight(x.verdict), x.estimate.value))


def lead_shrinks(lines: Lines) -> list[Finding]:
  """OPT against Diff, at the highest temperature and at the lowest."""
  claim, found = 'OPT\'s lead over Diff shrinks as T falls', []
  for drafting in dict.fromkeys(map(_drafting, lines)):
    both = {}
    for line in lines:
      if line.rule in ('OPT', 'Diff') and _drafting(line) == drafting:
        both.setdefault(line.temperature, {})[line.rule] = line
    leads = {heat: _speed(pair['OPT'], pair['Diff'])
             for heat, pair in both.items() if len(pair) == 2}
    if len(leads) > 1:
      low, high = min(leads), max(leads)
      found.append(_judged(
          claim, f'{both[high]["OPT"].method}, {both[high]["Diff"].method}',
          f'lead at T={high:g} over that at T={low:g}',
          leads[high] / leads[low], strict=True,
          meet=all(_meet(*both[x].values()) for x in (low, high))))
  return found or [Finding(claim)]


def wider_range(lines: Lines) -> list[Finding]:
  """The lowest latency of a rule's longest drafts and of its shortest."""
  claim = 'a larger gamma reaches lower latencies'
  return [_judged(
      claim, f'{long.method}, T={long.temperature:g}',
      f'lowest latency of {short.method} over its own',
      short.frontier.latencies[..., 0] / long.frontier.latencies[..., 0],
      strict=True) for short, long in _lengths(lines)] or [Finding(claim)]


def slow_at_the_top(lines: Lines) -> list[Finding]:
  """Latencies at the best quality that both lengths of draft reach."""
  claim, found = 'a larger gamma is slower near full quality', []
  for short, long in _lengths(lines):
    level = np.minimum(*(x.frontier.qualities[..., -1:] for x in (short, long)))
    ours, theirs = (x.frontier.latency_at(level)[..., 0] for x in (long, short))
    found.append(_judged(
        claim, f'{long.method}, T={long.temperature:g}',
        f'latency over that of {short.method} at the best quality of both',
        ours / theirs, strict=True, meet=_meet(short, long)))
  return found or [Finding(claim)]


CLAIMS = (
    Duel('token rules are no slower than Lossy', contests.TOKEN, ('Lossy',)),
    Duel('OPT is no slower than Diff', ('OPT',), ('Diff',)),
    lead_shrinks,
    Duel('Lossy with beta = 1 is as good as tuned', ('Lossy',), TUNED,
         bound=AS_GOOD),
    wider_range, slow_at_the_top,
    Duel('sequential cascades are the slowest', SEQUENTIAL, CASCADES,
         strict=True, slower=True, paired=False),
    Duel('token rules are faster than truncation alone', contests.TOKEN,
         contests.TRUNCATED, strict=True))


def check(lines: Lines) -> list[Finding]:
  """All claims, in order."""
  return [finding for claim in CLAIMS for finding in claim(lines)]


def verdict(low: float, high: float, bound: float, strict: bool) -> str:
  """Of an interval that should be at or, where strict, above a bound."""
  if low > bound or (low == bound and not strict):
    return CONFIRMED
  if high < bound or (high == bound and strict):
    return REFUTED
  return UNDECIDED


def _judged(claim, where, figure, values, bound=1., strict=False,
            meet=None, rivals=1) -> Finding:
  found = frontier.estimate(values, bound)
  _, high = metrics.interval(values[1:], rivals)
  return Finding(claim, where, figure, found,
                 verdict(found.low, high, bound, strict), meet)


def _meet(one: contests.Line, other: contests.Line) -> bool:
  return contests.meet(one.frontier, other.frontier)


def _speed(one: contests.Line, other: contests.Line) -> np.ndarray:
  return contests.faster(one.frontier, other.frontier)


def _drafting(line: contests.Line) -> tuple[int, str]:
  return line.gamma, line.drafter


def _lengths(lines: Lines) -> Iterable[tuple[contests.Line, contests.Line]]:
  """Of each rule with thresholds, the shortest and the longest drafts."""
  place = lambda x: (x.rule, x.drafter, x.temperature)
  for which in dict.fromkeys(map(place, lines)):
    some = sorted((x for x in lines if place(x) == which and x.settings > 1),
                  key=lambda x: x.gamma)
    if some and some[0].gamma < some[-1].gamma:
      yield some[0], some[-1]
