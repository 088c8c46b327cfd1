"""English and German handbooks of KDE programs, from their rendered copies.

A package of KDE has its handbook in DocBook and, with all entities resolved, in
`index.cache.bz2`: the HTML pages one after the other, each behind a mark with
its name. The translations keep the elements and the names. Many lag behind in
some places, so that the text below each heading is aligned by itself.
"""

import bz2
from collections.abc import Iterator
import pathlib
import re

from spec_cascades.data import align
from spec_cascades.data import manuals

ORIGIN = 'kde_handbooks'
PACKAGES = tuple(
    'akregator ark cantor cervisia dolphin gwenview juk kaddressbook kajongg '
    'kalarm kate5-data kbibtex-data kbruch kcachegrind kcalc '
    'kde-cli-tools-data kdesvn kdiff3-doc kgpg khelpcenter kig kile-doc '
    'kinfocenter kio kleopatra kmail kmenuedit kmplot kmymoney-common knotes '
    'kolourpaint kompare konqueror konsole kontact konversation-data '
    'korganizer kphotoalbum krusader ksirk ktimetracker ktouch-data kturtle '
    'kwalletmanager kwave kwin-data kwordquiz lokalize okular parley-data '
    'partitionmanager plasma-desktop-data plasma-workspace-data rocs '
    'skrooge-common tellico-doc umbrello-data'.split()
)
_CACHE = 'index.cache.bz2'
_PAGE = re.compile(r'<FILENAME filename="([^"]*)">')
_HEADING = re.compile(r'(?=<h[1-6][ >])')


def split_pages(text: str) -> dict[str, str]:
  """Pages of a rendered handbook by their names.

  >>> split_pages('<FILENAME filename="a.html"><p>A<FILENAME filename="b">B')
  {'a.html': '<p>A', 'b': 'B'}
  """
  parts = _PAGE.split(text)
  return dict(zip(parts[1::2], parts[2::2]))


def _read_pages(path: pathlib.Path) -> dict[str, str]:
  text = bz2.decompress(path.read_bytes()).decode('utf-8', errors='replace')
  return split_pages(text)


def _sections(english: str, german: str) -> Iterator[tuple[str, str]]:
  """What is below each heading; nothing if the ranks of headings differ."""
  en, de = _HEADING.split(english), _HEADING.split(german)
  if [x[:3] for x in en[1:]] == [x[:3] for x in de[1:]]:
    yield from zip(en, de)


def read_pairs(root: pathlib.Path) -> Iterator[align.Pair]:
  """Pairs of the handbooks' sections that have the same blocks in order.

  Left out whole are pages without translation or with other headings in it,
  sections whose translation has other blocks, and, by `align.is_translation`,
  blocks left in English. The group is the page, after the handbook's folder.

  Args:
    root: root of an unpacked package.

  Raises:
    OSError: a handbook is damaged.
  """
  for english in sorted(root.glob('usr/share/doc/**/HTML/en')):
    german = english.with_name('de')
    for path in sorted(english.rglob(_CACHE)):
      folder = path.parent.relative_to(english)
      other = german / folder / _CACHE
      if not other.is_file():
        continue
      translated = _read_pages(other)
      for name, page in _read_pages(path).items():
        group = str(folder / pathlib.PurePath(name).stem)
        for en, de in _sections(page, translated.get(name, '')):
          yield from manuals.align_pages(en, de, origin=ORIGIN, group=group)
