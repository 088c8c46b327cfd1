"""Handbooks of KDE programs, from rendered copies that are written here."""

import bz2

import pytest

from spec_cascades.data import handbooks

FIRST = '<FILENAME filename="index.html"><html><body><h1>The editor</h1>'
EN = (
    '<p>Open the <span class="guimenu">File</span> menu. It has a list.</p>'
    '<p>This sentence has no translation in the German handbook.</p>'
    '<FILENAME filename="keys.html"><dl><dt>Some keys</dt><dd><p>Press any'
    ' key to stop.</p></dd></dl><pre>stop all of it</pre>'
    '<h2 class="title">New keys</h2><p>One block in English.</p>'
    '<h3>Old keys</h3><p>Use them as before.</p>'
    '<FILENAME filename="new.html"><p>Only in the English one.</p>'
    '<FILENAME filename="old.html"><p>One more heading is there.</p>'
)
DE = (
    '<p>Öffnen Sie das Menü <span class="guimenu">Datei</span>. Es hat eine '
    'Liste.</p><p>This sentence has no translation in a German handbook.</p>'
    '<FILENAME filename="old.html"><p>Eine Überschrift mehr hier.</p><h4>A</h4>'
    '<FILENAME filename="keys.html"><dl><dt>Einige Tasten</dt><dd><p>Zum '
    'Anhalten eine Taste drücken.</p></dd></dl><pre>alles</pre>'
    '<h2 class="title">Neue Tasten</h2><p>Ein Block, und noch</p><p>einer.</p>'
    '<h3>Alte Tasten</h3><p>Verwendung wie bisher.</p>'
)


def _write(root, language, text, app='editor'):
  folder = root / 'usr/share/doc/kde/HTML' / language / app
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'index.cache.bz2').write_bytes(text)


@pytest.fixture(name='root')
def _root(tmp_path):
  for language, text in (('en', EN), ('de', DE), ('fr', EN)):
    _write(tmp_path, language, bz2.compress((FIRST + text).encode()))
  _write(tmp_path, 'en', bz2.compress((FIRST + EN).encode()), app='viewer')
  return tmp_path


def test_sections_of_a_page_are_aligned_by_their_blocks(root):
  pairs = list(handbooks.read_pairs(root))
  assert [(x.en, x.de, x.group) for x in pairs] == [
      ('Open the File menu.', 'Öffnen Sie das Menü Datei.', 'editor/index'),
      ('It has a list.', 'Es hat eine Liste.', 'editor/index'),
      (
          'Press any key to stop.',
          'Zum Anhalten eine Taste drücken.',
          'editor/keys',
      ),
      ('Use them as before.', 'Verwendung wie bisher.', 'editor/keys'),
  ]
  assert {x.origin for x in pairs} == {'kde_handbooks'}


def test_no_entity_or_file_is_resolved(root):
  secret = root / 'secret'
  secret.write_text('a secret of the machine')
  head = f'<!DOCTYPE x [<!ENTITY app SYSTEM "{secret.as_uri()}">]>'
  for language, text in (
      ('en', 'Start &app; with the mouse.'),
      ('de', 'Starten Sie &app; mit der Maus.')):
    page = f'<FILENAME filename="index.html">{head}<p>{text}</p>'
    _write(root, language, bz2.compress(page.encode()))
  pairs = list(handbooks.read_pairs(root))
  assert [x.en for x in pairs] == ['Start &app; with the mouse.']


def test_a_damaged_handbook_is_an_error(root):
  _write(root, 'de', b'no archive')
  with pytest.raises(OSError):
    list(handbooks.read_pairs(root))
