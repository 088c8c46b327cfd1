"""Every table of a sweep with its heading: one list for page, terminal, files.
"""
from __future__ import annotations

import dataclasses
import re
import textwrap
from typing import Sequence

from spec_cascades.evaluation import analysis as analysis_lib
from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import estimated
from spec_cascades.evaluation import findings
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split as split_lib
from spec_cascades.evaluation.report import analysed
from spec_cascades.evaluation.report import drafters
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import table

CHOSEN = (
    'Settings are picked on {validation} texts, the validation half, and '
    'reported on the other {test}; {timed} and {test_timed} of them are timed. '
    '"none fits": no setting of the curve had the verifier\'s quality, or its '
    'time, on the validation half. Intervals resample the texts of the test '
    'half; the pick stays. Not corrected for the number of curves.')
TOO_FEW = (
    'Too few timed texts to pick settings on some and report others: '
    '{validation} and {test} texts, and each half needs {least} timed ones.')
FINDINGS = (
    'What the paper found, held against these curves at equal quality. '
    'Confirmed: the whole interval is at the claim\'s side of {bound}; '
    'refuted: none of it is; undecided: these texts can\'t tell. Against '
    'several rivals confirmed is against each, and refuted against one, at a '
    'level for their number; the one that decides is shown. Not corrected for '
    'the number of claims and curves. Curves meet where both span some '
    'quality; else their ends are compared.')
SPEED = (
    'How many times as fast the row\'s curve is as the column\'s: geometric '
    'mean over the qualities that both frontiers span, or at the best of the '
    'worse one where they span none together. Win or loss: the 95 % interval '
    'of the paired resamples excludes 1. Not corrected for the number of '
    'pairs. "ends": they span none together.')
BETTER = (
    'By how much {metric} of the row\'s curve exceeds the column\'s: mean over '
    'the latencies that both frontiers span, or at the lowest of the slower '
    'one where they span none together. Win or loss: the 95 % interval of the '
    'paired resamples excludes 0. Not corrected for the number of pairs.')
TRUNCATION = (
    'A truncation never reads q; what a token rule gains beyond it is due to '
    'q. Figures as in the tables of all pairs, and as little corrected for '
    'their number. Curves meet where both span some quality; else their ends '
    'are compared.')
# Headings by the names of the tables' files.
TITLES = dict(
    verifier='Against the verifier alone', points='All points',
    drafts='What the drafts yielded', drafters=drafters.TITLE,
    chosen='Settings chosen on other texts', claims='The paper\'s claims',
    truncation='Token rules against truncation alone',
    rejection='Rejections and latency')
# And of the matrices: at equal what, and the temperature.
WINS, WINS_TITLE = 'wins_at_equal_{}_T{}', 'Rules against each other'
TERMINAL = ('chosen', 'claims', 'truncation')
REJECTION = (
    'rejected: share of the draft tokens judged; relative: latency. Colours '
    'and marks are those of the first figure.')


@dataclasses.dataclass(frozen=True)
class Section:
  """A table.

  Attributes:
    name: Of its files.
    title: Heading; tables that follow each other may share it.
    table: Cells; without lines if there is nothing but the note.
    note: How to read it.
    caption: Which of several tables under one heading.
  """
  name: str
  title: str
  table: table.Table
  note: str = ''
  caption: str = ''


def of_sweep(rows: Sequence[results.Row],
             comparisons: Sequence[frontier.Comparison],
             drafting: Sequence[tuple[points_lib.Point, metrics.Drafting]],
             analysis: analysis_lib.Analysis,
             splits: Sequence[split_lib.Split] | None = None,
             on: estimated.Slice | None = None,
             predicted: Sequence[foretold.Foretold] | None = None
             ) -> list[Section]:
  """Every table there is, for files; that of drafters needs a time split or a
  slice of TPUs to estimate speed-ups on.
  """
  metric = rows[0].metric
  return [
      _section('verifier', table.comparisons(comparisons, metric)),
      _section('points', table.points(rows, predicted)),
      _section('drafts', table.drafting(drafting)),
      *([_section('drafters',
                  drafters.table(rows, drafting, splits or (), on),
                  drafters.meaning(on))] if splits or on else ()),
      *of_analysis(analysis, metric)]


def known(name: str) -> bool:
  """Whether a table of some sweep may have this name."""
  wins = WINS.format('(quality|latency)', r'[\d.e+-]+')
  return name in TITLES or re.fullmatch(wins, name) is not None


def text(sections: Sequence[Section]) -> str:
  """What a terminal shows of an analysis."""
  return '\n\n'.join(
      f'{section.title}\n{textwrap.fill(section.note)}'
      + (f'\n{table.text(section.table)}' if section.table[1] else '')
      for section in sections if section.name in TERMINAL)


def of_analysis(analysis: analysis_lib.Analysis, metric: str) -> list[Section]:
  """The tables of an analysis, in the order of a report."""
  found = [
      _section('chosen', analysed.chosen(analysis.choosing.choices, metric),
               _halves(analysis.choosing)),
      _section('claims', analysed.claims([x for x in analysis.findings
                                          if x.verdict != findings.ABSENT]),
               _findings(analysis.findings))]
  if pairs := analysed.truncation(analysis.contests):
    found.append(_section('truncation', analysed.controls(pairs, metric),
                          TRUNCATION))
  heats = dict.fromkeys(c.one.temperature for c in analysis.contests)
  for heat in sorted(heats, reverse=True):
    some = [c for c in analysis.contests if c.one.temperature == heat]
    for what, note in (('quality', SPEED),
                       ('latency', BETTER.format(metric=metric))):
      found.append(Section(
          WINS.format(what, f'{heat:g}'), WINS_TITLE,
          analysed.wins(some, speed=what == 'quality'), note,
          f'{style.title(heat)}: at equal {what}'))
  return [*found, _section(
      'rejection', analysed.rejection(analysis.rejections), REJECTION)]


def _section(name, cells, note='') -> Section:
  return Section(name, TITLES[name], cells, note)


def _findings(found: Sequence[findings.Finding]) -> str:
  note = FINDINGS.format(bound='its bound, which is 1, or '
                         f'{findings.AS_GOOD:g} for "as good"')
  absent = [x.claim for x in found if x.verdict == findings.ABSENT]
  return note + (f' This sweep has no curves to tell whether '
                 f'{"; ".join(absent)}.' if absent else '')


def _halves(found: choosing.Choosing) -> str:
  sizes = dict(validation=found.validation, test=found.test)
  return (CHOSEN.format(**sizes, timed=found.timed, test_timed=found.test_timed)
          if found.choices
          else TOO_FEW.format(**sizes, least=choosing.LEAST))
