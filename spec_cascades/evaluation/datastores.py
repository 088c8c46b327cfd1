"""Datastores for REST on disk: a text, its suffixes, and whose tokens they are.

A directory with tokens.npy and order.npy, which are read through memory maps,
and datastore.json.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
from typing import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades.data import files
from spec_cascades.drafters import suffixes

ABOUT, ARRAYS = 'datastore.json', ('tokens', 'order')
VERSION = 1


def joined(texts: Iterable[Sequence[int]], start: Sequence[int]) -> np.ndarray:
  """One row of tokens: every text behind what a decoder starts with.

  Args:
    texts: Tokens, with EOS.
    start: What comes before the first token of an output, 0 for a T5.
  """
  rows = [np.asarray([*start, *text], np.int32) for text in texts]
  return np.concatenate(rows) if rows else np.zeros(0, np.int32)


def write(directory: str, store: suffixes.Datastore, vocabulary: str,
          about: str) -> pathlib.Path:
  """Writes a datastore; datastore.json last, so that a half is none.

  Args:
    directory: Is made; what is in it of a datastore is replaced.
    store: See `suffixes.index`.
    vocabulary: SHA-256 of the vocabulary, `Pair.vocabulary_sha256`.
    about: What its text is, to show.
  """
  place = pathlib.Path(directory).expanduser()
  place.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:        # which puts both in place
    partial = [stack.enter_context(files.appearing(path))
               for path in _arrays(place)]
    for name, path in zip(ARRAYS, partial):
      with path.open('wb') as file:
        np.save(file, np.asarray(getattr(store, name), np.int32))
    digest = _digest(partial)
    (place / ABOUT).unlink(missing_ok=True)
  said = dict(version=VERSION, vocabulary=vocabulary, about=about,
              sizes=len(store.tokens), end=int(store.end), sha256=digest)
  files.write_atomically(place / ABOUT, json.dumps(said, indent=1) + '\n')
  return place


def read(directory: str, vocabulary: str,
         size: int) -> tuple[suffixes.Datastore, str]:
  """A datastore and the SHA-256 of its arrays.

  Args:
    directory: See `write`.
    vocabulary: SHA-256 of the vocabulary of the model that it is for.
    size: Of that vocabulary.

  Raises:
    ValueError: There is none, it is damaged or of another vocabulary.
  """
  place = pathlib.Path(directory).expanduser()
  if not (place / ABOUT).is_file():
    raise ValueError(f'No datastore in {directory}; make one with '
                     'scripts/build_datastore.py.')
  hint = 'make it again with scripts/build_datastore.py'
  try:
    said = json.loads((place / ABOUT).read_text(encoding='utf-8'))
    tokens, order = (np.load(path, mmap_mode='r', allow_pickle=False)
                     for path in _arrays(place))
    kept, digest = said['vocabulary'], said['sha256']
    end = int(said['end'])
    whole = digest == _digest(_arrays(place)) and said['version'] == VERSION
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(f"The datastore in {directory} can't be read ({error}); "
                     f'{hint}.') from None
  if kept != vocabulary:
    raise ValueError(f'The datastore in {directory} has the tokens of another '
                     f'vocabulary; {hint}, and --verifier.')
  if not whole or tokens.shape != order.shape or tokens.max(initial=0) >= size:
    raise ValueError(f'The datastore in {directory} is damaged: its arrays are '
                     f'not those that {ABOUT} speaks of; {hint}.')
  # On a CPU an array is the map: what is never looked at takes no memory.
  tokens, order = jax.device_put((tokens, order), may_alias=True)
  return suffixes.Datastore(tokens, order, jnp.int32(end)), digest


def _arrays(place):
  return [place / f'{name}.npy' for name in ARRAYS]


def _digest(paths):
  state = hashlib.sha256()
  for path in paths:
    with path.open('rb') as file:
      state.update(hashlib.file_digest(file, 'sha256').digest())
  return state.hexdigest()
