"""T5X checkpoints: the directories checkpoint_NNNN, read and written.

Such a directory holds `checkpoint`, a msgpack of Flax with the tree of the
training state, and a gzipped Zarr array for every leaf that the tree names
instead of holding it: target.encoder.layers_0... The target is read, its
optimiser's state is not. Parameter names are ours. The newer layout, which
Orbax writes under checkpoint_NNNN/state, is read too.

There is no configuration: T5Config comes from the shapes, and from a
config.json (fields of `T5Config`) or model.gin beside the arrays or the
checkpoint directory. Of a gin file only literals bound to T5Config are read,
by themselves or as macros.

Reference: google-research/t5x, t5x/checkpoints.py
"""
from __future__ import annotations

import ast
from concurrent import futures
import dataclasses
import logging
import math
import os
import pathlib
import re
from typing import Any, Iterator, Mapping

from flax import serialization
from flax import traverse_util
import numpy as np
import tensorstore as ts

from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import stores
from spec_cascades.data import files
from spec_cascades.models import t5

VERSION = 3                          # what T5X has written since June 2021
INDEX, STATE, TARGET = 'checkpoint', 'state', 'target'
STEP = re.compile(r'checkpoint_(\d+)')
TENSORFLOW = b'model_checkpoint_path'
OVERRIDE, GIN = 'config.json', ('model.gin', 'config.gin')
CHUNK_BYTES, WRITERS = 2**26, 8
# Bindings of T5X's T5Config that are the caller's choice here, or not ours.
UNUSED = ('dtype', 'dropout_rate', 'float32_attention_logits')
SELECTOR = r'((?:[\w.]+/)*)(?:[\w.]+\.)?T5Config'       # scopes first
BLOCK = re.compile(SELECTOR + r':\s*$')
BINDING = re.compile(SELECTOR + r'\.(\w+)\s*=\s*(.*)', re.DOTALL)
FIELD = re.compile(r'\s+(\w+)\s*=\s*(.*)', re.DOTALL)
MACRO = re.compile(r'(\w+)\s*=\s*(.*)', re.DOTALL)

log = logging.getLogger(__name__)


def recognises(path: pathlib.Path) -> bool:
  """Whether T5X may have written it: a checkpoint, or a folder of some."""
  if path.is_file():
    return path.name == INDEX and _looks_right(path.parent)
  return _looks_right(path) or any(map(_looks_right, _steps(path)))


def source(path: str | os.PathLike) -> loading.Source:
  """What `load` reads, with the weights still in their files.

  Of several checkpoints it is the newest that is complete.

  Raises:
    ValueError: A file is missing or damaged, or it is no T5 that is known.
  """
  path = pathlib.Path(path).expanduser().absolute()
  folder = _newest(path.parent if path.is_file() else path)
  found = _arrays(folder)
  config = _config(folder, {name: x.shape for name, x in found.items()})
  leaves = {name: stores.leaf(x, f'{TARGET}.' + name.replace('/', '.'))
            for name, x in found.items()}
  return loading.Source(
      folder, t5.T5(config), stores.largest_first(leaves), tokenizer=(
          stores.tokenizer((folder, folder.parent), config.vocab_size)))


def save(directory: str | os.PathLike, params: Mapping[str, Any],
         step: int = 0, *, dtype: str = 'float32') -> pathlib.Path:
  """Writes directory/checkpoint_{step}, which is complete or not there.

  T5X restores it where it needs no optimiser's state (`InferenceState`, or
  `fallback_to_scratch=True` to fine-tune).

  Args:
    directory: Is created.
    params: Parameters in checkpoint layout, not packed.
    step: Of training.
    dtype: Of the arrays: float32, bfloat16 or float16.

  Returns:
    The checkpoint's directory.

  Raises:
    ValueError: It exists already, or the dtype is unknown.
    OSError: It can't be written.
  """
  if dtype not in loading.DTYPES:
    raise ValueError(f'Got dtype {dtype!r}; allowed: '
                     f'{", ".join(loading.DTYPES)}.')
  folder = pathlib.Path(directory).expanduser().absolute()
  final = folder / f'{INDEX}_{step}'
  if final.exists():
    raise ValueError(f'{final} exists; choose another directory or step.')
  folder.mkdir(parents=True, exist_ok=True)
  flat = traverse_util.flatten_dict({TARGET: dict(params)})
  with files.appearing(final) as partial:
    partial.mkdir()
    with futures.ThreadPoolExecutor(WRITERS) as pool:
      specs = list(pool.map(lambda item: _write(
          partial, '.'.join(item[0]), np.asarray(item[1]), dtype),
                            flat.items()))
    state = {**traverse_util.unflatten_dict(dict(zip(flat, specs))),
             STATE: dict(step=np.asarray(step, np.int32))}
    files.write_atomically(partial / INDEX, serialization.msgpack_serialize(
        dict(version=VERSION, optimizer=state)))
  return final


