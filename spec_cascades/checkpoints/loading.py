"""Weights of any format, placed leaf by leaf in a model's own tree.

A format says which arrays its files hold, under our names, and reads one when
asked. What is missing, left over or of another shape is said before anything
is read; a load is whole or refused. At any time memory holds the parameters so
far, in their own dtype, and a few rows of the file.
"""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import types
from typing import (
    Any, Callable, Collection, Iterator, Mapping, NamedTuple, Sequence)

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.models import features
from spec_cascades.models import reduced
from spec_cascades.models import t5

DTYPES = ('float32', 'bfloat16', 'float16')
# Embeddings without a token: T5 keeps 100 sentinels out of its SentencePiece
# model, and tables are padded; that of Qwen2-7B has 418.
MAX_SPARE_ROWS = 512
# Input tokens of a checkpoint that gives no limit.
DEFAULT_MAX_INPUT = 2048
SHOWN = 3
# What a damaged or malicious header may make Python's JSON reader raise.
JSON_ERRORS = (ValueError, RecursionError)
# Numbers of layers, by the stack that has them; a stack's layers are alike.
DEPTHS = dict(num_layers='decoder', num_encoder_layers='encoder',
              num_decoder_layers='decoder')


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One array in a file.

  Attributes:
    shape: Of what `read` returns, which has our layout.
    nbytes: Bytes of the file that are read for it.
    read: Returns it, memory-mapped if the format allows, or `Rows`; of any
      float dtype.
    name: What the file calls it.
    dtype: Of the file; None if it is none of NumPy's or unknown.
  """
  shape: tuple[int, ...]
  nbytes: int
  read: Callable[[], np.ndarray]
  name: str
  dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class Source:
  """An opened checkpoint whose configuration has been read, and no weights.

  Attributes:
    path: What to call it in messages.
    lm: The model that the configuration describes.
    leaves: Arrays by our names, joined by '/'.
    left_over: Names of arrays in the files that nothing reads.
    tokenizer: Makes the tokenizer; None if the checkpoint has none.
    tokens: Ids of the tokens that a drafter predicts, if it is `Reduced`; `lm`
      and `leaves` are then those of the model in it.
    max_input_length: Longest input in tokens that it is meant for, if it says.
    heads: Configuration of what is beside the model, if there is anything, see
      `features.KINDS`; its leaves are `heads/...`.
  """
  path: pathlib.Path
  lm: Any
  leaves: Mapping[str, Leaf]
  left_over: Sequence[str] = ()
  tokenizer: Callable[[], Any] | None = None
  tokens: np.ndarray | None = None
  max_input_length: int | None = None
  heads: Any = None


class Checkpoint(NamedTuple):
  """A model, its parameters in checkpoint layout, and its tokenizer."""
  lm: Any
  params: Any
  tokenizer: Any


class Broken(ValueError):
  """A file that is damaged or cut off."""


@contextlib.contextmanager
def readable(path: pathlib.Path, *errors: type[BaseException]
             ) -> Iterator[None]:
  """Turns errors of a reader's library into one line about the file."""
  try:
    yield
  except (Broken, *errors) as error:
    if isinstance(error, Broken):
      raise
    why = ' '.join(str(error).split())[:200] or type(error).__name__
    raise Broken(f'{path} is damaged or cut off ({why}); get the file '
                 'again.') from None


