"""Aligns the English and the German LibreOffice help by element id."""

from collections.abc import Iterator
import html.parser
import pathlib
import re

from spec_cascades.data import align

ORIGIN = 'libreoffice_help'
PACKAGES = {'en': 'libreoffice-help-en-us', 'de': 'libreoffice-help-de'}
_TEXT = 'usr/share/libreoffice/help/{}/text'
_BLOCK_TAGS = frozenset('p h1 h2 h3 h4 h5 h6 td li'.split())
_BLOCK_ID = re.compile(r'(par_id|hd_id|bm_id|tit)')
_SKIPPED_CLASS = re.compile(r'code|image|consent')
_VOID_TAGS = frozenset('br img hr input meta link base col wbr'.split())


class _BlockParser(html.parser.HTMLParser):
  """Collects the text of every block element that has an id.

  The help shows one of several texts by platform or application ('Command' or
  'Ctrl'), as hidden spans inside a span of class `switchinline`. Only the
  default is kept; a block with a switch that has no default is left out.
  """

  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.blocks: dict[str, str] = {}
    self._stack: list[dict[str, object]] = []

  def handle_starttag(self, tag, attrs):
    if tag in _VOID_TAGS:
      self.handle_data(' ')
      return
    values = {name: value or '' for name, value in attrs}
    ident, classes = values.get('id', ''), values.get('class', '')
    frame = {'tag': tag, 'switch': 'switchinline' in classes}
    if tag in _BLOCK_TAGS and _BLOCK_ID.match(ident):
      if not _SKIPPED_CLASS.search(classes):
        frame['id'], frame['text'] = ident, []
    if 'hidden' in values and self._stack and self._stack[-1]['switch']:
      if ident.startswith('default'):
        self._stack[-1]['default'] = True
      else:
        frame['dropped'] = True
    self._stack.append(frame)

  def handle_endtag(self, tag):
    if not any(x['tag'] == tag for x in self._stack):
      return
    while self._stack:
      frame = self._stack.pop()
      if frame['switch'] and 'default' not in frame:
        self._spoil()
      if 'id' in frame and 'spoilt' not in frame:
        text = align.normalise(''.join(frame['text']))
        if text:
          self.blocks.setdefault(frame['id'], text)
      if frame['tag'] == tag:
        return

  def _innermost(self):
    """The frame of the innermost open block, or None."""
    return next((x for x in reversed(self._stack) if 'id' in x), None)

  def _spoil(self):
    """Marks the innermost open block as unusable."""
    block = self._innermost()
    if block is not None:
      block['spoilt'] = True

  def handle_data(self, data):
    block = self._innermost()
    if block is not None and not any('dropped' in x for x in self._stack):
      block['text'].append(data)


def parse_blocks(page: str) -> dict[str, str]:
  """Text blocks of a help page, keyed by element id.

  >>> parse_blocks('<p id="par_id1" class="paragraph">A <b>line</b>.</p>')
  {'par_id1': 'A line.'}
  """
  parser = _BlockParser()
  parser.feed(page)
  parser.close()
  return parser.blocks


def read_pairs(
    english_root: pathlib.Path, german_root: pathlib.Path
) -> Iterator[align.Pair]:
  """Aligns two unpacked help packages; the group is the help file.

  Args:
    english_root: root of the unpacked English package.
    german_root: root of the unpacked German package.
  """
  english_dir = english_root / _TEXT.format('en-US')
  german_dir = german_root / _TEXT.format('de')
  for path in sorted(english_dir.rglob('*.html')):
    name = path.relative_to(english_dir)
    other = german_dir / name
    if not other.is_file():
      continue
    en = parse_blocks(path.read_text(encoding='utf-8'))
    de = parse_blocks(other.read_text(encoding='utf-8'))
    group = str(name.with_suffix(''))
    for ident in (x for x in en if x in de):
      yield from align.align_blocks(
          en[ident], de[ident], origin=ORIGIN, group=group
      )
