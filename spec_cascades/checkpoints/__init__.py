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
PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')


def source_of(path: str | os.PathLike) -> loading.Source:
  """Opens a checkpoint of any format; reads no weights.

  Raises:
    ValueError: There is none, its format is unknown, or it is damaged.
  """
  path = pathlib.Path(path).expanduser()
  if not path.exists():
    raise ValueError(f'No checkpoint at {path}; check the path.')
  for name in FORMATS:
    module = importlib.import_module(f'{__name__}.{name}')
    if module.recognises(path):
      return module.source(path)
  _refuse_pickles(path)
  known = '; '.join(FORMATS.values())
  raise ValueError(f'{path} is no checkpoint that is known; allowed: {known}.')


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


def _refuse_pickles(path: pathlib.Path) -> None:
  """Says what to do about weights that only unpickling could read."""
  found = [path] if path.is_file() else sorted(path.iterdir())
  pickles = [p.name for p in found if p.suffix in PICKLES]
  if pickles:
    raise ValueError(
        f'{path} holds {loading.some(pickles)}, a pickle, and unpickling runs '
        'whatever the file says; it is not read. Convert it where you trust '
        'it: python -c "from transformers import AutoModel; '
        f"AutoModel.from_pretrained('{path}')"
        ".save_pretrained('converted', safe_serialization=True)\".")
