"""A model as a directory: config.json, model.safetensors, sentencepiece.model.

Large weights are several files, model-00001-of-00002.safetensors and so on.
Parameter names are T5X's, joined by '/'. A family is a configuration class and
a model class made from it; adding one is a line in `FAMILIES`.
"""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from typing import Any, Mapping

from flax import traverse_util
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from spec_cascades.checkpoints import loading
from spec_cascades.data import files
from spec_cascades.evaluation import text
from spec_cascades.models import t5

FORMAT = 1
CONFIG, WEIGHTS, VOCABULARY = (
    'config.json', 'model.safetensors', 'sentencepiece.model')
DTYPES = {'bfloat16': 'BF16', 'float32': 'F32'}
# Tables are often padded to a multiple of 128 rows.
MAX_SPARE_ROWS = 128
DEFAULT_MAX_INPUT = 128
SHARD_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Family:
  """How a configuration becomes a language model."""
  config: type
  lm: type


FAMILIES = {'t5': Family(t5.T5Config, t5.T5)}


def save(directory: str | os.PathLike, lm: Any, params: Mapping[str, Any],
         vocabulary_path: str | os.PathLike, dtype: str = 'bfloat16', *,
         max_input_length: int = DEFAULT_MAX_INPUT,
         shard_bytes: int = SHARD_BYTES,
         info: Mapping[str, Any] | None = None) -> None:
  """Writes a model; each file is complete or not there.

  Args:
    directory: Is created; files of the same names are replaced.
    lm: A model of one of `FAMILIES`.
    params: Parameters in checkpoint layout, not packed.
    vocabulary_path: The SentencePiece model, which is copied.
    dtype: Of the weights in the file: 'bfloat16' or 'float32'.
    max_input_length: Longest input in tokens, EOS included, for which the
      model is meant.
    shard_bytes: Weights of one file; a single larger array is not split.
    info: Anything else to keep in config.json (how it was trained, say).

  Raises:
    ValueError: Unknown family or dtype, or parameters of another shape.
  """
  directory = pathlib.Path(directory).expanduser()
  family = next((n for n, f in FAMILIES.items() if type(lm) is f.lm), None)
  if family is None:
    raise ValueError(f'Got a {type(lm).__name__} to save; allowed: '
                     f'{", ".join(f.lm.__name__ for f in FAMILIES.values())}.')
  _check_dtype(dtype, 'save')
  flat = traverse_util.flatten_dict(dict(params), sep='/')
  loading.fit(loading.Source(pathlib.Path('save'), lm, {
      k: loading.Leaf(tuple(np.shape(x)), 0, lambda x=x: x, k)
      for k, x in flat.items()}))
  directory.mkdir(parents=True, exist_ok=True)
  arrays = {name: np.ascontiguousarray(np.asarray(x).astype(jnp.dtype(dtype)))
            for name, x in sorted(flat.items())}
  shards = _shards(arrays, shard_bytes)
  config = dict(format=FORMAT, family=family, dtype=dtype, shards=len(shards),
                max_input_length=max_input_length,
                config=dataclasses.asdict(lm.config), info=dict(info or {}))
  for name, shard in zip(weight_files(len(shards)), shards):
    files.write_atomically(directory / name, safetensors.numpy.save(shard))
  vocabulary = pathlib.Path(vocabulary_path).expanduser().read_bytes()
  files.write_atomically(directory / VOCABULARY, vocabulary)
  files.write_atomically(directory / CONFIG,
                         json.dumps(config, indent=2) + '\n')


def recognises(path: pathlib.Path) -> bool:
  """Whether `save` may have written this directory."""
  config = path / CONFIG
  try:
    found = json.loads(config.read_text(encoding='utf-8'))
  except (OSError, ValueError):
    return False
  return isinstance(found, dict) and {'format', 'family'} <= set(found)


def source(directory: str | os.PathLike) -> loading.Source:
  """What `load` reads, with the weights still in their files.

  Raises:
    ValueError: A file is missing or damaged, the family is unknown, or the
      vocabulary is of another size.
  """
  directory = pathlib.Path(directory).expanduser()
  config = read_config(directory)
  lm = _model(config, directory / CONFIG)
  vocabulary = text.Vocabulary(str(_file(directory, VOCABULARY)))
  _check_vocabulary(vocabulary, lm.vocab_size)
  leaves = {}
  for name in weight_files(config['shards']):
    leaves |= _leaves(_file(directory, name), config['dtype'])
  return loading.Source(directory / WEIGHTS, lm, leaves,
                        tokenizer=lambda: vocabulary)


def load(directory: str | os.PathLike) -> tuple[Any, Any, text.Vocabulary]:
  """The model, its parameters in float32 and its vocabulary.

  Raises:
    ValueError: See `source`; or a name, shape or dtype is not what the
      configuration asks for.
  """
  return tuple(loading.load(source(directory)))


