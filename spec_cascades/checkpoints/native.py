"""A model as a directory: config.json, model.safetensors, sentencepiece.model.

Parameter names are T5X's, joined by '/'. A family is a configuration class and
a model class made from it; adding one is a line in `FAMILIES`.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any, Mapping

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from spec_cascades.evaluation import text
from spec_cascades.models import t5

FORMAT = 1
CONFIG, WEIGHTS, VOCABULARY = (
    'config.json', 'model.safetensors', 'sentencepiece.model')
DTYPES = {'bfloat16': 'BF16', 'float32': 'F32'}
# Tables are often padded to a multiple of 128 rows.
MAX_SPARE_ROWS = 128
DEFAULT_MAX_INPUT = 128


@dataclasses.dataclass(frozen=True)
class Family:
  """How a configuration becomes a language model."""
  config: type
  lm: type


FAMILIES = {'t5': Family(t5.T5Config, t5.T5)}


def save(directory: str | os.PathLike, lm: Any, params: Mapping[str, Any],
         vocabulary_path: str | os.PathLike, dtype: str = 'bfloat16', *,
         max_input_length: int = DEFAULT_MAX_INPUT,
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
  _check_tree({k: tuple(np.shape(x)) for k, x in flat.items()}, lm, 'save')
  directory.mkdir(parents=True, exist_ok=True)
  arrays = {name: np.ascontiguousarray(np.asarray(x).astype(jnp.dtype(dtype)))
            for name, x in sorted(flat.items())}
  config = dict(format=FORMAT, family=family, dtype=dtype,
                max_input_length=max_input_length,
                config=dataclasses.asdict(lm.config), info=dict(info or {}))
  _write(directory / WEIGHTS, safetensors.numpy.save(arrays))
  vocabulary = pathlib.Path(vocabulary_path).expanduser().read_bytes()
  _write(directory / VOCABULARY, vocabulary)
  _write(directory / CONFIG, (json.dumps(config, indent=2) + '\n').encode())


def load(directory: str | os.PathLike) -> tuple[Any, Any, text.Vocabulary]:
  """The model, its parameters in float32 and its vocabulary.

  Raises:
    ValueError: A file is missing or damaged, the family is unknown, a name,
      shape or dtype is not what the configuration asks for, or the vocabulary
      is of another size.
  """
  directory = pathlib.Path(directory).expanduser()
  config = read_config(directory)
  lm = _model(config, directory / CONFIG)
  vocabulary = text.Vocabulary(str(_file(directory, VOCABULARY)))
  _check_vocabulary(vocabulary, lm.vocab_size)
  arrays = _read_weights(_file(directory, WEIGHTS), lm, config['dtype'])
  # Unlike `jnp.asarray`, `device_put` compiles nothing.
  params = jax.device_put({name: x.astype(np.float32)
                           for name, x in arrays.items()})
  return lm, traverse_util.unflatten_dict(params, sep='/'), vocabulary


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
  return {'max_input_length': DEFAULT_MAX_INPUT, 'info': {}, **config}


def digest(directory: str | os.PathLike) -> str:
  """SHA-256 over configuration and weights: what a result was made with."""
  directory, state = pathlib.Path(directory).expanduser(), hashlib.sha256()
  config = read_config(directory)
  kept = {k: config[k] for k in ('family', 'dtype', 'config')}
  state.update(json.dumps(kept, sort_keys=True).encode())
  state.update(_file(directory, WEIGHTS).read_bytes())
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


def _expected(lm) -> dict[str, tuple[int, ...]]:
  # Making a key would compile: it is only traced.
  tree = jax.eval_shape(lambda: lm.init_params(jax.random.key(0)))
  flat = traverse_util.flatten_dict(tree, sep='/')
  return {name: tuple(x.shape) for name, x in flat.items()}


def _check_tree(shapes, lm, where) -> None:
  """Compares names and shapes with what the model's `init_params` makes."""
  expected = _expected(lm)
  missing = sorted(set(expected) - set(shapes))
  extra = sorted(set(shapes) - set(expected))
  wrong = [f'{n} is {shapes[n]}, not {expected[n]}' for n in sorted(expected)
           if n in shapes and shapes[n] != expected[n]]
  found = {'missing': missing, 'left over': extra, 'wrong shape': wrong}
  faults = [f'{what}: {_some(names)}' for what, names in found.items() if names]
  if faults:
    raise ValueError(f'{where}: parameters do not fit the configuration; '
                     f'{"; ".join(faults)}. Use the weights that belong to it.')


def _some(names, limit: int = 3) -> str:
  more = f' and {len(names) - limit} more' if len(names) > limit else ''
  return ', '.join(names[:limit]) + more


def _read_weights(path, lm, dtype) -> dict[str, np.ndarray]:
  try:
    with safetensors.safe_open(path, 'numpy') as file:
      slices = {name: file.get_slice(name) for name in file.keys()}
      shapes = {n: tuple(s.get_shape()) for n, s in slices.items()}
      dtypes = {n: s.get_dtype() for n, s in slices.items()}
      _check_tree(shapes, lm, path)
      wrong = [f'{n} is {d}' for n, d in sorted(dtypes.items())
               if d != DTYPES[dtype]]
      if wrong:
        raise ValueError(f'{path}: {CONFIG} says {dtype}, but {_some(wrong)}. '
                         'Use the weights that belong to it.')
      return {name: file.get_tensor(name) for name in slices}
  except safetensors.SafetensorError as error:
    raise ValueError(f'{path} is damaged or cut off ({error}); '
                     'get the file again.') from None


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


def _write(path: pathlib.Path, content: bytes) -> None:
  partial = path.with_name(path.name + '.partial')
  partial.write_bytes(content)
  os.replace(partial, path)
