"""Parsers of Debian's indices, on handwritten ones."""

import pytest

from spec_cascades.data import descriptions

EN = """\
Package: foo
Description-md5: 11
Description-en: editor for text files
 Foo reads and writes
 plain text files.
 .
 Features:
  * fast search in many files
  * coloured display of
    the program code
 .
 See the manual for more.

Package: libfoo-dev
Description-md5: 22
Description-en: editor for text files (development)
 Only in English.
"""
DE = """\
Package: foo
Description-md5: 11
Description-de: Editor für Textdateien
 Foo liest und schreibt
 reine Textdateien.
 .
 Merkmale:
  * schnelle Suche in vielen Dateien
  * farbige Anzeige des
    Programmcodes
 .
 <trans>

Package: gone
Description-md5: 33
Description-de: nicht mehr da
"""
PACKAGES = """\
Package: foo
Version: 1

Package: libfoo-dev
Source: foo (1)

Package: gcc-12-base
Source: gcc-12
"""


@pytest.fixture
def indices(tmp_path):
  for name, text in (('en', EN), ('de', DE), ('packages', PACKAGES)):
    (tmp_path / name).write_text(text, encoding='utf-8')
  return (
      descriptions.read_translations([tmp_path / 'en'], 'en'),
      descriptions.read_translations([tmp_path / 'de'], 'de'),
      descriptions.read_sources([tmp_path / 'packages']),
  )


def test_description_is_parsed_into_blocks(indices):
  english, _, _ = indices
  foo = english['11']
  assert (foo.package, foo.synopsis) == ('foo', 'editor for text files')
  assert [[x.kind for x in chunk] for chunk in foo.chunks] == [
      ['text'],
      ['text', 'item', 'item'],
      ['text'],
  ]
  assert foo.chunks[0][0].text == 'Foo reads and writes plain text files.'
  assert foo.chunks[1][2].text == 'coloured display of the program code'


def test_verbatim_lines_are_raw():
  foo = descriptions.parse_description('foo', 'x\n Use:\n   foo --help')
  assert [x.kind for x in foo.chunks[0]] == ['text', 'raw']


def test_pairs_are_matched_by_md5_and_position(indices):
  pairs = list(descriptions.read_pairs(*indices))
  assert [(x.en, x.de) for x in pairs] == [
      ('editor for text files', 'Editor für Textdateien'),
      (
          'Foo reads and writes plain text files.',
          'Foo liest und schreibt reine Textdateien.',
      ),
      ('fast search in many files', 'schnelle Suche in vielen Dateien'),
      (
          'coloured display of the program code',
          'farbige Anzeige des Programmcodes',
      ),
  ]
  assert {x.group for x in pairs} == {'foo'}


def test_unequal_structure_is_not_aligned():
  en = descriptions.parse_description('a', 'one two\n Text is here.\n  * item')
  de = descriptions.parse_description('a', 'eins zwei\n Text ist hier.')
  pairs = descriptions.read_pairs({'1': en}, {'1': de}, {})
  assert [x.en for x in pairs] == ['one two']


@pytest.mark.parametrize(
    'package, name',
    [
        ('libfoo-dev', 'foo'),
        ('gcc-12-base', 'gcc'),
        ('libbar2-doc', 'bar'),  # Not in the index.
        ('7', '7'),
    ],
)
def test_family_has_no_version(indices, package, name):
  assert descriptions.family(package, indices[2]) == name


def _description(package, synopsis, document):
  return descriptions.parse_description(package, f'{synopsis}\n {document}')


def test_one_summary_for_each_first_paragraph():
  document = 'Foo is a long story about text ' + 'and more ' * 20 + 'text.'
  english = {
      '1': _description('foo-common', 'story about text - common', document),
      '2': _description('foo', 'story about much text', document),
      '3': _description('bar', 'too short document', 'Bar is short.'),
      '4': _description('old', 'old (transitional package)', 'Y' + document),
  }
  summaries = list(descriptions.read_summaries(english, {'foo': 'foo'}))
  assert [(x.synopsis, x.group) for x in summaries] == [
      ('story about much text', 'foo')
  ]
  assert summaries[0].document == document
