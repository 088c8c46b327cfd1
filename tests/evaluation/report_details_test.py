"""Time split and inspected texts on the page: whole, escaped, bounded."""
import dataclasses

import fakedetails
import pytest
from report_test import Page

from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import origins
from spec_cascades.evaluation import parts
from spec_cascades.evaluation import report
from spec_cascades.evaluation.report import html
from spec_cascades.evaluation.report import inspector
from spec_cascades.evaluation.report import plot
from spec_cascades.evaluation.report import split


@pytest.fixture(scope='module')
def summary():
  return fakedetails.make(limit=6)


def parse(summary):
  page = Page()
  page.feed(html.page(summary, 'title'))
  return page


def test_the_page_nests_and_loads_nothing(summary):
  page = parse(summary)
  assert not page.stack
  names = {name for name, _ in page.attributes}
  assert not names & {'src', 'srcset', 'style'}


def test_tokens_are_escaped_and_none_is_lost(summary):
  text = summary.texts[0]
  x = text.decoded[0]
  odd = dataclasses.replace(x.tokens[0], text='<b> & "')
  changed = dataclasses.replace(text, decoded=(dataclasses.replace(
      x, tokens=(odd, *x.tokens[1:])), *text.decoded[1:]))
  page = parse(dataclasses.replace(summary, texts=[changed]))
  assert not page.stack and '<b> & "' in page.texts
  titles = [value for name, value in page.attributes if name == 'title']
  assert len(titles) == sum(len(x.tokens) for x in text.decoded)


def test_what_was_not_asked_for_is_not_there(summary):
  page = parse(dataclasses.replace(summary, split=None, texts=None))
  assert not {'Where the time goes', 'Texts side by side'} & set(page.texts)
  page = parse(dataclasses.replace(summary, texts=[]))
  assert inspector.NONE_FIT in page.texts


def test_the_largest_page_is_bounded(summary):
  """As many long tokens as are ever shown take less than a megabyte."""
  token = inspected.Token('Donaudam', 'corrected', .000123, .000123, .000123)
  row = summary.rows[0]
  text = dataclasses.replace(summary.texts[0], decoded=(inspected.Decoded(
      row.key, (token,) * origins.MAX_TOKENS, 1, True),))
  classes = {r.method: 'm0' for r in summary.rows}
  section = inspector.section([text], summary.rows, classes)
  assert len(section.encode()) < 2**20


def test_the_table_has_the_sum_beside_the_whole(summary):
  head, body = split.table(summary.split)
  assert len(body) == len(summary.split)
  for line in body:
    cells = dict(zip(head, line))
    total = sum(float(cells[part]) for part in parts.PARTS)
    assert float(cells['sum']) == pytest.approx(total, abs=.03)
    share = float(cells['sum/whole'].rstrip('%')) / 100
    assert share == pytest.approx(total / float(cells['whole']), abs=.01)


def test_the_split_is_a_picture_with_a_bar_a_point(summary, tmp_path):
  drawing = plot.split(summary.split, summary.rows)
  widths = [bar.get_width() for axis in drawing.axes for bar in axis.patches]
  assert len(widths) == len(parts.PARTS) * len(summary.split)
  assert sum(widths) == pytest.approx(sum(sum(x.parts) for x in summary.split))
  report.write(tmp_path, summary)
  assert {*report.SPLIT} <= {p.name for p in report.pictures(tmp_path)}
  assert (tmp_path / report.SPLIT[0]).read_bytes().startswith(b'\x89PNG')
  assert b'/Type3' not in (tmp_path / report.SPLIT[1]).read_bytes()
