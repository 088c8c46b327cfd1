"""The table of drafters: a line a curve, and what a flat verifier would do."""
import dataclasses

import fakedetails
import pytest

from spec_cascades.evaluation import report
from spec_cascades.evaluation.report import drafters
from spec_cascades.evaluation.report import html
from spec_cascades.evaluation.report import sections

ALONE = dict(prefill=5., drafting=0., verification=40., sampling=4., rounds=20.)
DRAFTED = dict(prefill=6., drafting=9., verification=24., sampling=2.,
               rounds=8.)


@pytest.fixture(scope='module')
def summary():
  return fakedetails.make(limit=6)


def test_flat_gives_each_verification_the_time_of_a_step(summary):
  part, alone = (dataclasses.replace(summary.split[0], **x)
                 for x in (DRAFTED, ALONE))
  # A step takes 40 / 20 = 2 ms: 49 ms alone, 6 + 9 + 2 + 8 * 2 = 33 with it.
  assert drafters.flat(part, alone) == pytest.approx(49 / 33)
  assert drafters.flat(alone, alone) == 1


def test_every_point_with_drafts_has_its_line(summary):
  head, body = drafters.table(summary.rows, summary.drafting, summary.split)
  lines = [dict(zip(head, line)) for line in body]
  assert {(x['method'], x['alpha'], x['T']) for x in lines} == {
      (p.method, '-' if p.alpha is None else f'{p.alpha:g}',
       f'{p.temperature:g}') for p, _ in summary.drafting}
  for heat in {x['T'] for x in lines}:
    some = [float(x['tokens/call']) for x in lines if x['T'] == heat]
    assert some == sorted(some, reverse=True)
  split = {(x.method, x.alpha, x.temperature) for x in summary.split}
  rows = {(x.method, '-' if x.alpha is None else f'{x.alpha:g}',
           f'{x.temperature:g}'): x for x in summary.rows}
  for x in lines:
    row = rows[x['method'], x['alpha'], x['T']]
    low, high = map(float, x['95 %'].split(' to '))
    assert x['speed-up'] == f'{1 / row.relative_latency:.2f}x'
    assert low <= float(x['speed-up'][:-1]) <= high
    timed = (row.method, row.alpha, row.temperature) in split
    assert timed == (x['drafting'] != '-') == (x['if flat'] != '-')
  assert any(x['if flat'] != '-' for x in lines)


def test_page_and_files_have_it_where_time_was_split(summary, tmp_path):
  page = html.page(summary, 'title')
  assert drafters.TITLE in page
  report.write(tmp_path, summary)
  assert (tmp_path / report.TABLES / 'drafters.md').is_file()
  plain = dataclasses.replace(summary, split=None)
  assert drafters.TITLE not in html.page(plain, 'title')
  names = [x.name for x in sections.of_sweep(
      plain.rows, plain.comparisons, plain.drafting, plain.analysis)]
  assert 'drafts' in names and 'drafters' not in names
