"""Parser and alignment of the LibreOffice help, on handwritten pages."""

from spec_cascades.data import libreoffice

EN = """\
<html><head><meta charset="utf-8"><title>Fields</title></head><body>
<h1 id="hd_id1">Field Names</h1>
<p id="par_id2" class="paragraph"><span class="avis">Shows field names.</span>
Press <span class="switchinline"><span hidden="true" id="MAC1" class="MAC"
><span class="keycode">Command</span></span><span hidden="true" id="default1"
><span class="keycode">Ctrl</span></span></span>+F9 to see them.<br></p>
<p id="par_id3" class="paragraph">Choose <span class="switchinline">
<span hidden="true" id="CALC2">Sheet</span></span> in the menu.</p>
<p id="par_id4" class="code">Print the value of it</p>
<p class="paragraph">No id is given here.</p>
<p id="par_id5">Only on the English page.</p>
<p id="par_id6">Q &amp; A about field names</p>
</body></html>
"""
DE = """\
<html><body>
<h1 id="hd_id1">Feldnamen</h1>
<p id="par_id6">Fragen &amp; Antworten zu Feldnamen</p>
<p id="par_id2">Zeigt Feldnamen an. Drücken Sie
<span class="switchinline"><span hidden="true" id="MAC1">Befehl</span><span
hidden="true" id="default1">Strg</span></span>+F9, um sie anzuzeigen.</p>
</body></html>
"""


def test_blocks_have_the_default_text_only():
  assert libreoffice.parse_blocks(EN) == {
      'hd_id1': 'Field Names',
      'par_id2': 'Shows field names. Press Ctrl+F9 to see them.',
      'par_id5': 'Only on the English page.',
      'par_id6': 'Q & A about field names',
  }


def test_unclosed_and_stray_tags_do_not_mix_blocks():
  page = '<p id="par_id1">One</b> text</p></div><p id="par_id2">Two</p>'
  assert libreoffice.parse_blocks(page) == {
      'par_id1': 'One text',
      'par_id2': 'Two',
  }


def _write(root, language, name, text):
  path = root / f'usr/share/libreoffice/help/{language}/text/{name}.html'
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding='utf-8')


def test_pages_are_aligned_by_element_id(tmp_path):
  _write(tmp_path / 'en', 'en-US', 'swriter/fields', EN)
  _write(tmp_path / 'en', 'en-US', 'swriter/untranslated', EN)
  _write(tmp_path / 'de', 'de', 'swriter/fields', DE)
  pairs = list(libreoffice.read_pairs(tmp_path / 'en', tmp_path / 'de'))
  assert {x.group for x in pairs} == {'swriter/fields'}
  assert [x.de for x in pairs] == [
      'Zeigt Feldnamen an.',
      'Drücken Sie Strg+F9, um sie anzuzeigen.',
      'Fragen & Antworten zu Feldnamen',
  ]
