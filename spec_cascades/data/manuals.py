"""Aligns English and German manuals whose pages have the same structure."""

from collections.abc import Iterator
import dataclasses
import html.parser
import pathlib

from spec_cascades.data import align

# Elements of HTML, DocBook and Mallard that hold a text of their own.
_BLOCKS = frozenset(
    'p para simpara h1 h2 h3 h4 h5 h6 li item dt dd term td th title caption '
    'desc pre'.split()
)
_NOT_PROSE = frozenset('script style pre screen programlisting'.split())
_VOID = frozenset('area base br col hr img input link media meta wbr'.split())


@dataclasses.dataclass(frozen=True)
class Manual:
  """Where a manual's pages are in both languages.

  Attributes:
    origin: its name.
    packages: English and German package; the same one if it has both.
    folders: of the pages, from the root of each package.
    pages: pattern of the pages' names, with `{}` where the language is, if it
      is in the name: `*.{}.html`.
  """

  origin: str
  packages: tuple[str, str]
  folders: tuple[str, str]
  pages: str = '*.html'


_DOC = 'usr/share/doc'
_GNOME_PACKAGES = tuple(
    'gnome-user-docs accerciser anjuta-common brasero-common cheese-common '
    'deja-dup eog epiphany-browser-data evince-common evolution-common '
    'file-roller gbrainy gedit-common gnome-boxes gnome-calculator '
    'gnome-dictionary gnome-system-monitor gnome-terminal-data gnote '
    'gthumb-data meld orca seahorse shotwell-common totem-common '
    'zenity-common'.split()
)
MANUALS = tuple(
    Manual(
        'gnome_help',
        (name, name),
        ('usr/share/help/C', 'usr/share/help/de'),
        '*.page',
    )
    for name in _GNOME_PACKAGES
) + (
    Manual(
        'installation_guide',
        ('installation-guide-amd64', 'installation-guide-amd64'),
        (
            f'{_DOC}/installation-guide-amd64/en',
            f'{_DOC}/installation-guide-amd64/de',
        ),
    ),
    Manual(
        'debian_reference',
        ('debian-reference-en', 'debian-reference-de'),
        ('usr/share/debian-reference', 'usr/share/debian-reference'),
        '*.{}.html',
    ),
    Manual(
        'developers_reference',
        ('developers-reference', 'developers-reference-de'),
        ('usr/share/developers-reference', 'usr/share/developers-reference/de'),
    ),
    Manual(
        'debian_faq',
        ('debian-faq', 'debian-faq-de'),
        (f'{_DOC}/debian/FAQ', f'{_DOC}/debian/FAQ/de'),
        '*.{}.html',
    ),
    Manual(
        'gimp_help',
        ('gimp-help-en', 'gimp-help-de'),
        ('usr/share/gimp/2.0/help/en', 'usr/share/gimp/2.0/help/de'),
    ),
)


class _BlockParser(html.parser.HTMLParser):
  """Collects the blocks of a page in order, each with its element's name."""

  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.blocks: list[tuple[str, list[str]]] = []
    self._stack: list[tuple[str, list[str] | None]] = []

  def handle_starttag(self, tag, attrs):
    if tag in _VOID:
      self.handle_data(' ')
      return
    text = None
    if tag in _BLOCKS:
      text = []
      self.blocks.append((tag, text))
    self._stack.append((tag, text))

  def handle_startendtag(self, tag, attrs):
    self.handle_data(' ')

  def handle_endtag(self, tag):
    if any(x == tag for x, _ in self._stack):
      while self._stack.pop()[0] != tag:
        pass

  def handle_data(self, data):
    if any(tag in _NOT_PROSE for tag, _ in self._stack):
      return
    text = next((x for _, x in reversed(self._stack) if x is not None), None)
    if text is not None:
      text.append(data)


def parse_blocks(page: str) -> list[tuple[str, str]]:
  """Names and texts of a page's blocks that have any text, in order.

  >>> parse_blocks('<h1>A <b>line</b></h1><ul><li><p>One.<li>Two.</ul>')
  [('h1', 'A line'), ('p', 'One.'), ('li', 'Two.')]
  """
  parser = _BlockParser()
  parser.feed(page)
  parser.close()
  texts = ((tag, align.normalise(''.join(x))) for tag, x in parser.blocks)
  return [(tag, x.removesuffix('¶')) for tag, x in texts if x]


def align_pages(
    english: str, german: str, *, origin: str, group: str
) -> Iterator[align.Pair]:
  """Pairs of two pages; none unless they have the same blocks in order."""
  en, de = parse_blocks(english), parse_blocks(german)
  if [x for x, _ in en] != [x for x, _ in de]:
    return
  for (_, source), (_, target) in zip(en, de):
    yield from align.align_blocks(source, target, origin=origin, group=group)


def read_pairs(
    manual: Manual, english_root: pathlib.Path, german_root: pathlib.Path
) -> Iterator[align.Pair]:
  """Pairs of the pages that have the same blocks in the same order.

  A page whose translation has other blocks is left out whole. The group is the
  page.

  Args:
    manual: what to read.
    english_root: root of the unpacked English package.
    german_root: root of the unpacked German package.
  """
  english_dir = english_root / manual.folders[0]
  german_dir = german_root / manual.folders[1]
  for path in sorted(english_dir.rglob(manual.pages.format('en'))):
    name = path.relative_to(english_dir)
    other = german_dir / str(name).replace('.en.', '.de.')
    if not other.is_file():
      continue
    yield from align_pages(
        path.read_text(encoding='utf-8', errors='replace'),
        other.read_text(encoding='utf-8', errors='replace'),
        origin=manual.origin,
        group=str(name.with_suffix('')),
    )
