"""report.html: one file that loads nothing; its script is optional."""
from __future__ import annotations

import html
import pathlib
from typing import Sequence

from spec_cascades.evaluation import points
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import acceptance
from spec_cascades.evaluation.report import drafters
from spec_cascades.evaluation.report import inspector
from spec_cascades.evaluation.report import rejection
from spec_cascades.evaluation.report import sections
from spec_cascades.evaluation.report import split
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import svg
from spec_cascades.evaluation.report import table

HERE = pathlib.Path(__file__).parent
# The browser itself refuses to load anything.
POLICY = ("default-src 'none'; style-src 'unsafe-inline'; "
          "script-src 'unsafe-inline'")
INTRO = (
    'Each point is one setting: quality against the time it took, '
    'as a share of the time that the verifier alone took on the same texts. '
    'Up and to the left is better. The dashed line is the quality of the '
    'verifier alone. Whiskers and ranges are 95 % bootstrap intervals over '
    'texts.')
USAGE = (
    'Point at a setting, tap it or go to it with tab and the arrow keys for '
    'its figures and intervals; a click or enter leads to its row in the '
    'table, and the row\'s name leads back. The legend hides and shows curves.')
READING = (
    'Speed-up: how much less time than the verifier alone the curve needs for '
    'at least the verifier\'s quality. Gain: the best quality of the curve '
    'within the verifier\'s time, minus the verifier\'s. Both follow straight '
    'lines between the best points of a curve, never beyond its ends; "none" '
    'is an end of an interval that the curve does not reach. Area: mean '
    'quality of the curve over latencies from 0 to the verifier\'s, 0 before '
    'it begins, as a share of the verifier\'s quality.',
    'Illustrative: the interval includes no difference, so these texts can\'t '
    'decide which is better.',
    'A lossless rule samples from the verifier\'s own law: where T > 0, any '
    'difference in its quality is chance.',
    'Here thresholds are compared on the texts that they are read off from, '
    'which flatters the best of several points; under "Settings chosen on '
    'other texts" they are not.',
    'Times are wall-clock per text with the device synchronised, encoder '
    'included, compilation, warm-up and detokenisation excluded. All settings '
    'decode one text before any decodes the next, in an order drawn anew for '
    'each text.')


DEPTHS = (
    'Share of the drafts judged at each position of a round that was '
    'accepted: a line per alpha, with 95 % intervals.')
YIELD = (
    'tokens/call: emitted over calls of the verifier; without bonus, tokens '
    'drawn after a draft without rejection are not counted. accepted at j: of '
    'the drafts judged at depth j of a round.')
PREDICTED = (
    ' predicted: tokens/call, from one pass of both models over the texts, and '
    'how much more that is.')


def page(summary: summary_lib.Summary, title: str) -> str:
  """The whole report."""
  rows = summary.rows
  marks = style.marks(row.method for row in rows)
  classes = {method: f'm{i}' for i, method in enumerate(marks)}
  first = rows[0]
  lead = (f'{first.examples} texts of {first.data}; verifier {first.verifier}, '
          f'{_drafts(rows)}{style.clock(first)}; '
          f'{first.finished[:16].replace("T", " ")} UTC.')
  body = [
      f'<h1>{html.escape(title)}</h1>',
      f'<p class="soft">{html.escape(lead)}</p>', f'<p>{INTRO}</p>',
      f'<p class="soft scripted" hidden>{html.escape(USAGE)}</p>',
      _panels(rows, classes, marks),
      '<h2>Against the verifier alone</h2>',
      _table(table.comparisons(summary.comparisons, first.metric)),
      _list(READING),
      _sections(summary, classes, marks),
      '<h2>All points</h2>',
      _table(table.points(rows, summary.predicted),
             _anchored(rows, classes, marks)),
      '<p class="soft">ms: mean per text. rejected: of the draft tokens '
      'judged. deferred: share of the law that came from the verifier.'
      f'{PREDICTED if summary.predicted else ""}</p>',
      '<h2>What the drafts yielded</h2>',
      f'<p class="soft">{DEPTHS}</p>',
      acceptance.charts(summary.drafting, classes),
      _table(table.drafting(summary.drafting)), f'<p class="soft">{YIELD}</p>',
      *_split(summary), *_inspector(summary, classes),
      '<h2>How it was measured</h2>', _list(table.notes(summary)),
      f'<p class="soft">{html.escape(_versions(first.versions))}</p>',
      '<div id="tip" role="tooltip" hidden></div>',
      _script('report.js')]
  if summary.texts:
    body.append(_script('inspector.js'))
  return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
          '<meta name="viewport" content="width=device-width, '
          'initial-scale=1">\n'
          f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
          f'<title>{html.escape(title)}</title>\n<style>\n'
          f'{_asset("report.css")}{_asset("details.css")}'
      f'{_colours(classes, marks)}</style>\n'
          '</head>\n<body>\n'
          + '\n'.join(body) + '\n</body>\n</html>\n')


