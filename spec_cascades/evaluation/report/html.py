"""report.html: one file without scripts or outside resources."""
from __future__ import annotations

import html
from typing import Sequence

from spec_cascades.evaluation import points
from spec_cascades.evaluation import summary as summary_lib
from spec_cascades.evaluation.report import style
from spec_cascades.evaluation.report import svg
from spec_cascades.evaluation.report import table

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2937;
  --soft: #5b6472; --rule: #dfe3e8; --band: #f5f7f9; --badge: #fdf0d5;
  --badge-ink: #7a4b00; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 48px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans",
  sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.12rem; margin: 32px 0 8px; }
p, ul { max-width: 46rem; margin: 6px 0; }
ul { padding-left: 1.2em; }
.soft, figcaption { color: var(--soft); }
.panels { display: grid; gap: 20px; margin: 12px 0 4px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; }
figcaption { font-weight: 600; margin-bottom: 2px; }
figure svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
svg .strong { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--rule); }
.unit { stroke: var(--soft); stroke-dasharray: 1 4; }
.level { stroke: var(--ink); stroke-width: 1.6; stroke-dasharray: 6 4; }
.line { fill: none; stroke: var(--c); stroke-width: 2; }
.whisker { stroke: var(--c); opacity: .45; }
.mark { fill: var(--c); stroke: var(--page); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.key { width: 24px; height: 16px; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .9rem; white-space: nowrap; }
th, td { padding: 4px 10px; text-align: right;
  border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
tbody tr:hover { background: var(--band); }
.badge { background: var(--badge); color: var(--badge-ink); padding: 1px 7px;
  border-radius: 9px; font-size: .82rem; }
@media (max-width: 560px) { body { padding: 18px 14px 36px; }
  table { font-size: .8rem; } th, td { padding: 4px 5px; }
  .badge { font-size: .74rem; padding: 1px 5px; } }
"""
INTRO = (
    'Each point is one setting: quality against the time it took, '
    'as a share of the time that the verifier alone took on the same texts. '
    'Up and to the left is better. The dashed line is the quality of the '
    'verifier alone. Whiskers and ranges are 95 % bootstrap intervals over '
    'texts.')
READING = (
    'Speed-up: how much less time than the verifier alone the curve needs for '
    'at least the verifier\'s quality. Gain: the best quality of the curve '
    'within the verifier\'s time, minus the verifier\'s. Both follow straight '
    'lines between the best points of a curve, never beyond its ends; "none" '
    'is an end of an interval that the curve does not reach.',
    'Illustrative: the interval includes no difference, so these texts can\'t '
    'decide which is better.',
    'A lossless rule samples from the verifier\'s own law: where T > 0, any '
    'difference in its quality is chance.',
    'Thresholds are compared on the texts that they are read off from, which '
    'flatters the best of several points.',
    'Times are wall-clock per text with the device synchronised, encoder '
    'included, compilation, warm-up and detokenisation excluded. All settings '
    'decode one text before any decodes the next, in an order drawn anew for '
    'each text.')


YIELD = (
    'tokens/call: emitted over calls of the verifier; without bonus, tokens '
    'drawn after a draft without rejection are not counted. accepted at j: of '
    'the drafts judged at depth j of a round.')


def page(summary: summary_lib.Summary, title: str) -> str:
  """The whole report."""
  rows = summary.rows
  marks = style.marks(row.method for row in rows)
  classes = {method: f'm{i}' for i, method in enumerate(marks)}
  first = rows[0]
  draft = next((row.drafter for row in rows if row.drafter), '')
  lead = (f'{first.examples} texts of {first.data}; verifier {first.verifier}, '
          f'drafter {draft}, gamma {max(r.gamma for r in rows)}, '
          f'{style.clock(first)}; {first.finished[:16].replace("T", " ")} UTC.')
  body = [
      f'<h1>{html.escape(title)}</h1>',
      f'<p class="soft">{html.escape(lead)}</p>', f'<p>{INTRO}</p>',
      _panels(rows, classes, marks),
      '<h2>Against the verifier alone</h2>',
      _table(table.comparisons(summary.comparisons, first.metric)),
      _list(READING),
      '<h2>All points</h2>', _table(table.points(rows)),
      '<p class="soft">ms: mean per text. rejected: of the draft tokens '
      'judged. deferred: share of the law that came from the verifier.</p>',
      '<h2>What the drafts yielded</h2>',
      _table(table.drafting(summary.drafting)), f'<p class="soft">{YIELD}</p>',
      '<h2>How it was measured</h2>', _list(table.notes(summary)),
      f'<p class="soft">{html.escape(_versions(first.versions))}</p>']
  return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
          '<meta name="viewport" content="width=device-width, '
          'initial-scale=1">\n'
          f'<title>{html.escape(title)}</title>\n'
          f'<style>{STYLE}{_colours(classes, marks)}</style>\n</head>\n<body>\n'
          + '\n'.join(body) + '\n</body>\n</html>\n')


def _colours(classes, marks) -> str:
  rule = lambda method, colour: f'.{classes[method]} {{ --c: {colour}; }}\n'
  light = ''.join(rule(method, mark.light) for method, mark in marks.items())
  dark = ''.join(rule(method, mark.dark) for method, mark in marks.items())
  return (f'{light}@media (prefers-color-scheme: dark) {{\n'
          ':root { --page: #12161c; --ink: #e6e9ee; --soft: #9aa4b2;\n'
          '  --rule: #2b323c; --band: #1a2029; --badge: #4a3a12;\n'
          f'  --badge-ink: #ffdf9e; }}\n{dark}}}\n')


def _panels(rows, classes, marks) -> str:
  figures = ''.join(
      f'<figure><figcaption>{html.escape(style.title(heat))}</figcaption>'
      f'{svg.panel(heat, curves, classes, marks)}</figure>'
      for heat, curves in style.by_temperature(rows).items())
  legend = ''.join(
      f'<span class="{classes[m]}">{svg.key(k, line=m == points.VERIFIER)}'
      f'{html.escape(m)}</span>' for m, k in marks.items())
  return (f'<div class="panels">{figures}</div>'
          f'<div class="legend">{legend}</div>')


def _table(content: table.Table) -> str:
  head, body = content
  cell = lambda x: ('<span class="badge">illustrative</span>'
                    if x == 'illustrative' else html.escape(x))
  top = ''.join(f'<th scope="col">{html.escape(x)}</th>' for x in head)
  inner = [''.join(f'<td>{cell(x)}</td>' for x in line) for line in body]
  lines = ''.join(f'<tr>{cells}</tr>\n' for cells in inner)
  return (f'<div class="scroll"><table><thead><tr>{top}</tr></thead>\n'
          f'<tbody>\n{lines}</tbody></table></div>')


def _list(items: Sequence[str]) -> str:
  return '<ul>' + ''.join(f'<li>{html.escape(x)}</li>' for x in items) + '</ul>'


def _versions(versions: dict[str, str]) -> str:
  return ', '.join(f'{name} {version}' for name, version in versions.items())
