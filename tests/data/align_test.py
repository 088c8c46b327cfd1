"""Alignment filters and sentence splitting."""

import pytest

from spec_cascades.data import align


def test_normalise_removes_invisible_characters_and_repeated_spaces():
  assert align.normalise(' so\u00adft\u200b  a\u00a0b\n c ') == 'soft a b c'
  assert align.normalise('u\u0308ber') == 'über'


@pytest.mark.parametrize(
    'en, de',
    [
        ('editor for text files', 'Editor für Textdateien'),
        (
            'The file has 1,024 lines and is read at start.',
            'Die Datei hat 1.024 Zeilen und wird beim Start gelesen.',
        ),
    ],
)
def test_translations_pass(en, de):
  assert align.is_translation(en, de)


@pytest.mark.parametrize(
    'en, de',
    [
        ('', 'Editor für Textdateien'),
        ('editor for text files', ''),
        ('editor for text files', 'Editor for text files'),  # Untranslated.
        ('editor for text files', '<trans>'),
        ('text editor', 'Editor für Text'),  # Too short.
        ('editor for text files', 'Ein ' + 'sehr ' * 20 + 'langer Satz'),
        ('version 2 of the editor', 'Version 3 des Editors'),
        ('== :: -- // ++ ed', '== :: -- // ++ der Editor'),
        (
            'This package contains the files for the library.',
            'This package contains files for the library only.',
        ),
        ('x ' * 700 + 'end', 'der ' * 350 + 'Schluss'),  # Over 1200 chars.
    ],
)
def test_non_translations_fail(en, de):
  assert not align.is_translation(en, de)


@pytest.mark.parametrize(
    'text, sentences',
    [
        ('One. Two! "Three?" Four', ['One.', 'Two!', '"Three?"', 'Four']),
        ('Files, e.g. Images, are read.', ['Files, e.g. Images, are read.']),
        ('Das ist z. B. Text. Und Bild.', ['Das ist z. B. Text.', 'Und Bild.']),
        ('Am 3. Mai. Dann nicht.', ['Am 3. Mai.', 'Dann nicht.']),
        ('Uses foo.bar and baz 1.2 only.', ['Uses foo.bar and baz 1.2 only.']),
        ('', []),
    ],
)
def test_sentences_end_where_they_should(text, sentences):
  assert align.split_sentences(text) == sentences


def test_paragraphs_split_only_if_both_sides_agree():
  en = 'It reads the files. It writes the output.'
  de = 'Es liest die Dateien. Es schreibt die Ausgabe.'
  assert align.split_pair(en, de) == [
      ('It reads the files.', 'Es liest die Dateien.'),
      ('It writes the output.', 'Es schreibt die Ausgabe.'),
  ]
  whole = 'Es liest die Dateien und schreibt die Ausgabe.'
  assert align.split_pair(en, whole) == [(en, whole)]
  unequal = 'Es liest Datei 1. Es schreibt die Ausgabe.'
  assert align.split_pair(en, unequal) == [(en, unequal)]


def test_blocks_carry_their_origin():
  pairs = list(
      align.align_blocks(
          ' editor  for text files', 'Editor für Textdateien',
          origin='o', group='g',
      )
  )
  assert pairs == [
      align.Pair('editor for text files', 'Editor für Textdateien', 'o', 'g')
  ]
