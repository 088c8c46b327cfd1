"""Alignment of manuals by structure, on handwritten pages."""

import pytest

from spec_cascades.data import manuals

EN = """\
<html><head><title>Network</title><style>p {x}</style></head><body>
<h1>The network<a href="#x">¶</a></h1><hr>
<p>Plug the cable <em>in</em>.<br/>Then wait for it. <p>Press a key now.</p>
<pre>ls -l of it</pre><ul><li><p>Use the mouse wheel</p></li></ul>
</body></html>
"""
DE = """\
<html><head><title>Netzwerk</title></head><body>
<h1>Das Netzwerk<a href="#x">¶</a></h1><hr/>
<p>Stecken Sie das Kabel ein. Dann warten Sie.</p><p>Drücken Sie eine Taste.</p>
<pre>ls -l davon</pre><ul><li><p>Das Mausrad benutzen</p></li></ul>
</body></html>
"""
MANUAL = manuals.Manual('help', ('a', 'b'), ('en', 'de/html'), '*.{}.html')


def _pairs(tmp_path, english, german, manual=MANUAL):
  for folder, language, text in (
      ('en/sub', 'en', english), ('de/html/sub', 'de', german)):
    path = tmp_path / folder / f'page.{language}.html'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8')
  (tmp_path / 'en' / 'only.en.html').write_text(english, encoding='utf-8')
  return list(manuals.read_pairs(manual, tmp_path, tmp_path))


def test_blocks_are_texts_in_order_with_their_elements():
  assert manuals.parse_blocks(EN) == [
      ('title', 'Network'),
      ('h1', 'The network'),
      ('p', 'Plug the cable in. Then wait for it.'),
      ('p', 'Press a key now.'),
      ('p', 'Use the mouse wheel'),
  ]
  assert manuals.parse_blocks('</p>stray<p>') == []


def test_pages_of_equal_structure_are_aligned(tmp_path):
  pairs = _pairs(tmp_path, EN, DE)
  assert {x.en: x.de for x in pairs} == {
      'Plug the cable in.': 'Stecken Sie das Kabel ein.',
      'Then wait for it.': 'Dann warten Sie.',
      'Press a key now.': 'Drücken Sie eine Taste.',
      'Use the mouse wheel': 'Das Mausrad benutzen',
  }
  assert {(x.origin, x.group) for x in pairs} == {('help', 'sub/page.en')}


@pytest.mark.parametrize('german', [
    DE.replace('<li>', '<li>Neu hier<p>Und noch ein Satz</p>'),
    DE.replace('<h1>', '<h2>').replace('</h1>', '</h2>'),
    DE.replace('<p>Drücken Sie eine Taste.</p>', ''),
])
def test_a_page_of_another_structure_is_left_out(tmp_path, german):
  assert not _pairs(tmp_path, EN, german)
