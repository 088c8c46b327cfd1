"""Deeper models from shallower ones: each layer is copied to its neighbours.

Reference: Gong et al. (2019), Efficient Training of BERT by Progressively
Stacking, https://proceedings.mlr.press/v97/gong19a.html
"""
from __future__ import annotations

from typing import Any

import numpy as np


def stack(shallow: dict[str, Any], deep: dict[str, Any]) -> dict[str, Any]:
  """Parameters shaped like `deep` with the contents of `shallow`.

  Where `deep` has L layers and `shallow` l < L, layer i of the result is layer
  floor(i l / L): with 2 -> 4, layers 0 0 1 1. Everything else is copied.

  Raises:
    ValueError: A parameter of `deep` has no source, or another shape.
  """
  layers = lambda tree: sum(name.startswith('layers_') for name in tree)
  old, new, out = layers(shallow), layers(deep), {}
  for name, like in deep.items():
    source = name
    if name.startswith('layers_'):
      source = f'layers_{int(name[7:]) * old // new}'
    if source not in shallow:
      raise ValueError(f'The shallow model has no {source!r}; it has '
                       f'{", ".join(shallow)}.')
    found = shallow[source]
    if isinstance(like, dict):
      out[name] = stack(found, like)
    elif np.shape(found) != np.shape(like):
      raise ValueError(f'{name!r} has shape {np.shape(found)} in the shallow '
                       f'model and {np.shape(like)} in the deep one.')
    else:
      out[name] = np.array(found)
  return out
