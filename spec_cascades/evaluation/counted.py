"""Tables of counts: from the texts of a corpus, and as files."""
from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import io
import pathlib
from typing import Any
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np

from spec_cascades.data import files
from spec_cascades.models import counts
from spec_cascades.models import reduced
from spec_cascades.models import t5

UNIGRAM = 'unigram'


def texts(corpus: Any, lm: Any) -> Iterator[np.ndarray]:
  """The training texts of a corpus, as a model is given them.

  An encoder-decoder's begin with the start token, 0; others' with the input.

  Args:
    corpus: A `training.data.ParallelText` that is not packed.
    lm: The verifier, or a drafter of its kind.

  Raises:
    ValueError: The corpus is packed: a row has several texts.
  """
  if corpus.packed:
    raise ValueError('Got a corpus with packed=True to count; allowed: texts '
                     'one by one, data.ParallelText.packed = False.')
  encodes = isinstance(reduced.whole(lm), t5.T5)
  for group in corpus.train.values():
    for row, weights, given, size in zip(
        group['targets'], group['weights'], group['inputs'],
        group['input_lengths']):
      start = [0] if encodes else given[:size]
      yield np.concatenate([start, row[weights > 0]])


def write(path: pathlib.Path, table: counts.Table) -> None:
  """Saves all or nothing."""
  arrays = {UNIGRAM: table.unigram}
  for i, level in enumerate(table.levels):
    arrays |= {f'{i}/{f.name}': getattr(level, f.name)
               for f in dataclasses.fields(level)}
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **{k: np.asarray(x) for k, x in arrays.items()})
  files.write_atomically(path, buffer.getvalue())


def _load(path):
  try:
    return np.load(path, allow_pickle=False)
  except ValueError:                    # NumPy says how to unpickle it
    raise ValueError('it is no archive of arrays.') from None


def read(path: pathlib.Path) -> counts.Table:
  """The inverse of `write`.

  Raises:
    ValueError: Not such a file.
    OSError: It can't be read.
  """
  names = [f.name for f in dataclasses.fields(counts.Level)]
  try:
    found = _load(path.expanduser())
    if not isinstance(found, np.lib.npyio.NpzFile):
      raise ValueError('it is one array.')
    with found:
      deep = (len(found.files) - 1) // len(names)
      levels = tuple(counts.Level(*(jnp.asarray(found[f'{i}/{name}'])
                                    for name in names)) for i in range(deep))
      return counts.Table(jnp.asarray(found[UNIGRAM]), levels)
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile,
          zlib.error) as error:
    raise ValueError(f'{path} does not hold a table of counts: {error} Give a '
                     'file of scripts/count_table.py.') from None
