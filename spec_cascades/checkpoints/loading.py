"""Weights of any format, placed leaf by leaf in a model's own tree.

A format says which arrays its files hold, under our names, and reads one when
asked. What is missing, left over or of another shape is said before anything
is read; a load is whole or refused.
"""
from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

DTYPES = ('float32', 'bfloat16', 'float16')
SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One array in a file.

  Attributes:
    shape: Of what `read` returns, which has our layout.
    nbytes: Bytes of the file that are read for it.
    read: Returns it, memory-mapped if the format allows; any float dtype.
    name: What the file calls it.
  """
  shape: tuple[int, ...]
  nbytes: int
  read: Callable[[], np.ndarray]
  name: str


@dataclasses.dataclass(frozen=True)
class Source:
  """An opened checkpoint whose configuration has been read, and no weights.

  Attributes:
    path: What to call it in messages.
    lm: The model that the configuration describes.
    leaves: Arrays by our names, joined by '/'.
    left_over: Names of arrays in the files that nothing reads.
    tokenizer: Makes the tokenizer; None if the checkpoint has none.
  """
  path: pathlib.Path
  lm: Any
  leaves: Mapping[str, Leaf]
  left_over: Sequence[str] = ()
  tokenizer: Callable[[], Any] | None = None


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
  kind, flat = jnp.dtype(dtype), {}
  total = sum(leaf.nbytes for leaf in source.leaves.values())
  with (progress or _Silent)(total=total, unit='B', unit_scale=True,
                             desc=f'loading {source.path.name}') as bar:
    for name, leaf in source.leaves.items():
      where = sharding and sharding(name, leaf.shape)
      flat[name] = _place(leaf, kind, where)
      bar.update(leaf.nbytes)
  jax.block_until_ready(flat)
  tokenizer = source.tokenizer and source.tokenizer()
  return Checkpoint(source.lm, traverse_util.unflatten_dict(flat, sep='/'),
                    tokenizer)


def expected(lm: Any) -> dict[str, tuple[int, ...]]:
  """Names and shapes of a model's parameters; compiles nothing."""
  tree = jax.eval_shape(lambda: lm.init_params(jax.random.key(0)))
  flat = traverse_util.flatten_dict(tree, sep='/')
  return {name: tuple(x.shape) for name, x in flat.items()}


def fit(source: Source) -> None:
  """Refuses weights that are not exactly the model's: ValueError says which."""
  want, have = expected(source.lm), source.leaves
  theirs = lambda name: f'{have[name].name} is {have[name].shape}, not '
  found = {
      'missing': sorted(set(want) - set(have)),
      'left over': sorted([have[n].name for n in set(have) - set(want)]
                          + list(source.left_over)),
      'wrong shape': [theirs(n) + f'{want[n]}' for n in sorted(want)
                      if n in have and tuple(have[n].shape) != want[n]]}
  faults = [f'{what}: {some(names)}' for what, names in found.items() if names]
  if faults:
    raise ValueError(
        f'{source.path}: parameters do not fit the configuration; '
        f'{"; ".join(faults)}. Use the weights that belong to it.')


def some(names: Sequence[str], limit: int = SHOWN) -> str:
  """The first few of a list, and how many more there are."""
  more = f' and {len(names) - limit} more' if len(names) > limit else ''
  return ', '.join(names[:limit]) + more


def _place(leaf: Leaf, dtype: np.dtype, sharding) -> jax.Array:
  """Reads, casts and places one array, or the shards of it that are ours."""
  array = leaf.read()
  if tuple(array.shape) != tuple(leaf.shape):
    raise Broken(f'{leaf.name} has shape {array.shape}; its header says '
                 f'{leaf.shape}. Get the file again.')
  if sharding is None:
    return jax.device_put(np.ascontiguousarray(array.astype(dtype, copy=False)))
  cut = lambda index: np.ascontiguousarray(array[index].astype(dtype))
  return jax.make_array_from_callback(leaf.shape, sharding, cut)


class _Silent:
  """A progress bar that shows nothing."""

  def __init__(self, **_):
    pass

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def update(self, _):
    """Counts nothing."""
