"""Tables: the same cells on the page, in the terminal and in files."""
import csv
import html
import io
import re
import xml.etree.ElementTree as ET

import fakesweep
import hypothesis
from hypothesis import strategies as st
import markdown_it
import pytest

from spec_cascades.evaluation import contests
from spec_cascades.evaluation import points
from spec_cascades.evaluation import report
from spec_cascades.evaluation.report import analysed
from spec_cascades.evaluation.report import export
from spec_cascades.evaluation.report import rejection
from spec_cascades.evaluation.report import sections
from spec_cascades.evaluation.report import style
from spec_cascades import targets

ODD = 'Token & <co> 5% $x$ #1 a_b {c} ~d^e \\f | *g* `h` [i] "j", k'
CELLS = st.text(st.one_of(st.sampled_from('&%$#_{}~^\\<>|*`[]"\',!-+ a1'),
                          st.characters(codec='utf-8', exclude_categories=(
                              'Cc', 'Cf', 'Cs', 'Zl', 'Zp', 'Zs', 'Co', 'Cn'))),
                max_size=8)
TABLES = st.integers(1, 4).flatmap(lambda n: st.tuples(
    st.lists(CELLS, min_size=n, max_size=n),
    st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=3)))
LATEX = {r'\&': '&', r'\%': '%', r'\$': '$', r'\#': '#', r'\_': '_',
         r'\{': '{', r'\}': '}', r'\textasciitilde{}': '~', r'\^{}': '^',
         r'\textbackslash{}': '\\', r'\ensuremath{<}': '<',
         r'\ensuremath{>}': '>', '{}': ''}


@pytest.fixture(scope='module')
def summary():
  curves = (points.Curve(targets.Lossless, temperatures=(1.,)),
            points.Curve(targets.TokenV3, (.2, .8), (1.,), name=ODD),
            points.Curve(targets.TruncatedMinP, (.2, .8), (1.,)))
  return fakesweep.make(limit=16, curves=curves)


@pytest.fixture(scope='module')
def written(summary, tmp_path_factory):
  directory = tmp_path_factory.mktemp('report')
  return directory, report.write(directory, summary)


def plain(table):
  return [[' '.join(cell.split()) for cell in line]
          for line in (table[0], *table[1])]


def from_markdown(text):
  tokens = markdown_it.MarkdownIt().enable('table').parse(text)
  lines = []
  for token in tokens:
    if token.type == 'tr_open':
      lines.append([])
    if token.type == 'inline':
      assert {x.type for x in token.children} <= {'text', 'text_special'}
      lines[-1].append(''.join(x.content for x in token.children))
  return lines


def from_latex(text):
  """Reads back what LaTeX would print; fails at anything it would not."""
  assert text.startswith('\\begin{tabular}') and '\\bottomrule' in text
  lines = []
  for line in text.splitlines()[2:-2]:
    if line == '\\midrule':
      continue
    assert line.endswith(' \\\\') and not re.match(r'\s*[\[*]', line)
    cells = re.split(r'(?<!\\)&', line[:-3])
    parts = [re.findall('|'.join(map(re.escape, LATEX)) + r'|[^\\&%$#_{}~^<>]',
                        cell) for cell in cells]
    assert [''.join(x) for x in parts] == cells
    lines.append([''.join(LATEX.get(x, x) for x in some).strip()
                  for some in parts])
  return lines


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(TABLES)
def test_every_form_reads_back_as_the_same_cells(table):
  want = plain(table)
  assert list(csv.reader(io.StringIO(export.comma(table)))) == want
  assert from_latex(export.latex(table)) == want
  assert from_markdown(export.markdown(table)) == want


def test_files_page_and_terminal_have_the_same_numbers(written, summary):
  directory, text = written
  page = html.unescape(re.sub('<[^>]*>', '\n', (
      directory / report.PAGE).read_text('utf-8')))
  tables = sections.of_sweep(summary.rows, summary.comparisons,
                             summary.drafting, summary.analysis)
  assert {f.name for f in (directory / report.TABLES).iterdir()} == {
      f'{x.name}.{end}' for x in tables for end in ('md', 'tex', 'csv')}
  assert all(map(export.ours, (directory / report.TABLES).iterdir()))
  for section in tables:
    path = directory / report.TABLES / section.name
    want = plain(section.table)
    assert section.title in page
    assert from_markdown(path.with_name(f'{path.name}.md').read_text()) == want
    assert from_latex(path.with_name(f'{path.name}.tex').read_text()) == want
    assert list(csv.reader(path.with_name(f'{path.name}.csv').open(
        encoding='utf-8', newline=''))) == want
    for cell in {x for line in section.table[1] for x in line}:
      assert cell in page
      assert section.name not in sections.TERMINAL or cell in text


