"""What was trained beside a verifier, as a directory without the verifier.

config.json holds what `native` has there of the model and of what is beside it,
and which verifier it belongs to; weights are heads.safetensors, or several
files, with names that begin with 'heads/'. It is no model of its own: `native`
refuses it.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Mapping

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import tensors
from spec_cascades.data import files
from spec_cascades.models import heads as heads_lib

WEIGHTS = 'heads.safetensors'


@dataclasses.dataclass(frozen=True)
class Part:
  """A part that was read.

  Attributes:
    heads: Its configuration, of one of the kinds in `features.KINDS`.
    params: Its parameters in checkpoint layout.
    verifier: Whose it is.
    sha256: Of configuration and weights.
  """
  heads: Any
  params: Any = dataclasses.field(repr=False)
  verifier: extras.Owner
  sha256: str


def write(directory: str | os.PathLike, lm: heads_lib.Beside, params: Any,
          verifier: extras.Owner, dtype: str = 'bfloat16', *,
          shard_bytes: int = native.SHARD_BYTES,
          info: Mapping[str, Any] | None = None) -> None:
  """Writes a part; each file is complete or not there.

  Args:
    directory: Is created; a part that is there is replaced.
    lm: The verifier with its part.
    params: Parameters of the part alone, in checkpoint layout.
    verifier: Whose it is.
    dtype: Of the weights in the file: 'bfloat16' or 'float32'.
    shard_bytes: Weights of one file; a single larger array is not split.
    info: Anything else to keep in config.json (how it was trained, say).

  Raises:
    ValueError: Unknown family or dtype, parameters of another shape, or the
      directory holds something else.
  """
  directory = pathlib.Path(directory).expanduser()
  family = native.family_of(lm.lm)
  native.check_dtype(dtype, 'write')
  check_free(directory)
  flat = traverse_util.flatten_dict({extras.HEADS: dict(params)}, sep='/')
  leaves = {name: loading.Leaf(tuple(np.shape(x)), x.nbytes, lambda x=x: x,
                               name) for name, x in sorted(flat.items())}
  loading.check_shapes(pathlib.Path('write'), loading.expected_beside(
      lm.lm, lm.heads), leaves)
  shards = tensors.shards(leaves, jnp.dtype(dtype).itemsize, shard_bytes)
  described = {
      'format': native.FORMAT, 'family': family, 'dtype': dtype,
      'shards': len(shards), 'config': native.config_of(lm.lm.config),
      extras.HEADS: extras.beside_of(lm.heads),
      extras.VERIFIER: dataclasses.asdict(verifier), 'info': dict(info or {})}
  with files.together(directory, native.CONFIG) as folder:
    for name, shard in zip(weight_files(len(shards)), shards):
      tensors.write(folder / name, shard, dtype)
    files.write_atomically(folder / native.CONFIG,
                           json.dumps(described, indent=2) + '\n')


def check_free(directory: str | os.PathLike) -> None:
  """Refuses, before anything is made, to write over what is no part."""
  directory = pathlib.Path(directory).expanduser()
  if (directory / native.CONFIG).exists() and not recognises(directory):
    raise ValueError(f'{directory} holds a {native.CONFIG} of something else; '
                     'allowed: a directory that is new or holds a part. Give '
                     'another one.')


def recognises(path: pathlib.Path) -> bool:
  """Whether `write` may have written this directory."""
  return (native.recognises(path)
          and extras.VERIFIER in native.described(path))


def read(directory: str | os.PathLike, *, dtype: str = 'float32') -> Part:
  """A part, whole or refused.

  Args:
    directory: See `write`.
    dtype: Of the parameters in memory, as in `loading.load`.

  Raises:
    ValueError: A file is missing or damaged, or a name, shape or dtype is not
      what the configuration asks for.
  """
  directory = pathlib.Path(directory).expanduser()
  config, path = native.read_config(directory, part=True), (
      directory / native.CONFIG)
  verifier = extras.owner_of(
      path, extras.VERIFIER, config.get(extras.VERIFIER),
      'the name of a verifier and its sha256. Export the part again.')
  lm, heads = native.model_of(path, config), extras.heads_of(path, config)
  if heads is None:
    raise ValueError(f'{path} has no {extras.HEADS}, which say what the part '
                     'is. Export the part again.')
  names = weight_files(config['shards'])
  leaves = native.leaves_of(directory, names, config['dtype'])
  try:
    want = loading.expected_beside(lm, heads)
  except ValueError as error:          # a layer that the model can't have
    raise ValueError(f'{path}, {extras.HEADS}: {error}') from None
  loading.check_shapes(directory / WEIGHTS, want, leaves)
  flat = {name: jax.device_put(buffers.copied(
      loading.read(leaf), np.dtype(jnp.dtype(dtype))))
          for name, leaf in leaves.items()}
  params = traverse_util.unflatten_dict(flat, sep='/')[extras.HEADS]
  return Part(heads, params, verifier,
              native.digest_of(directory, config, names))


def weight_files(shards: int) -> list[str]:
  """Names of the files that hold the weights, in order."""
  return tensors.file_names(shards, WEIGHTS)
