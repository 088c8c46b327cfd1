"""Models of other depths and MLP widths from trained ones.

A deep model's layers come in groups of neighbours, each grown from one shallow
layer: the first of a group is that layer, the others are copies whose outputs
are damped, so that they start near the identity. New hidden units of an MLP
read at random and write nothing. What is grown is close to the same function;
what has fewer layers, every so many of the deep model's, or fewer hidden units,
those of the largest weights, has to be trained.

References: Gong et al. (2019), Efficient Training of BERT by Progressively
Stacking; Wu et al. (2024), LLaMA Pro (copies that write zero: here
they write a little, as Adafactor's steps are relative to a parameter's size).
"""
from __future__ import annotations

from typing import Any

import jax
import numpy as np

from spec_cascades.models import skip

DAMPING = 0.2
WRITERS = ('out', 'wo')           # T5X's names of what adds to the residual


def stack(shallow: dict[str, Any], deep: dict[str, Any], *,
          damping: float = DAMPING, norm_offset: float = 0.
          ) -> dict[str, Any]:
  """Parameters shaped like `deep` with the contents of `shallow`.

  Args:
    shallow: Trained parameters with l layers a stack, in T5X's names.
    deep: Fresh parameters with L layers, and MLPs of any width. Layer i is made
      of layer floor(i l / L): with 2 -> 4, layers 0 0 1 1; with 10 -> 2, 0 5.
    damping: What the outputs of copies are multiplied by; where they pass a
      norm first, what that multiplies by is.
    norm_offset: What a norm adds to its scale.

  Raises:
    ValueError: A parameter of `deep` has no source or another shape, or one of
      `shallow` has no place.
  """
  lost = [name for name in shallow if name not in deep
          and not name.startswith('layers_')]
  if lost:
    raise ValueError(f'The model to train has no place for {lost[0]!r}; '
                     'give it the configuration of the checkpoint.')
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
      out[name] = _wider(_narrower(found, like), like)
    else:
      out[name] = stack(found, like, damping=damping, norm_offset=norm_offset)
    if scale != 1.0:
      out[name] = _damped(out[name], scale, norm_offset)
  return out


def _grown(name, found, like):
  if np.shape(found) != np.shape(like):
    raise ValueError(f'{name!r} has shape {np.shape(found)} in the shallow '
                     f'model and {np.shape(like)} in the deep one.')
  return np.array(found)


def _axis(name):
  """Of a kernel of an MLP, where its hidden units are."""
  return 0 if name in WRITERS else 1


def _narrower(found, like):
  """An MLP without the hidden units that weigh least, if it has too many.

  A unit weighs the product of the norms of what it reads by and writes by.
  """
  units = {name: np.moveaxis(np.array(module['kernel']), _axis(name), 0)
           for name, module in found.items()}
  width = min(np.shape(module['kernel'])[_axis(name)]
              for name, module in like.items())
  weight = np.prod([np.linalg.norm(x, axis=1) for x in units.values()], axis=0)
  keep = np.sort(np.argsort(-weight, kind='stable')[:width])
  return {name: {'kernel': np.moveaxis(x[keep], 0, _axis(name))}
          for name, x in units.items()}


def _wider(found, like):
  """An MLP with more hidden units; the new ones write nothing."""
  out = {}
  for name, module in like.items():
    axis = _axis(name)
    old, kernel = np.array(found[name]['kernel']), np.array(module['kernel'])
    if (old.shape[1 - axis] != kernel.shape[1 - axis]
        or old.shape[axis] > kernel.shape[axis]):
      _grown(name, old, kernel)
    if axis == 0:
      kernel[len(old):] = 0
    kernel[:old.shape[0], :old.shape[1]] = old
    out[name] = {'kernel': kernel}
  return out


def _damped(layer, scale, offset):
  """The layer with whatever adds to the residual multiplied by `scale`."""
  scale, offset = np.float32(scale), np.float32(offset)
  norms = [x for x in skip.POST_NORMS.values() if x in layer]
  writes = lambda path: any(
      getattr(k, 'key', None) in (norms or WRITERS) for k in path)
  add = offset if norms else np.float32(0)
  return jax.tree_util.tree_map_with_path(
      lambda path, x: scale * (x + add) - add if writes(path) else x, layer)
