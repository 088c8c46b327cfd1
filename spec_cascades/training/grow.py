"""Deeper and wider models from trained ones, close to the same function.

A deep model's layers come in groups of neighbours, each grown from one shallow
layer: the first of a group is that layer, the others are copies whose outputs
are damped, so that they start near the identity. New hidden units of an MLP
read at random and write nothing.

References: Gong et al. (2019), Efficient Training of BERT by Progressively
Stacking; Wu et al. (2024), LLaMA Pro (copies that write zero: here
they write a little, as Adafactor's steps are relative to a parameter's size).
"""
from __future__ import annotations

from typing import Any

import jax
import numpy as np

DAMPING = 0.2
WRITERS = ('out', 'wo')           # T5X's names of what adds to the residual


def stack(shallow: dict[str, Any], deep: dict[str, Any], *,
          damping: float = DAMPING) -> dict[str, Any]:
  """Parameters shaped like `deep` with the contents of `shallow`.

  Args:
    shallow: Trained parameters with l layers a stack, in T5X's names.
    deep: Fresh parameters with L >= l layers, and MLPs at least as wide. Layer
      i is grown from layer floor(i l / L): with 2 -> 4, layers 0 0 1 1.
    damping: What the outputs of copies are multiplied by.

  Raises:
    ValueError: A parameter of `deep` has no source, or another shape.
  """
  layers = lambda tree: sum(name.startswith('layers_') for name in tree)
  old, new, out = layers(shallow), layers(deep), {}
  for name, like in deep.items():
    source, scale = name, 1.0
    if name.startswith('layers_'):
      i = int(name[7:])
      source = f'layers_{i * old // new}'
      scale = damping if i and i * old // new == (i - 1) * old // new else 1.0
    if source not in shallow:
      raise ValueError(f'The shallow model has no {source!r}; it has '
                       f'{", ".join(shallow)}.')
    found = shallow[source]
    if not isinstance(like, dict):
      out[name] = _grown(name, found, like)
    elif name == 'mlp':
      out[name] = _wider(found, like)
    else:
      out[name] = stack(found, like, damping=damping)
    if scale != 1.0:
      out[name] = _damped(out[name], scale)
  return out


def _grown(name, found, like):
  if np.shape(found) != np.shape(like):
    raise ValueError(f'{name!r} has shape {np.shape(found)} in the shallow '
                     f'model and {np.shape(like)} in the deep one.')
  return np.array(found)


def _wider(found, like):
  """An MLP with more hidden units; the new ones write nothing."""
  out = {}
  for name, module in like.items():
    axis = 0 if name in WRITERS else 1
    old, kernel = np.array(found[name]['kernel']), np.array(module['kernel'])
    if (old.shape[1 - axis] != kernel.shape[1 - axis]
        or old.shape[axis] > kernel.shape[axis]):
      _grown(name, old, kernel)
    if axis == 0:
      kernel[len(old):] = 0
    kernel[:old.shape[0], :old.shape[1]] = old
    out[name] = {'kernel': kernel}
  return out


def _damped(layer, scale):
  """The layer with whatever adds to the residual multiplied by `scale`."""
  writes = lambda path: any(getattr(k, 'key', None) in WRITERS for k in path)
  return jax.tree_util.tree_map_with_path(
      lambda path, x: x * np.float32(scale) if writes(path) else x, layer)