def load(source: Source, *, dtype: str = 'float32',
         sharding: Callable[[str, tuple[int, ...]], Any] | None = None,
         progress: Callable[..., Any] | None = None) -> Checkpoint:
  """Reads all parameters, each cast and placed before the next is read.

  Args:
    source: An opened checkpoint.
    dtype: Of the parameters in memory.
    sharding: From a parameter's name and shape to a `jax.sharding.Sharding`,
      of which only the shards of this host are read; None places everything
      on the default device.
    progress: `tqdm` or something called like it; counts bytes of the files.

  Raises:
    ValueError: Unknown dtype, or weights that do not fit the model.
  """
  if dtype not in DTYPES:
    raise ValueError(f'Got dtype {dtype!r}; allowed: {", ".join(DTYPES)}.')
  fit(source)
  tokenizer = source.tokenizer and source.tokenizer()
  kind, flat = np.dtype(jnp.dtype(dtype)), {}
  total = sum(leaf.nbytes for leaf in source.leaves.values())
  with (progress or Silent)(total=total, unit='B', unit_scale=True,
                             desc=f'loading {source.path.name}') as bar:
    for name, leaf in source.leaves.items():
      where = sharding and sharding(name, leaf.shape)
      flat[name] = jax.block_until_ready(_place(leaf, kind, where))
      buffers.trim(leaf.nbytes)
      bar.update(leaf.nbytes)
  lm, params = source.lm, traverse_util.unflatten_dict(flat, sep='/')
  if source.tokens is not None:
    lm = reduced.Reduced(lm, len(source.tokens))
    params = dict(model=params, tokens=jnp.asarray(source.tokens, jnp.int32))
  if source.heads is not None:
    lm = features.beside(lm, source.heads)
    params = dict(heads=params.pop('heads'), model=params)
  return Checkpoint(lm, params, tokenizer)


@functools.lru_cache(maxsize=16)
def expected(lm: Any) -> Mapping[str, tuple[int, ...]]:
  """Names and shapes of a model's parameters; compiles nothing.

  One layer of each stack is traced; the others have the same shapes.
  """
  depths = {name: getattr(lm.config, name) for name in DEPTHS
            if name in {f.name for f in dataclasses.fields(lm.config)}}
  shallow = _shallow(lm, depths)
  stacks = {DEPTHS[name]: depth for name, depth in depths.items()}
  tree = jax.eval_shape(shallow.init_params,
                        jax.eval_shape(lambda: jax.random.key(0)))
  shapes = {}
  for name, x in traverse_util.flatten_dict(tree, sep='/').items():
    stack, layer, *rest = name.split('/')
    copies = [name] if layer != 'layers_0' else [
        '/'.join((stack, f'layers_{i}', *rest)) for i in range(stacks[stack])]
    shapes |= dict.fromkeys(copies, tuple(x.shape))
  return types.MappingProxyType(shapes)


def _shallow(lm, depths):
  # What is left out keeps its parameters, see `skip.without`.
  return dataclasses.replace(lm, config=dataclasses.replace(
      lm.config, skipped=(), **dict.fromkeys(depths, 1)))


def expected_beside(lm: Any, heads: Any) -> dict[str, tuple[int, ...]]:
  """Names, `heads/...`, and shapes of what is beside a model.

  Args:
    lm: The model.
    heads: Configuration of what is beside it; None: nothing is.
  """
  if heads is None:
    return {}
  beside = features.beside(_shallow(lm, [
      name for name in DEPTHS if name in vars(lm.config)]), heads)
  made = jax.eval_shape(beside.init_params,
                        jax.eval_shape(lambda: jax.random.key(0)))
  flat = traverse_util.flatten_dict(dict(heads=made['heads']), sep='/')
  return {name: tuple(x.shape) for name, x in flat.items()}


def fit(source: Source) -> None:
  """Refuses what `load` could not make a model of.

  Raises:
    ValueError: Weights are not exactly the model's: it says which. Or there is
      a draft vocabulary, and something beside the model, too.
  """
  if source.tokens is not None and source.heads is not None:
    raise ValueError(f'{source.path} has {source.heads.kind} and a draft '
                     f'vocabulary of {len(source.tokens)} tokens; allowed: one '
                     'of them. Save the model again, without the other.')
  check_shapes(source.path, {**expected(source.lm), **expected_beside(
      source.lm, source.heads)}, source.leaves, source.left_over)