def _write(folder, name, array, dtype) -> dict[str, Any]:
  """Writes one array; what the index says about it."""
  rows = CHUNK_BYTES // (math.prod(array.shape[1:]) * array.itemsize)
  chunks = [max(min(rows, n), 1) if i == 0 else n
            for i, n in enumerate(array.shape)]
  spec = dict(driver='zarr', dtype=dtype,
              kvstore=dict(driver='file', path=f'{name}/'),
              metadata=dict(compressor=dict(id='gzip', level=1),
                            shape=list(array.shape), chunks=chunks))
  there = dict(driver='file', path=f'{folder}/{name}/')
  store = ts.open({**spec, 'kvstore': there}, create=True).result()
  store.write(array.astype(store.dtype.numpy_dtype)).result()
  return spec


def _looks_right(folder: pathlib.Path) -> bool:
  """Whether a directory is a T5X checkpoint, complete or not."""
  if stores.is_tree(folder / STATE):
    return True
  if (folder / INDEX).is_file():
    with (folder / INDEX).open('rb') as file:
      head = file.read(32)
    if any(x in head for x in (b'version', b'optimizer', TENSORFLOW)):
      return True
  return folder.is_dir() and any(folder.glob(f'{TARGET}.*'))


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """Checkpoints in a folder, the newest first."""
  found = [(int(match[1]), x) for x in folder.iterdir()
           if (match := STEP.fullmatch(x.name)) and x.is_dir()]
  return [x for _, x in sorted(found, reverse=True)]


def _newest(folder: pathlib.Path) -> pathlib.Path:
  """The folder itself, or the newest checkpoint in it that is complete."""
  complete = lambda x: (x / INDEX).is_file() or stores.is_tree(x / STATE)
  steps = [] if _looks_right(folder) else _steps(folder)
  for step in steps or [folder]:
    if complete(step):
      if step != folder:
        log.info('%s: the newest complete checkpoint of %d.', step, len(steps))
      return step
  raise loading.Broken(f'{folder} has no complete checkpoint: the file '
                       f'{INDEX!r}, which is written last, is not there; get '
                       'it again.')


def _arrays(folder: pathlib.Path) -> dict[str, Any]:
  """Arrays of the target, by name, in either layout."""
  index, start = folder / INDEX, f'{TARGET}/'
  if not index.is_file():
    names = stores.tree(folder / STATE)
    return stores.arrays(folder / STATE, {
        name.removeprefix(start): x for name, x in names.items()
        if name.startswith(start)})
  raw = index.read_bytes()
  if raw.startswith(TENSORFLOW):
    raise ValueError(f'{folder} is a TensorFlow checkpoint; convert it with '
                     't5x/scripts/convert_tf_checkpoint.py of T5X.')
  with loading.readable(index, *stores.ERRORS):
    found = serialization.msgpack_restore(raw)
    version = found['version']
    target = traverse_util.flatten_dict(
        found['optimizer'][TARGET], sep='/',
        is_leaf=lambda _, x: 'kvstore' in x)
    names = {name: _stored(x) if isinstance(x, dict) else x
             for name, x in target.items()}
  if version not in (2, 3):
    raise ValueError(f'{index} has version {version}; allowed: 2, 3.')
  arrays = stores.arrays(folder, names)
  for name, spec in target.items():
    if isinstance(spec, dict):
      _compare(folder, name, spec, arrays[name])
  return arrays


def _stored(spec: Mapping[str, Any]) -> str:
  """The name of an array's directory, as old or new versions note it."""
  return (spec['kvstore'].get('path') or spec['path']).strip('/')


def _compare(folder, name, spec, array) -> None:
  """Refuses an array that is not what the index says."""
  with loading.readable(folder / INDEX, *stores.ERRORS):
    shape = tuple(spec['metadata']['shape'])
    dtype = spec.get('dtype', array.dtype.name)
  if (shape, dtype) != (array.shape, array.dtype.name):
    raise loading.Broken(
        f'{folder / INDEX} says that {name} is {dtype} {shape}, but its array '
        f'is {array.dtype.name} {array.shape}; get the checkpoint again.')


