"""Texts side by side, every token in the colour of its origin.

Whole without a script: a text unfolds by itself, and a token's title says its
probabilities. The script shows these at once, and to the keyboard, too.
"""
from __future__ import annotations

import html
from typing import Mapping, Sequence

from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import origins
from spec_cascades.evaluation import results
from spec_cascades.evaluation import trace
from spec_cascades.evaluation.report import style

INTRO = (
    'The texts on which the methods differ most, decoded once more, round by '
    'round, with the keys of the sweep. q and p are what drafter and verifier '
    'say of a token at temperature 1, pi is what it was drawn with; all three '
    'come from one pass over the finished text. A q that no model has by '
    'itself, such as that of heads, is left out, and a pi that follows from '
    'it.')
USAGE = (
    'Point at a token, tap it, or go to a text with tab and along it with the '
    'arrow keys for its probabilities.')
NONE_FIT = (f'No text was short enough: {origins.MAX_TOKENS:,} tokens at all '
            'points together are shown at most.')
AGAIN = 'decoded again, it differs from the sweep by a near-tie'
SHORT = 90                        # characters of a source in its line


def section(texts: Sequence[inspected.Text], rows: Sequence[results.Row],
            classes: Mapping[str, str]) -> str:
  """The part below its heading; method m has the CSS class classes[m]."""
  if not texts:
    return f'<p class="soft">{NONE_FIT}</p>'
  by_key = {row.key: row for row in rows}
  shown = {by_key[x.key].method: None for x in texts[0].decoded}
  legend = ''.join(f'<span class="{name}">{trace.MEANING[name]}</span>'
                   for name in trace.ORIGINS)
  toggles = ''.join(
      f'<button type="button" class="{classes[m]}" data-method="{classes[m]}" '
      f'aria-pressed="true">{html.escape(m)}</button>' for m in shown)
  folds = ''.join(_text(text, by_key, classes, i == 0)
                  for i, text in enumerate(texts))
  return (
      f'<p class="soft">{html.escape(INTRO)}</p>'
      f'<p class="soft scripted" hidden>{html.escape(USAGE)}</p>'
      f'<div class="inspector"><p class="told">{legend}</p>'
      '<div class="legend scripted" role="group" aria-label="methods" hidden>'
      f'{toggles}</div>{folds}</div>'
      '<div id="probabilities" class="tip" role="tooltip" hidden></div>')


def _text(text: inspected.Text, rows: Mapping[str, results.Row], classes,
          first: bool) -> str:
  """A source that unfolds: what it should become, what became of it."""
  line = ' '.join(text.source.split())
  line = line if len(line) <= SHORT else line[:SHORT - 1].rstrip() + '…'
  decoded = {x.key: x for x in text.decoded}
  groups = []
  for heat, curves in style.by_temperature(
      [rows[key] for key in decoded]).items():
    cards = ''.join(_card(row, decoded[row.key], classes[row.method])
                    for curve in curves.values() for row in curve)
    groups.append(f'<h4>{html.escape(style.title(heat))}</h4>'
                  f'<div class="cards">{cards}</div>')
  references = ''.join(f'<dt>reference</dt><dd>{html.escape(x)}</dd>'
                       for x in text.references)
  return (
      f'<details name="inspected"{" open" * first}><summary>'
      f'<b>{html.escape(text.id)}</b> {html.escape(line)}</summary>'
      f'<dl><dt>source</dt><dd>{html.escape(text.source)}</dd>{references}</dl>'
      f'{"".join(groups)}</details>')


def _card(row: results.Row, found: inspected.Decoded, colour: str) -> str:
  alpha = '' if row.alpha is None else f' {row.alpha:g}'
  # A model alone calls itself once a token.
  counts = f'{len(found.tokens)} tokens' + (
      f', {found.calls} verifier calls' if row.gamma else '')
  note = '' if found.same else f'; {AGAIN}'
  tokens = ''.join(map(_token, found.tokens))
  return (f'<section class="{colour}"><h5>{html.escape(row.method + alpha)}'
          f'</h5><p class="told" role="group" '
          f'aria-label="{html.escape(row.method + alpha)}">{tokens}</p>'
          f'<p class="soft">{counts}{note}</p></section>')


def _token(token: inspected.Token) -> str:
  known = ', '.join(f'{name} {value:g}' for name, value in (
      ('q', token.q), ('p', token.p), ('pi', token.pi)) if value is not None)
  kind = f' class="{token.origin}"' if token.origin else ''
  return f'<i{kind} title="{known}">{html.escape(token.text)}</i>'