def check_shapes(path: pathlib.Path, want: Mapping[str, tuple[int, ...]],
                 have: Mapping[str, Leaf], left_over: Sequence[str] = ()
                 ) -> None:
  """Refuses arrays that are not those of a configuration.

  Args:
    path: What to call the file in messages.
    want: Shapes by our names.
    have: Arrays by our names.
    left_over: See `Source`.

  Raises:
    ValueError: Some are missing, left over or of another shape: it says which.
  """
  theirs = lambda name: f'{have[name].name} is {have[name].shape}, not '
  found = {
      'missing': sorted(set(want) - set(have)),
      'left over': sorted([have[n].name for n in set(have) - set(want)]
                          + list(left_over)),
      'wrong shape': [theirs(n) + f'{want[n]}' for n in sorted(want)
                      if n in have and tuple(have[n].shape) != want[n]]}
  faults = [f'{what}: {some(names)}' for what, names in found.items() if names]
  if faults:
    raise ValueError(
        f'{path}: parameters do not fit the configuration; '
        f'{"; ".join(faults)}. Use the weights that belong to it.')


def fits(size: int, rows: int, specials: Collection[int] = ()) -> bool:
  """Whether `size` tokens go with `rows` embeddings; see `check_words`."""
  beyond = sum(token >= rows for token in specials)
  return size - rows <= beyond and rows - size <= min(MAX_SPARE_ROWS, size)


def check_words(path: pathlib.Path, size: int, rows: int,
                specials: Collection[int] = ()) -> None:
  """Refuses a tokenizer that a model cannot have been trained with.

  Special tokens may lack an embedding: Gemma 3's models without vision share a
  tokenizer with those that have a token for images.

  Args:
    path: What to call the tokenizer in messages.
    size: Its tokens.
    rows: Embeddings of the model.
    specials: Tokens that have no text.
  """
  if not fits(size, rows, specials):
    raise ValueError(f'{path}: {size} tokens, but the model has {rows} '
                     'embeddings; use the tokenizer that the model was trained '
                     'with.')


def check_longest(path: Any, length: Any) -> None:
  """Refuses a longest input that is none; `path` says so."""
  if type(length) is not int or not 0 < length < 2**31:
    raise ValueError(f'{path} says max_input_length={length!r}; allowed: 1 to '
                     f'{2**31 - 1}.')


def max_input_length(source: Source, tokenizer: Any) -> int:
  """The longest input in tokens that a checkpoint takes.

  What a tokenizer says is no limit for T5: its positions are relative, and its
  fine-tunings for summaries use that.
  """
  said = (source.max_input_length if isinstance(source.lm, t5.T5)
          else tokenizer and tokenizer.context)
  return said or DEFAULT_MAX_INPUT


def some(names: Sequence[str], limit: int = SHOWN) -> str:
  """The first few of a list, and how many more there are."""
  more = f' and {len(names) - limit} more' if len(names) > limit else ''
  return ', '.join(names[:limit]) + more


def read(leaf: Leaf) -> Any:
  """The array of a leaf; ValueError if it is not what its header says."""
  array = leaf.read()
  if tuple(array.shape) != tuple(leaf.shape):
    raise Broken(f'{leaf.name} has shape {array.shape}; its header says '
                 f'{leaf.shape}. Get the file again.')
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f'{leaf.name} is {array.dtype}; weights have to be '
                     'floating-point numbers.')
  return array


def _place(leaf: Leaf, dtype: np.dtype, sharding) -> jax.Array:
  """Reads, casts and places one array, or the shards of it that are ours."""
  array = read(leaf)
  if sharding is None:
    return jax.device_put(buffers.copied(array, dtype))
  cut = lambda index: buffers.copied(array[index], dtype)
  return jax.make_array_from_callback(leaf.shape, sharding, cut)


class Silent:
  """A progress bar that shows nothing."""

  def __init__(self, **_):
    pass

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def update(self, _):
    """Counts nothing."""
