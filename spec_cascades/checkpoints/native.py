"""A model as a directory: config.json, model.safetensors, sentencepiece.model.

Large weights are several files, model-00001-of-00002.safetensors and so on. A
tokenizer of another kind is kept in the files that it came in.
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
import jax.numpy as jnp
import numpy as np

from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import hub_config
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import tensors
from spec_cascades.data import files
from spec_cascades.data import words as words_lib
from spec_cascades.evaluation import text
from spec_cascades.models import features
from spec_cascades.models import gemma
from spec_cascades.models import heads as heads_lib
from spec_cascades.models import positions
from spec_cascades.models import reduced
from spec_cascades.models import t5

FORMAT = 1
CONFIG, WEIGHTS, VOCABULARY = (
    'config.json', 'model.safetensors', 'sentencepiece.model')
DTYPES = ('bfloat16', 'float32')
DEFAULT_MAX_INPUT = 128
ROPES = ('rope', 'local_rope')
TOKENS, HEADS = 'draft_vocabulary', 'heads'
SHARD_BYTES = 2**24
MAX_SHARDS = 100_000


@dataclasses.dataclass(frozen=True)
class Family:
  """How a configuration becomes a language model."""
  config: type
  lm: type


FAMILIES = {'t5': Family(t5.T5Config, t5.T5),
            'gemma': Family(gemma.GemmaConfig, gemma.Gemma)}


def save(directory: str | os.PathLike, lm: Any, params: Mapping[str, Any],
         vocabulary_path: str | os.PathLike | None, dtype: str = 'bfloat16', *,
         words: Mapping[str, bytes] | None = None,
         max_input_length: int = DEFAULT_MAX_INPUT,
         shard_bytes: int = SHARD_BYTES,
         info: Mapping[str, Any] | None = None) -> None:
  """Writes a model; each file is complete or not there.

  Args:
    directory: Is created; files of the same names are replaced.
    lm: A model of one of `FAMILIES`, or a `Reduced` or `Beside` of one.
    params: Parameters in checkpoint layout, not packed.
    vocabulary_path: The SentencePiece model, which is copied, if any.
    dtype: Of the weights in the file: 'bfloat16' or 'float32'.
    words: Files of another tokenizer by name, its vocabulary first.
    max_input_length: Longest input in tokens, EOS included, for which the
      model is meant.
    shard_bytes: Weights of one file; a single larger array is not split.
    info: Anything else to keep in config.json (how it was trained, say).

  Raises:
    ValueError: Unknown family or dtype, or parameters of another shape.
  """
  tokens = beside = None
  if isinstance(lm, reduced.Reduced):
    tokens, lm, params = np.asarray(params['tokens']), lm.lm, params['model']
  if isinstance(lm, heads_lib.Beside):
    beside, lm = lm.heads, lm.lm
    params = dict(params['model'], heads=params['heads'])
  flat = traverse_util.flatten_dict(dict(params), sep='/')
  leaves = {name: loading.Leaf(tuple(np.shape(x)), x.nbytes, lambda x=x: x,
                               name) for name, x in flat.items()}
  words = dict(words or {})
  if vocabulary_path is not None:
    words[VOCABULARY] = pathlib.Path(vocabulary_path).expanduser().read_bytes()
  source = loading.Source(pathlib.Path('save'), lm, leaves, tokens=tokens,
                          heads=beside)
  write(directory, source, dtype, words=words,
        max_input_length=max_input_length, shard_bytes=shard_bytes, info=info)


def write(directory: str | os.PathLike, source: loading.Source,
          dtype: str = 'bfloat16', *, words: Mapping[str, bytes],
          max_input_length: int = DEFAULT_MAX_INPUT,
          shard_bytes: int = SHARD_BYTES, info: Mapping[str, Any] | None = None,
          tick: tensors.Write = lambda _: None) -> None:
  """Writes a model whose weights are read one by one; see `save`.

  Args:
    directory: Is created; files of the same names are replaced.
    source: Where the weights are.
    dtype: Of the weights in the file.
    words: Files of the tokenizer by name; a SentencePiece model with T5's ids
      is called `VOCABULARY`.
    max_input_length: See `save`.
    shard_bytes: See `save`.
    info: See `save`.
    tick: See `tensors.write`.

  Raises:
    ValueError: See `save`.
  """
  directory = pathlib.Path(directory).expanduser()
  family, config = family_of(source.lm), source.lm.config
  _check_dtype(dtype, 'save')
  loading.fit(source)
  kept = {}
  if source.tokens is not None:
    reduced.check_tokens(source.tokens, source.lm.vocab_size)
    kept = {TOKENS: source.tokens.tolist()}
  if source.heads is not None:
    kept[HEADS] = beside_of(source.heads)
  directory.mkdir(parents=True, exist_ok=True)
  shards = tensors.shards(dict(sorted(source.leaves.items())),
                          jnp.dtype(dtype).itemsize, shard_bytes)
  for name, shard in zip(weight_files(len(shards)), shards):
    tensors.write(directory / name, shard, dtype, tick)
  for name, content in words.items():
    files.write_atomically(directory / name, content)
  vocabulary = VOCABULARY if VOCABULARY in words else next(iter(words), None)
  described = dict(
      format=FORMAT, family=family, dtype=dtype, shards=len(shards),
      max_input_length=max_input_length, vocabulary=vocabulary,
      config=dataclasses.asdict(config), info=dict(info or {}), **kept)
  files.write_atomically(directory / CONFIG,
                         json.dumps(described, indent=2) + '\n')


def vocabulary_of(path: pathlib.Path, rows: int) -> text.Vocabulary:
  """A SentencePiece model with T5's ids for a model of `rows` embeddings.

  Raises:
    ValueError: It is missing or damaged, or the model's is another one.
  """
  if not path.is_file():
    raise ValueError(f'No vocabulary at {path}; get the file that the model '
                     'was trained with.')
  found = words_lib.SentencePiece(path.read_bytes(), name=str(path))
  loading.check_words(path, found.size, rows)
  eos = found.own('eos')
  if eos != text.EOS:
    raise ValueError(f'{path}: texts end with token {eos}; allowed: '
                     f'{text.EOS}, as in the vocabularies of T5.')
  return text.Vocabulary(str(path))


def family_of(lm: Any) -> str:
  """The name of a model's family; ValueError if it is of none."""
  for name, family in FAMILIES.items():
    if type(lm) is family.lm:
      return name
  raise ValueError(f'Got a {type(lm).__name__} to save; allowed: '
                   f'{", ".join(f.lm.__name__ for f in FAMILIES.values())}.')


