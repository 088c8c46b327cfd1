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
from typing import Any, Iterable, Mapping

from flax import traverse_util
import jax.numpy as jnp
import numpy as np

from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import hub_config
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import tensors
from spec_cascades.data import files
from spec_cascades.data import words as words_lib
from spec_cascades.evaluation import text
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
         shard_bytes: int = SHARD_BYTES, lender: extras.Owner | None = None,
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
    lender: Whose encoder it has, which is then left out, see `source`.
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
        max_input_length=max_input_length, shard_bytes=shard_bytes,
        lender=lender, info=info)


def write(directory: str | os.PathLike, source: loading.Source,
          dtype: str = 'bfloat16', *, words: Mapping[str, bytes],
          max_input_length: int = DEFAULT_MAX_INPUT,
          shard_bytes: int = SHARD_BYTES, lender: extras.Owner | None = None,
          info: Mapping[str, Any] | None = None,
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
    lender: See `save`.
    info: See `save`.
    tick: See `tensors.write`.

  Raises:
    ValueError: See `save`.
  """
  directory = pathlib.Path(directory).expanduser()
  family, config = family_of(source.lm), source.lm.config
  check_dtype(dtype, 'save')
  loading.fit(source)
  kept = {}
  if source.tokens is not None:
    reduced.check_tokens(source.tokens, source.lm.vocab_size)
    kept = {extras.TOKENS: source.tokens.tolist()}
  if source.heads is not None:
    kept[extras.HEADS] = extras.beside_of(source.heads)
  own = dict(sorted(source.leaves.items()))
  if lender is not None:
    kept[extras.LENDER] = dataclasses.asdict(lender)
    own = {name: x for name, x in own.items()
           if name.split('/')[0] not in t5.BORROWED}
  shards = tensors.shards(own, jnp.dtype(dtype).itemsize, shard_bytes)
  vocabulary = VOCABULARY if VOCABULARY in words else next(iter(words), None)
  described = dict(
      format=FORMAT, family=family, dtype=dtype, shards=len(shards),
      max_input_length=max_input_length, vocabulary=vocabulary,
      config=config_of(config), info=dict(info or {}), **kept)
  with files.together(directory, CONFIG) as folder:
    for name, shard in zip(weight_files(len(shards)), shards):
      tensors.write(folder / name, shard, dtype, tick)
    for name, content in words.items():
      files.write_atomically(folder / name, content)
    files.write_atomically(folder / CONFIG,
                           json.dumps(described, indent=2) + '\n')


def config_of(config: Any) -> dict[str, Any]:
  """A configuration as config.json has it; `model_of` reads it."""
  found = dataclasses.asdict(config)
  if found.get('encoder', ()) is None:      # digests are those before it was
    del found['encoder']
  return found


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
  return {'format', 'family'} <= set(described(path))


def described(path: pathlib.Path) -> dict[str, Any]:
  """What config.json in a directory holds, unchecked; {} if it is none."""
  try:
    found = json.loads((path / CONFIG).read_text(encoding='utf-8'))
  except (OSError, *loading.JSON_ERRORS):
    return {}
  return found if isinstance(found, dict) else {}


def source(directory: str | os.PathLike) -> loading.Source:
  """What `load` reads, with the weights still in their files.

  Raises:
    ValueError: A file is missing or damaged, the family is unknown, or the
      vocabulary is of another size.
  """
  directory = pathlib.Path(directory).expanduser()
  config = read_config(directory)
  lm = model_of(directory / CONFIG, config)
  leaves = leaves_of(directory, weight_files(config['shards']), config['dtype'])
  lender = extras.lender_of(directory / CONFIG, config)
  return loading.Source(
      directory / WEIGHTS, lm,
      leaves if lender is None else leaves | _lent(directory, lender),
      tokens=extras.tokens_of(directory / CONFIG, config, lm),
      heads=extras.heads_of(directory / CONFIG, config),
      tokenizer=_tokenizer(directory, config['vocabulary'], lm.vocab_size),
      max_input_length=config['max_input_length'])


def load(directory: str | os.PathLike) -> tuple[Any, Any, Any]:
  """The model, its parameters in float32 and its vocabulary, if it has one.

  Raises:
    ValueError: See `source`; or a name, shape or dtype is not what the
      configuration asks for.
  """
  return tuple(loading.load(source(directory)))


def read_config(directory: str | os.PathLike, *,
                part: bool = False) -> dict[str, Any]:
  """config.json, checked for its format and its keys.

  Args:
    directory: Of a model.
    part: It is of what is beside a model, see `beside`, and not of a model.

  Raises:
    ValueError: It is missing or damaged, or of the other kind.
  """
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
  check_dtype(config['dtype'], path)
  shards = config.get('shards', 1)
  if type(shards) is not int or not 0 < shards < MAX_SHARDS:
    raise ValueError(f'{path} says shards={shards}; allowed: 1 to '
                     f'{MAX_SHARDS - 1}.')
  loading.check_longest(path, config.get('max_input_length', DEFAULT_MAX_INPUT))
  if not isinstance(config['config'], dict):
    raise ValueError(f'{path}: config has to be an object. Save the model '
                     'again.')
  if extras.VERIFIER in config and not part:
    names = getattr(extras.heads_of(path, config), 'drafters', ('NAME',))
    raise ValueError(
        f'{directory} holds only what was trained beside a verifier, and no '
        'model of its own; give it behind the name of a drafter, '
        f'{" or ".join(f"{name}:{directory}" for name in names)}, and as the '
        'verifier the one that it was trained beside.')
  return {'max_input_length': DEFAULT_MAX_INPUT, 'info': {}, 'shards': 1,
          'vocabulary': VOCABULARY, **config}


def weight_files(shards: int) -> list[str]:
  """Names of the files that hold the weights, in order."""
  return tensors.file_names(shards, WEIGHTS)


def digest(directory: str | os.PathLike) -> str:
  """SHA-256 over configuration and weights: what a result was made with."""
  config = read_config(directory)
  return digest_of(directory, config, weight_files(config['shards']))


def digest_of(directory: str | os.PathLike, config: Mapping[str, Any],
              names: Iterable[str]) -> str:
  """SHA-256 over what a configuration decides, and over files.

  Args:
    directory: Of the files.
    config: See `read_config`.
    names: Of the files, in order.
  """
  directory, state = pathlib.Path(directory).expanduser(), hashlib.sha256()
  decide = ('family', 'dtype', 'config', extras.TOKENS, extras.HEADS,
            extras.VERIFIER, extras.LENDER)
  kept = {k: config[k] for k in decide if k in config}
  state.update(json.dumps(kept, sort_keys=True).encode())
  for name in names:
    with _file(directory, name).open('rb') as file:
      hashlib.file_digest(file, lambda: state)
  return state.hexdigest()


def model_of(path: pathlib.Path, config: Mapping[str, Any]) -> Any:
  """The model that a configuration describes.

  Args:
    path: Of the configuration, for messages.
    config: See `read_config`.

  Raises:
    ValueError: There can be none like it.
  """
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


def leaves_of(directory: pathlib.Path, names: Iterable[str],
              dtype: str) -> dict[str, loading.Leaf]:
  """The arrays of some files of a directory, memory-mapped.

  Raises:
    ValueError: A file is missing or damaged, or an array of another dtype.
  """
  leaves = {}
  for path in (_file(directory, name) for name in names):
    found = tensors.read(path)
    for name, leaf in found.items():
      if leaf.dtype != dtype:
        raise ValueError(f'{path}: {CONFIG} says {dtype}, but {name} is '
                         f'{leaf.dtype}. Use the weights that belong to it.')
    leaves |= found
  return leaves


def _lent(directory, lender):
  """Arrays of the encoder of the model that is beside this one."""
  place = directory.resolve().parent / lender.name
  if not recognises(place) or digest(place) != lender.sha256:
    raise ValueError(f'{directory} reads with the encoder of {lender.name} '
                     f'(SHA-256 {lender.sha256[:12]}), which is not at '
                     f'{place}; put it there.')
  names = {theirs: ours for ours, theirs in t5.BORROWED.items()}
  config = read_config(place)
  found = leaves_of(place, weight_files(config['shards']), config['dtype'])
  return {'/'.join((names[x.split('/')[0]], *x.split('/')[1:])): leaf
          for x, leaf in found.items() if x.split('/')[0] in names}


def _tokenizer(directory, name, rows):
  """Makes what `name`, a file of the directory, is the tokenizer of."""
  if name is None:
    return None
  if name != VOCABULARY:
    return hub.tokenizer_of(directory, rows)
  vocabulary = vocabulary_of(_file(directory, VOCABULARY), rows)
  return lambda: vocabulary


def check_dtype(dtype: str, where: Any) -> None:
  """Refuses what is none of `DTYPES`; `where` says who asked for it."""
  if dtype not in DTYPES:
    raise ValueError(f'{where}: got dtype {dtype!r}; allowed: '
                     f'{", ".join(DTYPES)}.')


def _file(directory: pathlib.Path, name: str) -> pathlib.Path:
  path = directory / name
  if not path.is_file():
    usual = (CONFIG, WEIGHTS, VOCABULARY)
    hint = ('a model directory holds {}, {} and {}'.format(*usual)
            if name in usual else f'{CONFIG} speaks of it: get it again')
    raise ValueError(f'No {name} in {directory}; {hint}.')
  return path
