"""The report is whole, self-contained and says what the numbers can't."""
import dataclasses
import html.parser
import pathlib
import re
import tomllib
import xml.etree.ElementTree as ET

import fakesweep
from matplotlib import figure
import pytest

from spec_cascades import baselines
from spec_cascades.evaluation import points
from spec_cascades.evaluation import report
from spec_cascades.evaluation.report import acceptance
from spec_cascades.evaluation.report import plot
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import svg
from spec_cascades.evaluation.report import table
from spec_cascades import targets

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOID = {'meta', 'link', 'img', 'br'}


@pytest.fixture(scope='module')
def summary():
  return fakesweep.make(limit=40)


@pytest.fixture(scope='module')
def written(summary, tmp_path_factory):
  directory = tmp_path_factory.mktemp('report')
  return directory, report.write(directory, summary, title='A & B <c>')


class Page(html.parser.HTMLParser):
  """Checks that tags nest; collects text and attributes."""

  def __init__(self):
    super().__init__()
    self.stack, self.texts, self.attributes = [], [], []

  def handle_starttag(self, tag, attrs):
    self.attributes += attrs
    if tag not in VOID:
      self.stack.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.attributes += attrs

  def handle_endtag(self, tag):
    assert self.stack.pop() == tag

  def handle_data(self, data):
    self.texts.append(data)


def parse(directory):
  content = (directory / report.PAGE).read_text(encoding='utf-8')
  page = Page()
  page.feed(content)
  return content, page


def test_drafts_have_a_table_with_intervals(summary, written):
  """As many lines as points with a drafter; the fake rounds keep 1 draft."""
  head, body = table.drafting(summary.drafting)
  assert len(body) == sum(row.gamma > 0 for row in summary.rows)
  assert all(len(line) == len(head) for line in body)
  at = head.index('accepted at 1')
  assert {tuple(line[at:at + 2]) for line in body} == {('1.00', '1.00 to 1.00')}
  assert {line[at + 2] for line in body} == {'0.00'}
  content, page = parse(written[0])
  assert 'What the drafts yielded' in content and 'accepted at 2' in page.texts


def test_the_page_nests_and_escapes(written):
  _, page = parse(written[0])
  assert not page.stack and 'A & B <c>' in page.texts


def test_the_page_loads_nothing(written):
  content, page = parse(written[0])
  assert not re.search(r'https?:|url\(|@import|<link|<img|fetch', content)
  names = {name for name, _ in page.attributes}
  assert not names & {'src', 'srcset', 'style'}
  assert "default-src 'none'" in content


def test_points_and_rows_link_to_each_other_without_a_script(written, summary):
  _, page = parse(written[0])
  links = [value for name, value in page.attributes if name == 'href']
  anchors = [value for name, value in page.attributes if name == 'id']
  assert all(link.startswith('#') for link in links)
  assert len(set(anchors)) == len(anchors)
  assert {link[1:] for link in links} == set(anchors) - {'tip', 'intervals'}
  assert len(links) == len(set(links)) == 2 * len(summary.rows)


def test_the_package_ships_the_style_and_the_script():
  folder = pathlib.Path(report.__file__).parent
  rules = tomllib.loads((ROOT / 'pyproject.toml').read_text())[
      'tool']['setuptools']['package-data']['spec_cascades']
  shipped = {path for rule in rules
             for path in (ROOT / 'spec_cascades').glob(rule)}
  assert {folder / 'report.css', folder / 'report.js'} <= shipped


def test_the_page_shows_every_point_and_both_themes(written, summary):
  content, page = parse(written[0])
  words = ' '.join(page.texts)
  for row in summary.rows:
    assert row.method in words and f'{row.quality:.2f}' in words
  assert 'prefers-color-scheme: dark' in content and 'viewport' in content
  assert 'illustrative' in words and summary.rows[0].signature in words
  assert content.count('<svg viewBox') == 2          # T = 1 and T = 0


