"""English and German messages of programs, from their gettext catalogues."""

from collections.abc import Iterator
import pathlib
import re

import polib
from spec_cascades.data import align

ORIGIN = 'gettext'
PACKAGES = (
    'aptitude-common',
    'audacity-data',
    'coreutils',
    'darktable',
    'digikam-data',
    'e2fsprogs-l10n',
    'evolution-common',
    'gcc-12-locales',
    'gedit-common',
    'gimp-data',
    'git',
    'gnucash-common',
    'gnupg-l10n',
    'inkscape',
    'kdenlive-data',
    'kmymoney-common',
    'krita-l10n',
    'libc-l10n',
    'libreoffice-l10n-de',
    'lyx-common',
    'mc-data',
    'orca',
    'util-linux-locales',
    'vlc-l10n',
)
# Placeholders, markup and layout: what a program fills in, or a terminal shows.
_NOT_PROSE = re.compile(r'%[^ %]|[{}<>\\|$]|\S\n\s*\S')
# A letter that a menu entry is called by: '_File', '&File', '~File'.
_MARK = re.compile(r'(?<!\w)[_&~](?=\w)')
_MARK_IN_WORD = re.compile(r'(?<=\w)[_&~](?=\w)')


def _prose(text: str) -> str:
  """Text without its mnemonic; '' if it is not plain text."""
  if _NOT_PROSE.search(text) or _MARK_IN_WORD.search(text):
    return ''
  return _MARK.sub('', text)


def read_pairs(root: pathlib.Path) -> Iterator[align.Pair]:
  """Translated messages of every German catalogue below a directory.

  Messages with plural forms, placeholders, markup or several lines are left
  out. The group is the catalogue.

  Args:
    root: root of an unpacked package.

  Raises:
    OSError: a catalogue is damaged.
  """
  for path in sorted(root.rglob('de/LC_MESSAGES/*.mo')):
    for entry in polib.mofile(str(path), encoding='utf-8'):
      if not entry.msgid_plural:
        yield from align.align_blocks(
            _prose(entry.msgid),
            _prose(entry.msgstr),
            origin=ORIGIN,
            group=path.stem,
        )
