"""TFDS builders of the Debian corpora.

Importing this module loads TensorFlow Datasets and registers the builders, so
that `tfds.load('debian_ende')` and seqio find them by name.
"""

from collections.abc import Iterator
import os

import numpy as np
from spec_cascades.data import corpus
from spec_cascades.data import split
import tensorflow_datasets as tfds

_HOMEPAGE = 'https://www.debian.org/international/l10n/ddtp'
_SIMILARITY = (
    f"'similarity' is the largest Jaccard index of byte {split.SHINGLE_BYTES}-"
    'grams between the source text and any source text of train (0 in train '
    "itself); 'near_duplicate' is whether it is at least "
    f'{split.NEAR_DUPLICATE_SIMILARITY}.'
)
_ENDE_DESCRIPTION = f"""\
English-German sentence pairs on software: package descriptions of the Debian
distribution, translated by the Debian Description Translation Project, and
paragraphs of the LibreOffice help. Splits are made by package family and by
help file; a source text occurs in one split only. {_SIMILARITY}
"""
_SYNOPSIS_DESCRIPTION = f"""\
Long descriptions of Debian packages and their one-line synopses, written by
the packages' maintainers: single-sentence summarisation of short documents.
One document for each distinct first paragraph; splits are made by package
family. {_SIMILARITY}
"""
_DOCS_DESCRIPTION = """\
English-German pairs on software, to train on beside debian_ende: messages of
programs from their gettext catalogues, and manuals of Debian, GNOME and GIMP,
aligned by the structure of their pages. Nothing that is close to a source text
of debian_ende's validation and test is in it. It has no such splits of its own.
"""
_DDTP_CITATION = """\
@misc{debian_ddtp,
  author = {{The Debian Project}},
  title = {Package descriptions and the {D}ebian {D}escription {T}ranslation
           {P}roject},
  howpublished = {\\url{https://www.debian.org/international/l10n/ddtp}},
}
"""
_LIBREOFFICE_CITATION = """\
@misc{libreoffice_help,
  author = {{The Document Foundation}},
  title = {{LibreOffice} Help},
  howpublished = {\\url{https://help.libreoffice.org}},
}
"""
_DOCS_CITATION = """\
@misc{debian_packages,
  author = {{The Debian Project and its upstream authors}},
  title = {Message catalogues and manuals of {D}ebian packages},
  howpublished = {\\url{https://www.debian.org/distrib/packages}},
}
"""
_DESCRIPTION_LICENCE = (
    'Package descriptions: the licence of each package, see its copyright file.'
)


class _CorpusBuilder(tfds.core.GeneratorBasedBuilder):
  """Reads the JSON lines files of a corpus, building them if absent."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'First release.'}
  CORPUS: corpus.Corpus

  def __init__(
      self,
      *,
      cache_dir: os.PathLike | str = corpus.DEFAULT_CACHE_DIR,
      **kwargs,
  ):
    """Creates a builder.

    Args:
      cache_dir: directory with `corpora/<name>/<split>.jsonl`, as written by
        `scripts/build_corpus.py`. A corpus that is not there is built.
      **kwargs: arguments of every TFDS builder.
    """
    super().__init__(**kwargs)
    self._cache_dir = os.fspath(cache_dir)
    self._original_state['cache_dir'] = self._cache_dir  # For pickling.

  def _make_info(
      self, description: str, citation: str, licence: str
  ) -> tfds.core.DatasetInfo:
    """The `DatasetInfo` with the features that all corpora share."""
    return tfds.core.DatasetInfo(
        builder=self,
        description=description,
        features=tfds.features.FeaturesDict({
            self.CORPUS.source: tfds.features.Text(),
            self.CORPUS.target: tfds.features.Text(),
            'id': tfds.features.Text(),
            'origin': tfds.features.Text(),
            'group': tfds.features.Text(),
            'similarity': tfds.features.Scalar(np.float32),
            'near_duplicate': tfds.features.Scalar(np.bool_),
        }),
        supervised_keys=(self.CORPUS.source, self.CORPUS.target),
        homepage=_HOMEPAGE,
        citation=citation,
        license=licence,
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    del dl_manager  # The tools of Debian fetch the sources.
    corpus.ensure(self.CORPUS.name, self._cache_dir)
    return {name: self._generate_examples(name) for name in self.CORPUS.splits}

  def _generate_examples(
      self, split_name: str
  ) -> Iterator[tuple[str, dict[str, object]]]:
    for row in corpus.read(self.CORPUS.name, split_name, self._cache_dir):
      yield row['id'], row


class DebianEnde(_CorpusBuilder):
  """English-German translation of Debian's and LibreOffice's texts."""

  CORPUS = corpus.DEBIAN_ENDE

  def _info(self) -> tfds.core.DatasetInfo:
    return self._make_info(
        _ENDE_DESCRIPTION,
        _DDTP_CITATION + _LIBREOFFICE_CITATION,
        f'{_DESCRIPTION_LICENCE} LibreOffice help: MPL-2.0.',
    )


class DebianSynopsis(_CorpusBuilder):
  """One-line summaries of Debian's package descriptions."""

  CORPUS = corpus.DEBIAN_SYNOPSIS

  def _info(self) -> tfds.core.DatasetInfo:
    return self._make_info(
        _SYNOPSIS_DESCRIPTION, _DDTP_CITATION, _DESCRIPTION_LICENCE
    )


class DebianDocs(_CorpusBuilder):
  """More English-German text to train on: messages and manuals."""

  CORPUS = corpus.DEBIAN_DOCS

  def _info(self) -> tfds.core.DatasetInfo:
    return self._make_info(
        _DOCS_DESCRIPTION,
        _DOCS_CITATION,
        'Messages and manuals: the licence of each package, see its copyright '
        'file.',
    )


BUILDERS = {
    corpus.DEBIAN_ENDE.name: DebianEnde,
    corpus.DEBIAN_SYNOPSIS.name: DebianSynopsis,
    corpus.DEBIAN_DOCS.name: DebianDocs,
}


def prepare(
    name: str,
    *,
    cache_dir: os.PathLike | str = corpus.DEFAULT_CACHE_DIR,
    data_dir: os.PathLike | str | None = None,
) -> tfds.core.DatasetInfo:
  """Writes a corpus as a TFDS data set, replacing one that is there.

  Args:
    name: 'debian_ende' or 'debian_synopsis'.
    cache_dir: directory that holds, or receives, the corpus.
    data_dir: TFDS data directory; the default is that of TFDS.
  """
  corpus.find(name)
  builder = BUILDERS[name](cache_dir=cache_dir, data_dir=data_dir)
  mode = tfds.GenerateMode.REUSE_CACHE_IF_EXISTS
  builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(download_mode=mode)
  )
  return builder.info
