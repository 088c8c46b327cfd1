"""Directories as Hugging Face has them: config.json, safetensors, a tokenizer.

Weights are one file or, with an index, several. Pickles are not read, and
nothing in the files is run.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Callable

import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import hub_config
from spec_cascades.checkpoints import huggingface
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import tensors

CONFIG, WEIGHTS = 'config.json', 'model.safetensors'
INDEX = 'model.safetensors.index.json'
EMBEDDING = 'token_embedder/embedding'
# Ours, in a configuration of theirs: the longest input in tokens.
LONGEST = 'max_input_length'
# A check of copies compares so many bytes at a time.
COMPARED = 2**23


def recognises(path: pathlib.Path) -> bool:
  """Whether the files are called as Hugging Face calls them."""
  return (path / CONFIG).is_file() and any(
      (path / name).is_file() for name in (WEIGHTS, INDEX))


def source(path: str | os.PathLike) -> loading.Source:
  """Opens a directory; reads no weights.

  Raises:
    ValueError: A file is missing or damaged, the model is not supported, or
      the configuration contradicts the weights.
  """
  path = pathlib.Path(path).expanduser()
  config = read_json(path / CONFIG)
  try:
    lm = hub_config.model(config)
  except ValueError as error:
    raise ValueError(f'{path / CONFIG}: {error}') from None
  found = arrays(path)
  if deepest(lm.config) > len(found):
    raise ValueError(f'{path / CONFIG} says {deepest(lm.config)} layers, but '
                     f'the weights are {len(found)} arrays. Use the weights '
                     'that belong to it.')
  names = huggingface.names(found, lm.config)
  wanted = {theirs: found[name] for theirs, name in names.wanted.items()}
  shared = wanted.get('shared.weight')
  if shared is not None and hub_config.has_tied_head(config):
    wanted.setdefault(huggingface.HEAD, shared)
  leaves = {ours: turned(ours, wanted[theirs])
            for ours, theirs in huggingface.pairs(lm.config)
            if theirs in wanted}
  _check_complete(path, lm.config, wanted)
  leaves[EMBEDDING] = _same(path, leaves[EMBEDDING],
                            [found[name] for name in names.copies])
  longest = config.get(LONGEST)
  if longest is not None:
    loading.check_longest(path / CONFIG, longest)
  return loading.Source(path, lm, leaves, names.left_over,
                        tokenizer_of(path, lm.vocab_size),
                        max_input_length=longest)


def arrays(path: pathlib.Path) -> dict[str, loading.Leaf]:
  """All arrays of a directory by their names in the files."""
  if (path / WEIGHTS).is_file():
    return tensors.read(path / WEIGHTS)
  index = read_json(path / INDEX).get('weight_map')
  if not isinstance(index, dict) or not all(
      isinstance(name, str) and name == pathlib.PurePath(name).name
      for name in index.values()):
    raise loading.Broken(f'{path / INDEX} is damaged: its weight_map does not '
                         'map names to files beside it; get the file again.')
  found = {}
  for name in sorted(set(index.values())):
    if not (path / name).is_file():
      raise ValueError(f'No {name} in {path}, which {INDEX} names; get the '
                       'missing file.')
    there = tensors.read(path / name)
    absent = [x for x, file in index.items() if file == name and x not in there]
    twice = sorted(set(found) & set(there))
    if absent or twice:
      what = f'lacks {loading.some(absent)}' if absent else (
          f'repeats {loading.some(twice)}')
      raise ValueError(f'{path / name} {what}, unlike {INDEX}; get both again.')
    found |= there
  return found


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """An object in a JSON file."""
  with loading.readable(path, *loading.JSON_ERRORS):
    found = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(found, dict):
      raise ValueError('not a JSON object')
  return found


def deepest(config: Any) -> int:
  """Layers of the deepest stack."""
  return max(getattr(config, name) for name in loading.DEPTHS
             if name in vars(config))


def tokenizer_of(path: pathlib.Path, rows: int) -> Callable[[], Any]:
  """Makes the directory's tokenizer, if it has one that fits the model."""
  def make() -> Any:
    from spec_cascades.data import tokenizers  # pylint: disable=g-import-not-at-top
    found = tokenizers.of_directory(path)
    if found is None:
      return None
    loading.check_words(path, found.size, rows, found.words.specials)
    return dataclasses.replace(found, rows=rows) if found.size > rows else found
  return make


def _check_complete(path, config, wanted) -> None:
  """Says which arrays are missing by the names that the files should have."""
  missing = [theirs for _, theirs in huggingface.pairs(config)
             if theirs not in wanted]
  if missing:
    raise ValueError(f'{path}: the weights lack {loading.some(missing)}, which '
                     f'{CONFIG} asks for. Use the weights that belong to it.')


def turned(ours: str, leaf: loading.Leaf) -> loading.Leaf:
  """An array of theirs in our layout; the transpose is a view."""
  if not huggingface.is_turned(ours):
    return leaf
  return dataclasses.replace(leaf, shape=leaf.shape[::-1],
                             read=lambda: leaf.read().T)


def _same(path: pathlib.Path, leaf: loading.Leaf,
          copies: list[loading.Leaf]) -> loading.Leaf:
  """The embedding; reading it fails if what should be a copy is none."""
  def read() -> np.ndarray:
    array = leaf.read()
    for copy in copies:
      other = copy.read()
      if array.shape != other.shape or array.dtype != other.dtype or not all(
          _equal(array, other, rows) for rows in buffers.rows(array, COMPARED)):
        raise ValueError(f'{path}: {copy.name} is not {leaf.name}, but '
                         f'{CONFIG} says that they are tied.')
    return array
  return dataclasses.replace(leaf, read=read) if copies else leaf


def _equal(one: np.ndarray, other: np.ndarray, rows: slice) -> bool:
  """Whether some rows have the same bits; forgets what was read."""
  bits = lambda x: np.ascontiguousarray(x[rows]).view(np.uint8)
  same = np.array_equal(bits(one), bits(other))
  buffers.forget(one)
  buffers.forget(other)
  return same