def read_config(directory: str | os.PathLike) -> dict[str, Any]:
  """config.json, checked for its format and its keys."""
  path = _file(pathlib.Path(directory).expanduser(), CONFIG)
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path} is not JSON ({error}); '
                     'get the file again.') from None
  keys = {'format', 'family', 'dtype', 'config'}
  if not isinstance(config, dict) or not keys <= set(config):
    raise ValueError(f'{path} must hold {", ".join(sorted(keys))}; it is not a '
                     'configuration that checkpoints.native wrote.')
  if config['format'] != FORMAT:
    raise ValueError(f'{path} has format {config["format"]}; allowed: '
                     f'{FORMAT}. Save the model again.')
  if config['family'] not in FAMILIES:
    raise ValueError(f'{path} is of family {config["family"]!r}; allowed: '
                     f'{", ".join(FAMILIES)}.')
  _check_dtype(config['dtype'], path)
  return {'max_input_length': DEFAULT_MAX_INPUT, 'info': {}, 'shards': 1,
          **config}


def weight_files(shards: int) -> list[str]:
  """Names of the files that hold the weights, in order."""
  if shards == 1:
    return [WEIGHTS]
  stem, suffix = WEIGHTS.split('.')
  return [f'{stem}-{i + 1:05d}-of-{shards:05d}.{suffix}' for i in range(shards)]


def digest(directory: str | os.PathLike) -> str:
  """SHA-256 over configuration and weights: what a result was made with."""
  directory, state = pathlib.Path(directory).expanduser(), hashlib.sha256()
  config = read_config(directory)
  kept = {k: config[k] for k in ('family', 'dtype', 'config')}
  state.update(json.dumps(kept, sort_keys=True).encode())
  for name in weight_files(config['shards']):
    state.update(_file(directory, name).read_bytes())
  return state.hexdigest()


def _model(config, path):
  family = FAMILIES[config['family']]
  fields = {f.name for f in dataclasses.fields(family.config)}
  unknown = sorted(set(config['config']) - fields)
  if unknown:
    raise ValueError(f'{path} sets {", ".join(unknown)}, which a '
                     f'{config["family"]} does not have; allowed: '
                     f'{", ".join(sorted(fields))}.')
  return family.lm(family.config(**config['config']))


def _shards(arrays, limit) -> list[dict[str, np.ndarray]]:
  """The arrays in order, in groups of at most `limit` bytes."""
  shards, size = [{}], 0
  for name, x in arrays.items():
    if shards[-1] and size + x.nbytes > limit:
      shards, size = [*shards, {}], 0
    shards[-1][name] = x
    size += x.nbytes
  return shards


def _leaves(path: pathlib.Path, dtype: str) -> dict[str, loading.Leaf]:
  """The arrays of a file, memory-mapped; ValueError for another dtype."""
  with loading.readable(path, safetensors.SafetensorError):
    file = safetensors.safe_open(path, 'numpy')
  out = {}
  for name in file.keys():
    found = file.get_slice(name)
    if found.get_dtype() != DTYPES[dtype]:
      raise ValueError(f'{path}: {CONFIG} says {dtype}, but {name} is '
                       f'{found.get_dtype()}. Use the weights that belong '
                       'to it.')
    shape = tuple(found.get_shape())
    size = math.prod(shape) * jnp.dtype(dtype).itemsize
    out[name] = loading.Leaf(
        shape, size, functools.partial(_read, path, file, name), name)
  return out


def _read(path, file, name) -> np.ndarray:
  with loading.readable(path, safetensors.SafetensorError):
    return file.get_tensor(name)


def _check_vocabulary(vocabulary, rows) -> None:
  try:
    pieces = vocabulary.size
  except (RuntimeError, OSError):
    raise ValueError(f'{vocabulary.path} is not a SentencePiece model; '
                     'get the file again.') from None
  if not 0 <= rows - pieces < MAX_SPARE_ROWS:
    raise ValueError(f'{vocabulary.path} has {pieces} pieces, but the model '
                     f'has {rows} embeddings; use the vocabulary that the '
                     'model was trained with.')


def _check_dtype(dtype, where) -> None:
  if dtype not in DTYPES:
    raise ValueError(f'{where}: got dtype {dtype!r}; allowed: '
                     f'{", ".join(DTYPES)}.')


def _file(directory: pathlib.Path, name: str) -> pathlib.Path:
  path = directory / name
  if not path.is_file():
    raise ValueError(f'No {name} in {directory}; a model directory holds '
                     f'{CONFIG}, {WEIGHTS} and {VOCABULARY}.')
  return path
