"""Messages of programs, from a catalogue that is compiled here."""

import polib
import pytest

from spec_cascades.data import catalogs

MESSAGES = {
    '_Open the last file…': 'Die letzte Datei ö_ffnen …',  # Mark in a word.
    '&Save all open files': '&Alle offenen Dateien speichern',
    'Could not open %s for writing': 'Konnte %s nicht zum Schreiben öffnen',
    'Use <b>bold</b> letters here': 'Hier <b>fette</b> Buchstaben verwenden',
    'The value of the\nsecond line': 'Der Wert der\nzweiten Zeile',
    'Calls get_value for it': 'Ruft get_value dafür auf',
    'Quit': 'Beenden',
    'The disk is full.': 'Die Platte ist voll.',
    'Show 50 % more of it': '50 % mehr davon zeigen',
    'Not translated at all': '',
}


@pytest.fixture(name='root')
def _root(tmp_path):
  catalogue = polib.POFile()
  for en, de in MESSAGES.items():
    catalogue.append(polib.POEntry(msgid=en, msgstr=de))
  catalogue.append(polib.POEntry(
      msgid='One file is left', msgid_plural='Some files are left',
      msgstr_plural={0: 'Eine Datei bleibt', 1: 'Dateien bleiben'}))
  catalogue.append(polib.POEntry(
      msgid='Close this window now', msgctxt='a menu',
      msgstr='Dieses Fenster jetzt schließen'))
  for language in ('de', 'fr'):
    folder = tmp_path / 'usr/share/locale' / language / 'LC_MESSAGES'
    folder.mkdir(parents=True)
    catalogue.save_as_mofile(str(folder / 'editor.mo'))
  return tmp_path


def test_plain_messages_without_their_marks(root):
  pairs = list(catalogs.read_pairs(root))
  assert {x.en: x.de for x in pairs} == {
      'Save all open files': 'Alle offenen Dateien speichern',
      'The disk is full.': 'Die Platte ist voll.',
      'Show 50 % more of it': '50 % mehr davon zeigen',
      'Close this window now': 'Dieses Fenster jetzt schließen',
  }
  assert len(pairs) == 4  # The French catalogue is not read.
  assert {(x.origin, x.group) for x in pairs} == {('gettext', 'editor')}


def test_a_damaged_catalogue_is_an_error(root):
  path = root / 'usr/share/locale/de/LC_MESSAGES/editor.mo'
  path.write_bytes(b'no catalogue')
  with pytest.raises(OSError):
    list(catalogs.read_pairs(root))
