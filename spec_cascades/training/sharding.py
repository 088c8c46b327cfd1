"""Training on a mesh: batches split over `data`, parameters over `model`.

`spec_cascades.sharding` says where arrays lie; what an optimiser keeps for a
parameter lies as the parameter does if it has its shape, and whole on each
device if not (Adafactor's rows and columns). With several processes the mesh is
of all their devices, and each puts its own part of every array there.
"""
from __future__ import annotations

from typing import Any

import jax
import numpy as np

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades import sharding
from spec_cascades.models import reduced

DATA, _ = sharding.AXES


def layout(shape: tuple[int, int] | None, *lms: Any,
           rules: str = 'tensor') -> sharding.Layout:
  """The first data x model devices, on which these models can lie.

  Args:
    shape: Devices that a batch is split over, and parameters; None: one, or of
      several processes all, which a batch is split over.
    *lms: A student and its teacher, say.
    rules: What is cut, a key of `sharding.RULES`.

  Raises:
    ValueError: There are no such rules or not so many devices, or other
      processes have more, or `model` does not divide the heads, the MLPs or the
      vocabulary of a model.
  """
  shape = _shape(shape)
  if rules not in list(sharding.RULES):
    raise ValueError(f'Got rules={rules!r}; allowed: '
                     f'{", ".join(sharding.RULES)}.')
  if len(shape) != 2:
    raise ValueError(f'Got mesh={tuple(shape)}; allowed: (data, model), such '
                     'as (8, 1).')
  for name, size in zip(sharding.AXES, shape):
    check.interval(f'{name} of mesh', size, 1, 10**6, whole=True)
  count, there = shape[0] * shape[1], jax.devices()
  if count > len(there):
    raise ValueError(f'Got mesh={tuple(shape)}, which takes {count} devices; '
                     f'there are {len(there)}. Give a smaller one.')
  if hosts.count() > 1 and count < len(there):
    raise ValueError(f'Got mesh={tuple(shape)} and {hosts.count()} processes '
                     f'that have {len(there)} devices in all; allowed: meshes '
                     f'of all of them, such as ({len(there)}, 1).')
  for lm in map(reduced.whole, lms):
    sizes = dict(heads=lm.config.num_heads, mlp=lm.config.mlp_dim,
                 vocab=lm.vocab_size)
    wrong = [f'{name} ({size})' for name, size in sizes.items()
             if size % shape[1]]
    if wrong:
      raise ValueError(
          f'Got mesh={tuple(shape)}; {shape[1]} does not divide '
          f'{", ".join(wrong)} of a {type(lm).__name__} to train or to learn '
          'from. Give a model axis that divides them, such as 1.')
  return sharding.Layout(sharding.mesh(*shape, there[:count]), rules)


def beyond_one(shape: tuple[int, int] | None,
               rules: str) -> sharding.Layout | None:
  """The same, or None for one device."""
  found = layout(shape, rules=rules)
  return found if found.mesh.size > 1 else None


def _shape(given):
  """What is given, or what there is for None."""
  if given is not None:
    return given
  return (1, 1) if hosts.count() == 1 else (len(jax.devices()), 1)


def like(lm: Any, shapes: Any, on: sharding.Layout) -> Any:
  """Shapes of a tree of arrays with where each of them lies.

  Args:
    lm: The model whose parameters, or `TrainState`, the tree has.
    shapes: Of the tree.
    on: The mesh.
  """
  return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      shapes, on.parameters(shapes, reduced.whole(lm).config))


def place(lm: Any, tree: Any, on: sharding.Layout) -> Any:
  """Parameters, or a `TrainState`, on the devices, see `like`."""
  return sharding.put(tree, on.parameters(tree, reduced.whole(lm).config))


def batch(arrays: dict[str, np.ndarray],
          on: sharding.Layout) -> dict[str, jax.Array]:
  """A batch with its rows split over `data`.

  Rows that fill it up, where they can't be split evenly, have no weight.
  """
  rows = len(arrays['targets'])
  short = -rows % on.mesh.shape[DATA]
  if short:
    arrays = {name: np.pad(x, ((0, short),) + ((0, 0),) * (np.ndim(x) - 1),
                           mode='edge') for name, x in arrays.items()}
    arrays['weights'][rows:] = 0
  return sharding.put(arrays, on.by_row(arrays))