def recognises(path: pathlib.Path) -> bool:
  """Whether `save` may have written this directory."""
  config = path / CONFIG
  try:
    found = json.loads(config.read_text(encoding='utf-8'))
  except (OSError, *loading.JSON_ERRORS):
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
  leaves = {}
  for name in weight_files(config['shards']):
    leaves |= _leaves(_file(directory, name), config['dtype'])
  return loading.Source(
      directory / WEIGHTS, lm, leaves,
      tokens=tokens_of(directory / CONFIG, config, lm),
      heads=heads_of(directory / CONFIG, config),
      tokenizer=_tokenizer(directory, config['vocabulary'], lm.vocab_size),
      max_input_length=config['max_input_length'])


def load(directory: str | os.PathLike) -> tuple[Any, Any, Any]:
  """The model, its parameters in float32 and its vocabulary, if it has one.

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
  except loading.JSON_ERRORS as error:
    raise ValueError(f'{path} is not JSON ({error}); '
                     'get the file again.') from None
  keys = {'format', 'family', 'dtype', 'config'}
  if not isinstance(config, dict) or not keys <= set(config):
    raise ValueError(f'{path} must hold {", ".join(sorted(keys))}; it is not a '
                     'configuration that checkpoints.native wrote.')
  if config['format'] != FORMAT:
    raise ValueError(f'{path} has format {config["format"]}; allowed: '
                     f'{FORMAT}. Save the model again.')
  if config['family'] not in list(FAMILIES):
    raise ValueError(f'{path} is of family {config["family"]!r}; allowed: '
                     f'{", ".join(FAMILIES)}.')
  _check_dtype(config['dtype'], path)
  shards = config.get('shards', 1)
  if type(shards) is not int or not 0 < shards < MAX_SHARDS:
    raise ValueError(f'{path} says shards={shards}; allowed: 1 to '
                     f'{MAX_SHARDS - 1}.')
  loading.check_longest(path, config.get('max_input_length', DEFAULT_MAX_INPUT))
  if not isinstance(config['config'], dict):
    raise ValueError(f'{path}: config has to be an object. Save the model '
                     'again.')
  return {'max_input_length': DEFAULT_MAX_INPUT, 'info': {}, 'shards': 1,
          'vocabulary': VOCABULARY, **config}


def weight_files(shards: int) -> list[str]:
  """Names of the files that hold the weights, in order."""
  return tensors.file_names(shards, WEIGHTS)


def digest(directory: str | os.PathLike) -> str:
  """SHA-256 over configuration and weights: what a result was made with."""
  directory, state = pathlib.Path(directory).expanduser(), hashlib.sha256()
  config = read_config(directory)
  kept = {k: config[k] for k in ('family', 'dtype', 'config', TOKENS, HEADS)
          if k in config}
  state.update(json.dumps(kept, sort_keys=True).encode())
  for name in weight_files(config['shards']):
    with _file(directory, name).open('rb') as file:
      hashlib.file_digest(file, lambda: state)
  return state.hexdigest()


def _model(config, path):
  family, given = FAMILIES[config['family']], config['config']
  fields = {f.name for f in dataclasses.fields(family.config)}
  unknown = sorted(set(given) - fields)
  if unknown:
    raise ValueError(f'{path} sets {", ".join(unknown)}, which a '
                     f'{config["family"]} does not have; allowed: '
                     f'{", ".join(sorted(fields))}.')
  try:
    ropes = {name: positions.Rope(**x) for name, x in given.items()
             if name in ROPES}
    made = family.config(**{**given, **ropes})
    hub_config.check(made)
    hash(made)
  except (TypeError, ValueError, ArithmeticError) as error:
    raise ValueError(f'{path}: {error} Save the model again.') from None
  return family.lm(made)


def tokens_of(path: pathlib.Path, config: Mapping[str, Any],
              lm: Any) -> np.ndarray | None:
  """Ids of the tokens that a drafter predicts, if not all.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.
    lm: The model.

  Raises:
    ValueError: They are no ascending ids of the vocabulary.
  """
  found = config.get(TOKENS)
  if found is None:
    return None
  whole = isinstance(found, list) and all(
      type(t) is int and abs(t) < 2**31 for t in found)
  tokens = np.asarray(found if whole else [-1], np.int64)
  try:
    reduced.check_tokens(tokens, lm.vocab_size)
  except ValueError as error:
    raise ValueError(f'{path}, {TOKENS}: {error}') from None
  return tokens.astype(np.int32)


def beside_of(config: Any) -> dict[str, Any]:
  """A configuration of what is beside a model; `heads_of` reads it."""
  return dict(kind=config.kind, **dataclasses.asdict(config))


def heads_of(path: pathlib.Path, config: Mapping[str, Any]) -> Any:
  """The configuration of what is beside the model, if anything is.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.

  Raises:
    ValueError: It is none that there can be.
  """
  found = config.get(HEADS)
  if found is None:
    return None
  kinds = {kind.kind: kind for kind in features.KINDS}
  try:
    made = dict(found)
    return kinds[made.pop('kind')](**made)
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path}, {HEADS}: {error} Save the model again.'
                     ) from None


def _leaves(path: pathlib.Path, dtype: str) -> dict[str, loading.Leaf]:
  """The arrays of a file, memory-mapped; ValueError for another dtype."""
  found = tensors.read(path)
  for name, leaf in found.items():
    if leaf.dtype != dtype:
      raise ValueError(f'{path}: {CONFIG} says {dtype}, but {name} is '
                       f'{leaf.dtype}. Use the weights that belong to it.')
  return found


def _tokenizer(directory, name, rows):
  """Makes what `name`, a file of the directory, is the tokenizer of."""
  if name is None:
    return None
  if name != VOCABULARY:
    return hub.tokenizer_of(directory, rows)
  vocabulary = vocabulary_of(_file(directory, VOCABULARY), rows)
  return lambda: vocabulary


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