def test_acceptance_has_a_chart_per_method_and_temperature(summary):
  classes = {row.method: 'c' for row in summary.rows}
  tree = ET.fromstring(
      f'<div>{acceptance.charts(summary.drafting, classes)}</div>')
  drafted = [point for point, _ in summary.drafting]
  assert len(tree.findall('.//svg')) == len(
      {(point.method, point.temperature) for point in drafted})
  hints = [x.text for x in tree.iter('title')]
  assert len(hints) == len(drafted)
  assert all(hint.endswith('accepted 1.00 (1.00 to 1.00) at 1; '
                           '0.00 (0.00 to 0.00) at 2') for hint in hints)
  for line in tree.iter('line'):
    assert 0 <= float(line.get('y1')) <= acceptance.HEIGHT


def test_labels_of_a_small_chart_do_not_overlap():
  assert acceptance.apart([(12, .1), (10, .2), (50, .3)]) == [
      (10, .2), (22, .1), (50, .3)]


def test_each_panel_is_xml_inside_its_box(summary):
  marks = style.marks(row.method for row in summary.rows)
  classes = {name: 'c' for name in marks}
  for heat, curves in style.by_temperature(summary.rows).items():
    tree = ET.fromstring(svg.panel(heat, curves, classes, marks))
    numbers = [(float(x.get(a)), limit) for x in tree.iter()
               for a, limit in (('x1', svg.WIDTH), ('y1', svg.HEIGHT),
                                ('x2', svg.WIDTH), ('y2', svg.HEIGHT))
               if x.get(a)]
    assert numbers and all(0 <= value <= limit for value, limit in numbers)
    assert len(tree.findall('.//polyline')) == len(curves) - 1


def test_a_sweep_of_one_example_and_no_rule_is_drawn(tmp_path):
  small = fakesweep.make(limit=1, curves=(
      points.Curve(targets.Lossless, temperatures=(0.5,)),))
  text = report.write(tmp_path, small)
  assert 'SpecDecode' in text and 'T = 0.5' in (
      tmp_path / report.PAGE).read_text()


def test_the_pictures_are_a_png_and_a_pdf_with_truetype(written):
  pictures = {*report.FRONTIER, *report.REJECTION, *report.QUALITY,
              *report.ACCEPTANCE}
  assert {p.name for p in report.pictures(written[0])} == pictures
  assert {p.name for p in written[0].iterdir()} == {
      *pictures, report.PAGE, report.TABLES}
  for name in pictures:
    content = (written[0] / name).read_bytes()
    if name.endswith('.png'):
      assert content.startswith(b'\x89PNG') and len(content) > 10_000
    else:
      assert content.startswith(b'%PDF') and b'/FontFile2' in content
      assert b'/Type3' not in content


def test_quality_is_drawn_against_the_rejections_of_the_same_point(summary):
  spots = plot.qualities(summary.rows, summary.analysis.rejections)
  rows = {(r.method, r.temperature, r.alpha): r for r in summary.rows}
  drawn = {(x.method, x.temperature, x.alpha): x for x in spots}
  drafted = {key for key, row in rows.items() if row.gamma}
  assert set(drawn) == drafted | {(points.VERIFIER, heat, None)
                                  for heat in (0., 1.)}
  for key in drafted:
    row, spot = rows[key], drawn[key]
    assert spot.x[0] == pytest.approx(row.rejection_rate)
    assert spot.x[1] <= spot.x[0] <= spot.x[2]
    assert spot.y == (row.quality, row.quality_low, row.quality_high)
  drawing = plot.curves(spots, 'BLEU', summary.rows, plot.REJECTED)
  assert {axis.get_xlabel() for axis in drawing.axes} == {plot.REJECTED}


