"""Training on a mesh: batches split over `data`, parameters over `model`.

A model says what the axes of its parameters are called (`logical_axes`, T5X's
names); `RULES` say which of them lie on `model`. XLA does the rest.
"""
from __future__ import annotations

from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import numpy as np

from spec_cascades import check
from spec_cascades.training import optimizers

AXES = 'data', 'model'
# Those of T5X for parameters on one axis, `embed` and the like on none.
RULES = (('vocab', 'model'), ('mlp', 'model'), ('heads', 'model'),
         ('joined_kv', 'model'))


def mesh(shape: tuple[int, int], *lms: Any) -> jax.sharding.Mesh:
  """The first data x model devices, on which these models can lie.

  Args:
    shape: Devices that a batch is split over, and parameters.
    *lms: A student and its teacher, say.

  Raises:
    ValueError: There are not so many devices, or `model` does not divide the
      heads, or an axis that is split, of a model.
  """
  if len(shape) != 2:
    raise ValueError(f'Got mesh={tuple(shape)}; allowed: (data, model), such '
                     'as (8, 1).')
  for name, size in zip(AXES, shape):
    check.interval(f'{name} of mesh', size, 1, 10**6, whole=True)
  count, there = shape[0] * shape[1], jax.devices()
  if count > len(there):
    raise ValueError(f'Got mesh={tuple(shape)}, which takes {count} devices; '
                     f'there are {len(there)}. Give a smaller one.')
  for lm in lms:
    wrong = [f'{name} ({size})' for name, size in sorted(_split(lm).items())
             if size % shape[1]]
    if wrong:
      raise ValueError(
          f'Got mesh={tuple(shape)}; {shape[1]} does not divide '
          f'{", ".join(wrong)} of a {type(lm).__name__} to train or to learn '
          'from. Give a model axis that divides them, such as 1.')
  return jax.sharding.Mesh(np.array(there[:count]).reshape(shape), AXES)


def _split(lm) -> dict[str, int]:
  """Sizes of a model's axes that lie on `model`; heads are not cut up."""
  shapes = jax.eval_shape(lambda: lm.init_params(jax.random.key(0)))
  found, on = {'heads': lm.config.num_heads}, {name for name, _ in RULES}
  for x, names in zip(jax.tree.leaves(shapes),
                      jax.tree.leaves(lm.logical_axes(), is_leaf=_spec)):
    found |= {name: size for name, size in zip(names, x.shape) if name in on}
  return found


def params(lm: Any, on: jax.sharding.Mesh) -> Any:
  """Where each parameter lies: a tree of shardings."""
  place = lambda spec: jax.sharding.NamedSharding(
      on, nn.logical_to_mesh_axes(spec, RULES))
  return jax.tree.map(place, lm.logical_axes(), is_leaf=_spec)


def like(lm: Any, shapes: Any, on: jax.sharding.Mesh) -> Any:
  """Shapes of a `TrainState` with where each array lies.

  What an optimiser keeps for a parameter lies as the parameter does if it has
  its shape; the rest, such as Adafactor's rows and columns, is on all devices.

  Args:
    lm: The model that is trained.
    shapes: Of its state.
    on: The mesh.
  """
  places = traverse_util.flatten_dict(params(lm, on), sep='/')
  sizes = traverse_util.flatten_dict(shapes.params, sep='/')

  def placed(path, x):
    keys = optimizers.name(path).split('/')
    tails = ('/'.join(keys[i:]) for i in range(len(keys)))
    name = next((tail for tail in tails if tail in places), None)
    own = name is not None and sizes[name].shape == x.shape
    where = places[name] if own else _everywhere(on)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  return jax.tree_util.tree_map_with_path(placed, shapes)


def place(lm: Any, state: Any, on: jax.sharding.Mesh) -> Any:
  """A `TrainState` on the devices, see `like`."""
  where = jax.tree.map(lambda x: x.sharding,
                       like(lm, jax.eval_shape(lambda: state), on))
  return jax.device_put(state, where)


def batch(arrays: dict[str, np.ndarray],
          on: jax.sharding.Mesh) -> dict[str, jax.Array]:
  """A batch with its rows split over `data`.

  Rows that fill it up, where they can't be split evenly, have no weight.
  """
  rows = len(arrays['targets'])
  short = -rows % on.shape[AXES[0]]
  if short:
    arrays = {name: np.pad(x, ((0, short),) + ((0, 0),) * (np.ndim(x) - 1),
                           mode='edge') for name, x in arrays.items()}
    arrays['weights'][rows:] = 0
  where = jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec(AXES[0]))
  return jax.device_put(arrays, where)


def _everywhere(on):
  return jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec())


def _spec(x):
  return isinstance(x, jax.sharding.PartitionSpec)
