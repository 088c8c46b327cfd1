"""What a run is started with, beside it; what is other when it goes on is said.
"""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import numpy as np

from spec_cascades.data import files

FILE = 'settings.jsonl'
TEXTS = 'texts to train on, by SHA-256'
# What runs had before it could be set, and so did not keep.
ALWAYS = {'recipe.z_loss': '0.0001'}


def flat(value: Any, name: str = '') -> dict[str, str]:
  """Every setting of a configuration by its dotted name, as text.

  Args:
    value: A dataclass, in which others may lie; functions and classes count by
      their names, other objects by their type and `path`.
    name: Of the whole.
  """
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    found = {name: type(value).__name__} if name else {}
    for field in dataclasses.fields(value):
      if field.compare:
        inner = getattr(value, field.name)
        found |= flat(inner, f'{name}.{field.name}' if name else field.name)
    return found
  return {name: _text(value)}


def _text(value: Any) -> str:
  if isinstance(value, functools.partial):
    given = ', '.join([*map(_text, value.args), *(
        f'{key}={_text(x)}' for key, x in value.keywords.items())])
    return f'{_text(value.func)}({given})'
  if hasattr(value, '__qualname__'):
    return f'{value.__module__}.{value.__qualname__}'
  if type(value).__repr__ is object.__repr__:
    return f'{type(value).__name__}({getattr(value, "path", "")})'
  return repr(value)


def digest(arrays: Any) -> str:
  """Of a tree of arrays, such as all texts that a run trains on."""
  found = hashlib.sha256()
  for path, x in jax.tree.leaves_with_path(arrays):
    x = np.ascontiguousarray(x)
    found.update(f'{jax.tree_util.keystr(path)} {x.dtype} {x.shape}'.encode())
    found.update(x)
  return found.hexdigest()


def changes(folder: pathlib.Path, run: Any, texts: str | None = None
            ) -> dict[str, str]:
  """By name, a line on each setting that is other than at the start before.

  Args:
    folder: Of the run.
    run: Its settings, a dataclass.
    texts: Digest of what it trains on, if that is known.

  Raises:
    ValueError: The file there can't be read.
  """
  path, now = folder / FILE, _all(run, texts)
  earlier = _earlier(path)
  if not earlier:
    return {}
  try:
    last = json.loads(earlier.splitlines()[-1])
    before = ALWAYS | dict(last['settings'])
    since = int(last['step'])
  except (ValueError, KeyError, TypeError):
    raise ValueError(f'{path} does not hold settings of a run; delete it, '
                     'and the run goes on without it.') from None
  names = {*before, *now}
  if not (before.get(TEXTS) and texts):
    names.discard(TEXTS)
  return {name: f'since step {since}, {name} was {before.get(name, "absent")}, '
          f'is {now.get(name, "absent")}' for name in sorted(names)
          if before.get(name) != now.get(name)}


def _all(run, texts):
  return flat(run) | ({TEXTS: texts} if texts else {})


def compare(folder: pathlib.Path, run: Any, step: int,
            texts: str | None = None) -> list[str]:
  """Lines on what is other than at the start before; keeps all starts.

  A run may go on with other settings, more steps say; then it is no longer the
  run that its first settings describe, so each start that changes one is a
  line of `FILE`.

  Args:
    folder: Of the run.
    run: Its settings, a dataclass.
    step: At which it starts or goes on.
    texts: Digest of what it trains on; None is not compared.

  Raises:
    ValueError: The file there can't be read.
  """
  path, lines = folder / FILE, list(changes(folder, run, texts).values())
  earlier = _earlier(path)
  if lines or not earlier:
    row = json.dumps(dict(step=step, settings=_all(run, texts)),
                     ensure_ascii=False)
    files.write_atomically(path, f'{earlier}{row}\n')
  return lines


def _earlier(path):
  return path.read_text(encoding='utf-8') if path.is_file() else ''