def _config(folder, shapes) -> t5.T5Config:
  """A configuration from shapes, and from what lies beside them."""
  path, given = _override(folder)
  stacked = [x for x in shapes if x.startswith(('encoder/encoder/',
                                                'decoder/decoder/'))]
  own = [x for x in shapes if '/relpos_bias/' in x and '/layers_' in x]
  for names, what in ((stacked, 'stacks its layers (scan_layers=True)'),
                      (own, 'has a relative bias in every layer (umT5)')):
    if names:
      raise ValueError(f'{folder} {what}, as {names[0]} shows, which is not '
                       'supported.')
  depth = lambda stack: 1 + max(
      int(match[1]) for name in shapes
      if (match := re.match(stack + r'/layers_(\d+)/', name)))
  first = 'encoder/layers_0/'
  try:
    vocab_size, emb_dim = shapes['token_embedder/embedding']
    num_heads, buckets = shapes['encoder/relpos_bias/rel_embedding']
    _, joined = shapes[first + 'attention/query/kernel']
    mlp_dim, _ = shapes[first + 'mlp/wo/kernel']
    layers = dict(num_encoder_layers=depth('encoder'),
                  num_decoder_layers=depth('decoder'))
  except (KeyError, ValueError) as error:
    raise ValueError(f'{folder} is no T5: {error} is wrong or not there.'
                     ) from None
  if joined % num_heads:
    raise ValueError(f'{folder}: {joined} columns of a query are not a '
                     f'multiple of {num_heads} heads, which the relative bias '
                     'has.')
  gated = first + 'mlp/wi_0/kernel' in shapes
  inferred = t5.T5Config(
      vocab_size=vocab_size, emb_dim=emb_dim, num_heads=num_heads,
      head_dim=joined // num_heads, mlp_dim=mlp_dim, relative_buckets=buckets,
      mlp_activations=('gelu', 'linear') if gated else ('relu',),
      logits_via_embedding='decoder/logits_dense/kernel' not in shapes,
      **layers)
  return stores.configured(t5.T5Config, given, path, inferred)


def _override(folder) -> tuple[pathlib.Path, dict[str, Any]]:
  """Fields that a file beside the checkpoint sets, and which file."""
  for place in (folder, folder.parent):
    if (place / OVERRIDE).is_file():
      return place / OVERRIDE, stores.read_json(place / OVERRIDE)
    for name in GIN:
      if (place / name).is_file():
        return place / name, _gin(place / name)
  return folder, {}


def _gin(path: pathlib.Path) -> dict[str, Any]:
  """Literals that a gin file binds to T5Config; nothing of it is run.

  A run of T5X may have more than one T5Config, in scopes. What they don't
  agree on is left to the shapes.
  """
  known = {f.name for f in dataclasses.fields(t5.T5Config)} - {*UNUSED}
  out = {}
  with loading.readable(path, *stores.ERRORS):
    macros, bindings = _bindings(path.read_text(encoding='utf-8'))
  for (scope, name), given in bindings.items():
    if name in known:
      value = macros.get(given.removeprefix('%'), given)
      try:
        out.setdefault(name, {})[scope] = ast.literal_eval(value)
      except (*stores.ERRORS, SyntaxError):
        raise ValueError(f'{path} binds T5Config.{name} to {value!r}; '
                         'only literals are read. Write it out.') from None
  return {name: value for name, (value, *others) in (
      (name, found.values()) for name, found in out.items())
          if all(x == value for x in others)}


def _bindings(content: str) -> tuple[dict[str, str],
                                     dict[tuple[str, str], str]]:
  """Macros, and what T5Config is bound to: by (scope, field), as written."""
  macros, found, scope = {}, {}, None
  for line in _statements(content):
    if match := BLOCK.match(line):
      scope = match[1]
    elif match := BINDING.match(line):
      found[match[1], match[2]] = match[3].strip()
    elif match := MACRO.match(line):
      scope, macros[match[1]] = None, match[2].strip()
    elif scope is not None and (match := FIELD.match(line)):
      found[scope, match[1]] = match[2].strip()
    elif line.strip():
      scope = None
  return macros, found


def _statements(content: str) -> Iterator[str]:
  """Lines without comments; brackets join them."""
  held = ''
  for line in content.splitlines():
    held += line.partition('#')[0].rstrip()
    if sum(map(held.count, '([{')) <= sum(map(held.count, ')]}')):
      yield held
      held = ''
  yield held