def _drafts(rows) -> str:
  """Who drafts and how long; baselines have lengths of their own."""
  drafted = [row for row in rows if row.gamma
             and row.rule.split('(')[0] not in rules.BASELINES]
  names = list(dict.fromkeys(row.drafter for row in drafted))
  lengths = ', '.join(map(str, sorted({row.gamma for row in drafted})))
  who = f'drafter {names[0]}' if len(names) == 1 else f'{len(names)} drafters'
  return f'{who}, gamma {lengths}, ' if names else ''


def _sections(summary, classes, marks) -> str:
  """The tables of the analysis; the figure of rejections with its own."""
  parts, title, told = [], '', set()
  for section in sections.of_analysis(summary.analysis, summary.rows[0].metric):
    parts += [f'<h2>{html.escape(section.title)}</h2>'
              ] * (section.title != title)
    title = section.title
    parts += [f'<h3>{html.escape(section.caption)}</h3>'
              ] * bool(section.caption)
    if section.name == 'rejection' and section.table[1]:
      parts.append(rejection.panels(summary.analysis.rejections, classes,
                                    marks))
    parts += [_table(section.table)] * bool(section.table[1])
    if section.note not in told:               # tables may share one
      parts.append(f'<p class="soft">{html.escape(section.note)}</p>')
    told.add(section.note)
  return '\n'.join(parts)


def _colours(classes, marks) -> str:
  rule = lambda method, colour: f'.{classes[method]} {{ --c: {colour}; }}\n'
  light = ''.join(rule(method, mark.light) for method, mark in marks.items())
  dark = ''.join(rule(method, mark.dark) for method, mark in marks.items())
  return f'{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n'


def _asset(name: str) -> str:
  return (HERE / name).read_text(encoding='utf-8')


def _script(name: str) -> str:
  return f'<script>\n{_asset(name)}</script>'


def _split(summary) -> list[str]:
  """Where the time goes, if a sweep has asked for it."""
  if not summary.split:
    return []
  return ['<h2>Where the time goes</h2>',
          f'<p class="soft">{split.MEANING}</p>', split.bars(summary.split),
          _table(split.table(summary.split)),
          f'<p class="soft">{split.ALONE}</p>',
          f'<h3>{drafters.TITLE}</h3>',
          _table(drafters.table(summary.rows, summary.drafting,
                                summary.split)),
          f'<p class="soft">{drafters.MEANING}</p>']


def _inspector(summary, classes) -> list[str]:
  """Texts side by side, if a sweep has asked for them."""
  if summary.texts is None:
    return []
  return ['<h2>Texts side by side</h2>',
          inspector.section(summary.texts, summary.rows, classes)]


def _panels(rows, classes, marks) -> str:
  figures = ''.join(
      f'<figure><figcaption>{html.escape(style.title(heat))}</figcaption>'
      f'{svg.panel(heat, curves, classes, marks)}</figure>'
      for heat, curves in style.by_temperature(rows).items())
  legend = ''.join(
      f'<button type="button" class="{classes[m]}" data-curve="{classes[m]}" '
      f'aria-pressed="true" disabled>{svg.key(k, line=m == points.VERIFIER)}'
      f'{html.escape(m)}</button>' for m, k in marks.items())
  return (f'<div class="legend" role="group" aria-label="curves">{legend}'
          '<button type="button" id="intervals" class="scripted" '
          'aria-pressed="false" hidden>all intervals</button></div>'
          f'<div class="panels">{figures}</div>')


def _anchored(rows, classes, marks) -> list[tuple[str, str]]:
  """How each line of the table of points begins: its row, its first cell."""
  out = []
  for row in table.ordered(rows):
    anchor = style.anchor(row)
    sign = svg.key(marks[row.method], line=row.method == points.VERIFIER)
    out.append((
        f'<tr id="row-{anchor}" class="{classes[row.method]}">',
        f'{sign}<a href="#point-{anchor}">{html.escape(row.method)}</a>'))
  return out


def _table(content: table.Table,
           begins: Sequence[tuple[str, str]] = ()) -> str:
  head, body = content
  cell = lambda x: ('<span class="badge">illustrative</span>'
                    if x == 'illustrative' else html.escape(x))
  top = ''.join(f'<th scope="col">{html.escape(x)}</th>' for x in head)
  lines = []
  for (row, first), line in zip(
      begins or [('<tr>', html.escape(line[0])) for line in body], body):
    cells = [first, *map(cell, line[1:])]
    lines.append(row + ''.join(f'<td>{x}</td>' for x in cells) + '</tr>\n')
  return ('<div class="scroll" tabindex="0" role="region" aria-label="table">'
          f'<table><thead><tr>{top}</tr></thead>\n'
          f'<tbody>\n{"".join(lines)}</tbody></table></div>')


def _list(items: Sequence[str]) -> str:
  return '<ul>' + ''.join(f'<li>{html.escape(x)}</li>' for x in items) + '</ul>'


def _versions(versions: dict[str, str]) -> str:
  return ', '.join(f'{name} {version}' for name, version in versions.items())
