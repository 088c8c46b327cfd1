"""Builds the corpora as JSON lines files, one file per split.

The files are the common source of the TFDS builders and of programs that do
without TensorFlow.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import os
import pathlib

from spec_cascades.data import catalogs
from spec_cascades.data import debian
from spec_cascades.data import descriptions
from spec_cascades.data import files
from spec_cascades.data import handbooks
from spec_cascades.data import libreoffice
from spec_cascades.data import manuals
from spec_cascades.data import split

DEFAULT_CACHE_DIR = pathlib.Path('~/.cache/spec_cascades')

Row = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Corpus:
  """What a corpus is made of.

  Attributes:
    name: of its directory, TFDS data set and seqio Task.
    source: text feature that a model reads.
    target: text feature that it writes.
    fractions: shares of validation and test; None if it is for training only.
    beside: corpus that it is more training text for: what is close to an
      example of that one's validation and test is left out.
    packages: fetched to make it, besides the package indices.
  """

  name: str
  source: str
  target: str
  fractions: split.Fractions | None = None
  beside: str | None = None
  packages: tuple[str, ...] = ()

  @property
  def splits(self) -> tuple[str, ...]:
    """Names of its splits."""
    return split.SPLITS if self.fractions else split.SPLITS[:1]


DEBIAN_ENDE = Corpus(
    'debian_ende',
    source='en',
    target='de',
    fractions=split.Fractions(validation=0.03, test=0.03),
    packages=tuple(libreoffice.PACKAGES.values()),
)
DEBIAN_SYNOPSIS = Corpus(
    'debian_synopsis',
    source='document',
    target='synopsis',
    fractions=split.Fractions(validation=0.06, test=0.06),
)
DEBIAN_DOCS = Corpus(
    'debian_docs',
    source='en',
    target='de',
    beside='debian_ende',
    packages=tuple(
        dict.fromkeys(
            catalogs.PACKAGES
            + handbooks.PACKAGES
            + tuple(p for x in manuals.MANUALS for p in x.packages)
        )
    ),
)
CORPORA = {x.name: x for x in (DEBIAN_ENDE, DEBIAN_SYNOPSIS, DEBIAN_DOCS)}


def find(name: str) -> Corpus:
  """The corpus of a name, or a `ValueError` that lists the names."""
  if name not in CORPORA:
    raise ValueError(
        f'Unknown corpus {name!r}; choose from {", ".join(CORPORA)}.'
    )
  return CORPORA[name]


def corpus_dir(
    name: str, cache_dir: os.PathLike = DEFAULT_CACHE_DIR
) -> pathlib.Path:
  """Directory of a corpus' JSON lines files."""
  return pathlib.Path(cache_dir).expanduser() / 'corpora' / name


def _row(corpus: Corpus, source: str, target: str, *, origin, group) -> Row:
  """A row with a stable id."""
  ident = f'{origin}/{split.stable_id(group, source, target)}'
  return {
      'id': ident,
      corpus.source: source,
      corpus.target: target,
      'origin': origin,
      'group': f'{origin}/{group}',
  }


def read_debian_ende(
    cache_dir: pathlib.Path, *, refresh: bool = False
) -> Iterator[Row]:
  """Aligned pairs of package descriptions and of the LibreOffice help."""
  indices = debian.fetch_indices(cache_dir, refresh=refresh)
  pairs = descriptions.read_pairs(
      descriptions.read_translations(indices['en'], 'en'),
      descriptions.read_translations(indices['de'], 'de'),
      descriptions.read_sources(indices['Packages']),
  )
  for x in pairs:
    yield _row(DEBIAN_ENDE, x.en, x.de, origin=x.origin, group=x.group)
  roots = {
      language: debian.fetch_package(name, cache_dir)
      for language, name in libreoffice.PACKAGES.items()
  }
  for x in libreoffice.read_pairs(roots['en'], roots['de']):
    yield _row(DEBIAN_ENDE, x.en, x.de, origin=x.origin, group=x.group)


def read_debian_synopsis(
    cache_dir: pathlib.Path, *, refresh: bool = False
) -> Iterator[Row]:
  """Long descriptions and synopses of packages."""
  indices = debian.fetch_indices(cache_dir, refresh=refresh)
  summaries = descriptions.read_summaries(
      descriptions.read_translations(indices['en'], 'en'),
      descriptions.read_sources(indices['Packages']),
  )
  for x in summaries:
    yield _row(
        DEBIAN_SYNOPSIS,
        x.document,
        x.synopsis,
        origin=descriptions.ORIGIN,
        group=x.group,
    )


def read_debian_docs(
    cache_dir: pathlib.Path, *, refresh: bool = False
) -> Iterator[Row]:
  """Aligned pairs of programs' messages, of handbooks and of manuals."""
  debian.fetch_indices(cache_dir, refresh=refresh)
  roots = {x: debian.fetch_package(x, cache_dir) for x in DEBIAN_DOCS.packages}
  for reader in (catalogs, handbooks):
    for name in reader.PACKAGES:
      for x in reader.read_pairs(roots[name]):
        yield _row(DEBIAN_DOCS, x.en, x.de, origin=x.origin, group=x.group)
  for manual in manuals.MANUALS:
    en, de = (roots[x] for x in manual.packages)
    for x in manuals.read_pairs(manual, en, de):
      yield _row(DEBIAN_DOCS, x.en, x.de, origin=x.origin, group=x.group)


