"""Models from the files that people have: one `load` for every format.

A format is a module with `recognises(path)`, which looks at names and first
bytes only, and `source(path)`, which reads everything but the weights; adding
one is that module and a line in `FORMATS`.
"""
from __future__ import annotations

import importlib
import os
import pathlib
from typing import Any, Callable

from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints.loading import Checkpoint

# Asked in this order. What each is, for messages.
FORMATS = {
    'native': 'a directory that scripts/export.py or convert_checkpoint.py '
              'wrote',
    'hub': 'a Hugging Face directory with config.json and model.safetensors',
    'gguf_file': 'a GGUF file of a Llama, Qwen or Gemma',
    't5x': 'a checkpoint_NNNN of T5X, or a directory of some',
    'orbax': 'a run of scripts/train.py, or a Gemma as Orbax stores it',
}


def check_there(path: str | os.PathLike) -> None:
  """Raises ValueError unless there is a file or a folder."""
  if not pathlib.Path(path).expanduser().exists():
    raise ValueError(f'No checkpoint at {path}; give a file of weights, or a '
                     'folder that has one: docs/checkpoints.md.')


def source_of(path: str | os.PathLike) -> loading.Source:
  """Opens a checkpoint of any format; reads no weights.

  Raises:
    ValueError: There is none, its format is unknown, or it is damaged.
  """
  check_there(path)
  path = pathlib.Path(path).expanduser()
  for name in FORMATS:
    module = importlib.import_module(f'{__name__}.{name}')
    if module.recognises(path):
      return module.source(path)
  why = importlib.import_module(f'{__name__}.unread').explain(path)
  known = '; '.join(FORMATS.values())
  raise ValueError(why or f'{path} is no checkpoint that is known; allowed: '
                   f'{known}.')


def load(path: str | os.PathLike, *, dtype: str = 'float32',
         sharding: Callable[[str, tuple[int, ...]], Any] | None = None,
         progress: Callable[..., Any] | None = None) -> Checkpoint:
  """A model, its parameters in checkpoint layout, and its tokenizer.

  Args:
    path: A file or a directory; its format is recognised.
    dtype: Of the parameters in memory.
    sharding: See `loading.load`.
    progress: See `loading.load`.

  Raises:
    ValueError: See `source_of` and `loading.load`.
  """
  return loading.load(source_of(path), dtype=dtype, sharding=sharding,
                      progress=progress)
