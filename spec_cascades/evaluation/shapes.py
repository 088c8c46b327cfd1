"""Shapes of trees as JSON files."""
from __future__ import annotations

import dataclasses
import json
import pathlib

from spec_cascades import check
from spec_cascades.data import files
from spec_cascades.evaluation import sequoia


def write(path: pathlib.Path, shape: sequoia.Shape) -> None:
  """Saves all or nothing."""
  files.write_atomically(path, json.dumps(dataclasses.asdict(shape)) + '\n')


def read(path: pathlib.Path) -> sequoia.Shape:
  """The inverse of `write`; only `parents` has to be there.

  Raises:
    ValueError: Not such a file, or parents that are no tree.
    OSError: It can't be read.
  """
  try:
    data = json.loads(path.expanduser().read_text(encoding='utf-8'))
    parents = data.get('parents') if isinstance(data, dict) else None
    if not isinstance(parents, list) or not all(
        type(x) is int for x in parents):
      raise ValueError(f'parents is {str(parents)[:60]}; allowed: a list of '
                       'whole numbers.')
    check.tree(tuple(parents))
    return sequoia.Shape(tuple(parents), *(
        float(data.get(name, 'nan')) for name in ('tokens', 'speedup')))
  except (ValueError, TypeError) as error:
    raise ValueError(f'{path} does not hold the shape of a tree: {error} Give '
                     'a file of scripts/shape_tree.py.') from None