_READERS = {
    'debian_ende': read_debian_ende,
    'debian_synopsis': read_debian_synopsis,
    'debian_docs': read_debian_docs,
}


def summarise(
    corpus: Corpus, splits: Mapping[str, Sequence[Row]]
) -> dict[str, object]:
  """Counts per split: rows, words, groups, rows by origin, near-duplicates."""
  summary = {}
  for name, rows in splits.items():
    origins = sorted({x['origin'] for x in rows})
    near = sum(x['near_duplicate'] for x in rows)
    summary[name] = {
        'rows': len(rows),
        'groups': len({x['group'] for x in rows}),
        'source_words': sum(len(x[corpus.source].split()) for x in rows),
        'target_words': sum(len(x[corpus.target].split()) for x in rows),
        'origins': {
            o: sum(x['origin'] == o for x in rows) for o in origins
        },
    }
    if name != 'train':
      summary[name]['near_duplicates'] = near
      summary[name]['near_duplicate_share'] = round(near / max(len(rows), 1), 4)
  return summary


def write(
    corpus: Corpus,
    splits: Mapping[str, Sequence[Row]],
    directory: pathlib.Path,
    *,
    provenance: Mapping[str, object] | None = None,
) -> dict[str, object]:
  """Writes `{split}.jsonl` and `summary.json`; returns the summary."""
  directory.mkdir(parents=True, exist_ok=True)
  for name, rows in splits.items():
    lines = (json.dumps(x, ensure_ascii=False) + '\n' for x in rows)
    files.write_atomically(directory / f'{name}.jsonl', ''.join(lines))
  summary = {
      'corpus': corpus.name,
      'splits': summarise(corpus, splits),
      'similarity': (
          f'largest Jaccard index of byte {split.SHINGLE_BYTES}-grams of '
          f"'{corpus.source}' against train"
      ),
      'near_duplicate_similarity': split.NEAR_DUPLICATE_SIMILARITY,
      'provenance': dict(provenance or {}),
  }
  text = json.dumps(summary, indent=2, ensure_ascii=False)
  files.write_atomically(directory / 'summary.json', text + '\n')
  return summary


def _provenance(corpus: Corpus, cache_dir: pathlib.Path) -> dict[str, object]:
  """What the corpus was made from: index names, sizes, package versions."""
  indices = debian.find_indices(cache_dir)
  found = {
      path.name.split('_dists_')[-1]: path.stat().st_size
      for paths in indices.values()
      for path in paths
  }
  provenance = {'index_bytes': dict(sorted(found.items()))}
  if corpus.packages:
    provenance['packages'] = {
        name: debian.package_version(name, cache_dir)
        for name in corpus.packages
    }
  return provenance


def build(
    name: str,
    *,
    cache_dir: os.PathLike = DEFAULT_CACHE_DIR,
    refresh: bool = False,
) -> dict[str, object]:
  """Fetches the sources (once) and writes a corpus below the cache directory.

  Args:
    name: one of `CORPORA`; that which it is `beside` is built first if absent.
    cache_dir: holds the downloads and `corpora/<name>/<split>.jsonl`.
    refresh: fetch the package indices again.

  Returns:
    The summary that is also written to `summary.json`.

  Raises:
    SourceError: if a source cannot be fetched.
    ValueError: if the corpus is unknown.
  """
  corpus = find(name)
  cache_dir = pathlib.Path(cache_dir).expanduser().resolve()
  keys = dict(source=corpus.source, target=corpus.target)
  if corpus.beside:
    ensure(corpus.beside, cache_dir)
    rows = _READERS[name](cache_dir, refresh=refresh)
    held = (read(corpus.beside, x, cache_dir) for x in split.SPLITS[1:])
    texts = [x[corpus.source] for rows in held for x in rows]
    splits = {'train': split.apart(rows, texts, **keys)}
  else:
    rows = _READERS[name](cache_dir, refresh=refresh)
    splits = split.divide(rows, fractions=corpus.fractions, **keys)
  splits = split.mark_near_duplicates(splits, source=corpus.source)
  return write(
      corpus,
      splits,
      corpus_dir(name, cache_dir),
      provenance=_provenance(corpus, cache_dir),
  )


def ensure(name: str, cache_dir: os.PathLike = DEFAULT_CACHE_DIR) -> None:
  """Builds a corpus unless all of its files are there."""
  directory = corpus_dir(name, cache_dir)
  if not all((directory / f'{x}.jsonl').is_file() for x in find(name).splits):
    build(name, cache_dir=cache_dir)


def read(
    name: str, split_name: str, cache_dir: os.PathLike = DEFAULT_CACHE_DIR
) -> Iterator[Row]:
  """Rows of a built corpus.

  Raises:
    SourceError: if the corpus has not been built.
  """
  path = corpus_dir(name, cache_dir) / f'{split_name}.jsonl'
  if not path.is_file():
    raise debian.SourceError(
        f'{path} does not exist: build the corpus first with '
        f'python scripts/build_corpus.py --corpora {name}'
    )
  with path.open(encoding='utf-8') as lines:
    for line in lines:
      yield json.loads(line)
