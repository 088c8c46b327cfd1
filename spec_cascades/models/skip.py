"""A drafter made of some layers of the verifier: no second model, no training.

References: Zhang et al. (2023), https://arxiv.org/abs/2309.08168 (any layers);
  Elhoushi et al. (2024), https://arxiv.org/abs/2404.16710 (the first ones)
"""
from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from spec_cascades.models import gemma


def layers_of(lm: Any) -> int:
  """How many decoder layers a model has."""
  config = lm.config
  return (config.num_layers if isinstance(lm, gemma.Gemma)
          else config.num_decoder_layers)


def shallow(lm: Any, params: Any, keep: Sequence[int]) -> tuple[Any, Any]:
  """The model with only some decoder layers, in order; arrays are shared.

  An encoder is kept whole. Works on parameters in checkpoint and in decode
  layout alike.

  Args:
    lm: A `T5` or a `Gemma`.
    params: Its parameters.
    keep: Indices of decoder layers, ascending.

  Raises:
    ValueError: Layers that the model does not have, or not ascending.
  """
  depth, keep = layers_of(lm), tuple(keep)
  if not keep or list(keep) != sorted(set(keep)) or not (
      0 <= keep[0] <= keep[-1] < depth):
    raise ValueError(f'Got the layers {keep} to keep; allowed: ascending '
                     f'numbers from 0 to {depth - 1}.')
  if isinstance(lm, gemma.Gemma):
    config = dataclasses.replace(
        lm.config, num_layers=len(keep),
        windows=tuple(lm.config.window(i) for i in keep))
  else:
    config = dataclasses.replace(lm.config, num_decoder_layers=len(keep))
  decoder = {name: x for name, x in params['decoder'].items()
             if not name.startswith('layers_')}
  for new, old in enumerate(keep):
    decoder[f'layers_{new}'] = params['decoder'][f'layers_{old}']
  return dataclasses.replace(lm, config=config), {**params, 'decoder': decoder}


def spread(depth: int, count: int) -> tuple[int, ...]:
  """`count` of `depth` layers at even distances, the first and last included.

  Raises:
    ValueError: More layers than there are, or none.
  """
  if not 1 <= count <= depth:
    raise ValueError(f'Got {count} layers to keep; allowed: 1 to {depth}.')
  if count == 1:
    return (0,)
  return tuple(round(i * (depth - 1) / (count - 1)) for i in range(count))