def test_tables_of_an_earlier_analysis_go(tmp_path):
  """Those that are not made now, or have no line; not what others put there."""
  full = (['method'], [['one']])
  names = ['drafters', 'wins_at_equal_latency_T0.5', 'drafts', 'points']
  folder = export.write(tmp_path, [sections.Section(name, 'title', full)
                                   for name in names])
  others = {'ours.tex', 'points.pdf', 'points_T1.md', 'my_points.md',
            'wins_at_equal_latency.md', 'drafts.md.partial'}
  for name in others:
    (folder / name).write_text('by hand')
  assert len(list(folder.iterdir())) == 18
  export.write(tmp_path, [sections.Section('points', 'title', full),
                          sections.Section('drafts', 'title', (['a'], []))])
  assert {f.name for f in folder.iterdir()} == {
      'points.md', 'points.tex', 'points.csv', *others}


def test_names_of_tables_are_told_once(tmp_path, monkeypatch):
  """A table that is new in the list of them goes like the others."""
  monkeypatch.setitem(sections.TITLES, 'later', 'A table of tomorrow')
  full = (['method'], [['one']])
  folder = export.write(tmp_path, [sections.Section('later', 'title', full)])
  assert len(list(folder.iterdir())) == 3
  export.write(tmp_path, [])
  assert not list(folder.iterdir())


def test_pictures_of_two_processes_do_not_meet(summary, tmp_path, monkeypatch):
  """Two containers that share a folder may have one number of a process."""
  taken = []

  def drawn(paths, picture):
    del picture
    taken.extend(paths)
    for path in paths:
      path.touch()

  monkeypatch.setattr(report.plot, 'write', drawn)
  for _ in range(2):
    report.draw(tmp_path, summary.rows, [ODD])
  assert len(set(taken)) == 4
  assert {path.name for path in tmp_path.iterdir()} == set(report.CURVES)


def test_truncation_has_a_table_where_a_sweep_has_both(summary):
  _, body = analysed.controls(analysed.truncation(summary.analysis.contests),
                              'BLEU')
  assert [line[:3] for line in body] == [[ODD, 'TruncatedMinP', '1']]
  assert {line[5] for line in body} <= {
      contests.WIN, contests.LOSS, contests.UNDECIDED}
  only = [c for c in summary.analysis.contests
          if c.other.rule not in contests.TRUNCATED]
  assert analysed.truncation(only) == []


def test_a_matrix_has_each_pair_twice_and_counts_them(summary):
  head, body = analysed.wins(summary.analysis.contests, speed=True)
  assert head[3:] == [line[0] for line in body] and len(body) == 3
  for i, line in enumerate(body):
    assert line[3 + i] == '-'
    assert line[1] == str(sum(x.startswith('win') for x in line[3:]))
    assert line[2] == str(sum(x.startswith('loss') for x in line[3:]))
  swap = dict(win='loss', loss='win')
  for i, j in ((0, 1), (0, 2), (1, 2)):
    one, other = (body[a][3 + b].split()[0] for a, b in ((i, j), (j, i)))
    assert one == swap.get(other, other)


def test_rejections_are_drawn_within_the_panel(summary):
  found = summary.analysis.rejections
  assert len(found) == 5
  names = dict.fromkeys(x.point.method for x in found)
  tree = ET.fromstring(rejection.panels(
      found, {name: 'c' for name in names}, style.marks(names)))
  assert len(tree.findall('.//polyline')) == 3
  hints = [x.text for x in tree.iter('title')]
  assert len(hints) == 5 and all('of drafts rejected (' in x for x in hints)
  for x in tree.iter('line'):
    assert 0 <= float(x.get('x2')) <= 460 and 0 <= float(x.get('y2')) <= 340
