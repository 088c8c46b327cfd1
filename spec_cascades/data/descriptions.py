"""Reads Debian's package descriptions: EN-DE pairs and synopses."""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import pathlib
import re

from spec_cascades.data import align

ORIGIN = 'descriptions'
MIN_DOCUMENT_WORDS, MAX_DOCUMENT_WORDS = 25, 400
MIN_SYNOPSIS_WORDS = 3
_BOILERPLATE = re.compile(
    r'transitional|dummy package|meta-?package|debug symbols|'
    r'empty package|virtual package',
    re.IGNORECASE,
)
_BULLET = re.compile(r'^(?:\s+(?:[*+o-]|\d+[.)])|\*)\s+')
_VERSION = re.compile(r'[\d.]+$')


@dataclasses.dataclass(frozen=True)
class Block:
  """A paragraph ('text'), a list item ('item') or untouched lines ('raw')."""

  kind: str
  text: str


@dataclasses.dataclass(frozen=True)
class Description:
  """One description in one language.

  Attributes:
    package: binary package that the index names first.
    synopsis: the one-line summary.
    chunks: the long description, divided at its ' .' lines.
  """

  package: str
  synopsis: str
  chunks: tuple[tuple[Block, ...], ...]


def _stanzas(text: str) -> Iterator[dict[str, str]]:
  """Parses RFC-822-like stanzas; continuation lines keep their indent."""
  for stanza in text.split('\n\n'):
    fields, name = {}, None
    for line in stanza.split('\n'):
      if line.startswith((' ', '\t')) and name is not None:
        fields[name] += '\n' + line
      elif ':' in line:
        name, _, value = line.partition(':')
        fields[name] = value.strip()
    if fields:
      yield fields


def _parse_chunk(lines: Iterable[str]) -> tuple[Block, ...]:
  """Divides the lines between two ' .' lines into blocks."""
  blocks = []
  for line in lines:
    bullet = _BULLET.match(line)
    if bullet:
      blocks.append(['item', line[bullet.end() :]])
    elif blocks and blocks[-1][0] == 'item':
      blocks[-1][1] += ' ' + line
    elif line.startswith((' ', '\t')):
      blocks.append(['raw', line])
    elif blocks and blocks[-1][0] == 'text':
      blocks[-1][1] += ' ' + line
    else:
      blocks.append(['text', line])
  return tuple(Block(kind, align.normalise(text)) for kind, text in blocks)


def parse_description(package: str, field: str) -> Description:
  """Parses the value of a `Description-xx` field.

  Args:
    package: name of the package.
    field: the synopsis, a newline, then the indented long description.
  """
  synopsis, *lines = field.split('\n')
  chunks = [[]]
  for line in lines:
    line = line.removeprefix(' ')
    if line.strip() == '.':
      chunks.append([])
    else:
      chunks[-1].append(line)
  parsed = tuple(_parse_chunk(x) for x in chunks if x)
  return Description(package, align.normalise(synopsis), parsed)


def read_translations(
    paths: Iterable[pathlib.Path], language: str
) -> dict[str, Description]:
  """Reads Translation indices into a dict keyed by Description-md5."""
  found = {}
  for path in paths:
    for fields in _stanzas(path.read_text(encoding='utf-8')):
      key = fields.get('Description-md5')
      field = fields.get(f'Description-{language}')
      if key and field and key not in found:
        found[key] = parse_description(fields.get('Package', ''), field)
  return found


def read_sources(paths: Iterable[pathlib.Path]) -> dict[str, str]:
  """Reads Packages indices: binary package name -> source package name."""
  sources = {}
  for path in paths:
    package = ''
    with path.open(encoding='utf-8') as lines:
      for line in lines:
        if line.startswith('Package: '):
          package = line[9:].strip()
          sources.setdefault(package, package)
        elif line.startswith('Source: '):
          sources[package] = line[8:].split()[0]
  return sources


def family(package: str, sources: Mapping[str, str]) -> str:
  """Source package without version numbers, the unit of the splits.

  'gcc-12' and 'gcc-13' are one family, and so are the packages built from
  'postgresql-15' and 'postgresql-17'. A package without a known source is its
  own family, less 'lib' and suffixes such as '-dev' and '-doc'.
  """
  name = sources.get(package)
  if name is None:
    name = re.sub(r'-(dev|doc|docs|common|data|dbg|bin|utils)$', '', package)
    name = name.removeprefix('lib')
  name = re.sub(r'-signed(-\w+)?$', '', name.lower())
  tokens = [_VERSION.sub('', x) for x in name.split('-')]
  return '-'.join(x for x in tokens if x) or name


def read_pairs(
    english: Mapping[str, Description],
    german: Mapping[str, Description],
    sources: Mapping[str, str],
) -> Iterator[align.Pair]:
  """Aligns descriptions of the same md5: synopses, paragraphs and items.

  Paragraphs are matched by position, and only between chunks (the text between
  two ' .' lines) with the same sequence of block kinds, in descriptions with
  the same number of chunks.
  """
  for key in sorted(german.keys() & english.keys()):
    en, de = english[key], german[key]
    group = family(en.package or de.package, sources)
    yield from align.align_blocks(
        en.synopsis, de.synopsis, origin=ORIGIN, group=group, min_words=2
    )
    if len(en.chunks) != len(de.chunks):
      continue
    for source, target in zip(en.chunks, de.chunks):
      if [x.kind for x in source] != [x.kind for x in target]:
        continue
      for x, y in zip(source, target):
        if x.kind != 'raw':
          yield from align.align_blocks(
              x.text, y.text, origin=ORIGIN, group=group
          )


@dataclasses.dataclass(frozen=True)
class Summary:
  """A long description, its synopsis and the package family."""

  document: str
  synopsis: str
  group: str


def read_summaries(
    english: Mapping[str, Description], sources: Mapping[str, str]
) -> Iterator[Summary]:
  """Pairs long descriptions with synopses, one per distinct first paragraph.

  A source package often builds many packages whose descriptions share their
  first paragraph; the shortest package name, usually the main one, is kept.
  """
  seen = set()
  order = sorted(english.items(), key=lambda x: (len(x[1].package), x[0]))
  for _, description in order:
    blocks = [x for chunk in description.chunks for x in chunk]
    document = ' '.join(x.text for x in blocks)
    num_words = len(document.split())
    if not MIN_DOCUMENT_WORDS <= num_words <= MAX_DOCUMENT_WORDS:
      continue
    if len(description.synopsis.split()) < MIN_SYNOPSIS_WORDS:
      continue
    if _BOILERPLATE.search(f'{description.synopsis} {document[:200]}'):
      continue
    start = document[:120].lower()
    if start not in seen:
      seen.add(start)
      group = family(description.package, sources)
      yield Summary(document, description.synopsis, group)