def test_baselines_that_judge_no_draft_show_no_rejections(tmp_path):
  """Whatever they count: p does not look at q's tokens there, one by one."""
  greedy = dict(temperatures=(0.,))
  made = fakesweep.make(limit=3, curves=(
      points.Curve(targets.Lossless, **greedy),
      points.Curve(baselines.TokenCascade, (.5,), **greedy),
      points.Curve(baselines.SeqCascade, (.5,), **greedy),
      points.Curve(baselines.OracleCascade, (.5,), **greedy),
      points.Curve(baselines.OriginalBiLD, (2.,), **greedy)))
  judged = {'SpecDecode', 'OriginalBiLD'}
  assert {r.method for r in made.rows if r.rejection_rate is not None} == judged
  assert {x.point.method for x in made.analysis.rejections} == judged
  head, body = table.points(made.rows)
  assert {line[0] for line in body if line[head.index('rejected')] != '-'
          } == judged
  head, body = table.drafting(made.drafting)
  assert len(body) == 5 and {
      line[0] for line in body if line[head.index('accepted at 1')] != '-'
      } == judged
  report.write(tmp_path, made)
  content = (tmp_path / report.PAGE).read_text('utf-8')
  assert content.count('share accepted by position') == 2


def test_acceptance_has_a_panel_per_method_and_temperature(summary):
  drawing = plot.accepted(summary.drafting, summary.rows)
  shown = [axis for axis in drawing.axes if axis.get_visible()]
  drafted = [point for point, _ in summary.drafting]
  assert len(shown) == len({(p.method, p.temperature) for p in drafted})
  lines = [line for axis in shown for line in axis.get_lines()
           if line.get_marker() == 'o']
  assert len(lines) == len(drafted)
  assert all(list(line.get_ydata()) == [1, 0] for line in lines)


def test_pictures_say_at_which_batch_the_clock_ran(summary):
  row = summary.rows[0]
  clock = lambda **changes: style.clock(dataclasses.replace(row, **changes))
  assert clock() == 'batch 1' and clock(timed_batch=8) == 'batch 8'
  assert clock(timed=9, timed_batch=8, trials=3) == (
      'latency of 9 at batch 8, 3 times')


def test_the_terminal_table_is_aligned(written, summary):
  block = table.text(table.points(summary.rows)).splitlines()
  assert len(block) == len(summary.rows) + 2
  assert len({len(line) for line in block}) == 1
  assert 'on 40 of 40 examples' in written[1]


def test_the_page_names_the_draft_lengths_of_rules(tmp_path):
  """Not that of a baseline, which has its own."""
  curves = (points.Curve(targets.Lossless, temperatures=(0.,), gammas=(3, 5)),
            points.Curve(baselines.OriginalBiLD, (2.,), (0.,)))
  report.write(tmp_path, fakesweep.make(limit=2, curves=curves))
  assert 'drafter chain:drafter, gamma 3, 5, batch 1' in (
      tmp_path / report.PAGE).read_text()


def test_faults_are_mentioned(summary):
  assert not any('non-finite' in note for note in table.notes(summary))
  faults = [f'Chow T=1, doc{i:03d}, round 2' for i in range(7)]
  broken = dataclasses.replace(summary, faults=faults)
  note, = (n for n in table.notes(broken) if 'non-finite' in n)
  assert '7 decodes' in note and faults[4] in note and 'and 2 more' in note


def test_an_interval_without_an_end_says_so():
  assert table.span(None, 1.5, 1) == 'none to 1.5'
  assert table.span(None, None, 1) == '-'


def test_a_legend_keeps_within_its_picture():
  drawing = figure.Figure(figsize=(plot.PANEL, plot.HEIGHT))
  axis = drawing.subplots()
  handles = {f'a method with a long name, {i}': axis.plot([0], [0])[0]
             for i in range(5)}
  plot._legend(drawing, handles, plot.PER_LINE)
  legend, = drawing.legends
  assert legend.get_window_extent().width <= drawing.bbox.width
  assert drawing.get_figheight() > plot.HEIGHT + 2 * plot.LEGEND


def test_curves_of_one_colour_differ_in_shape():
  """As many as a sweep of all rules at two draft lengths has."""
  names = [points.VERIFIER, points.DRAFTER, *map(str, range(48))]
  found = style.marks(names)
  looks = [(found[name].light, found[name].shape) for name in names[2:]]
  assert len(set(looks)) == 48
  assert [found[str(i)] for i in range(8)] == list(style.MARKS)
