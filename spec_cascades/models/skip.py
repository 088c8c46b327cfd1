"""A drafter made of parts of the verifier: no second model, no training.

References: Zhang et al. (2023), https://arxiv.org/abs/2309.08168 (any layers);
  Elhoushi et al. (2024), https://arxiv.org/abs/2404.16710 (the first ones)
"""
from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

import jax
from jaxtyping import Array, Float

from spec_cascades.models import gemma
from spec_cascades.models import t5

Sublayer = tuple[int, str]
# What a sublayer adds to the residual stream is a product with this matrix.
LAST = dict(self_attention='out', encoder_decoder_attention='out', mlp='wo')
POST_NORMS = dict(self_attention='post_attention_norm', mlp='post_mlp_norm')


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
  skipped = tuple((new, name) for new, old in enumerate(keep)
                  for layer, name in lm.config.skipped if layer == old)
  if isinstance(lm, gemma.Gemma):
    config = dataclasses.replace(
        lm.config, num_layers=len(keep), skipped=skipped,
        windows=tuple(lm.config.window(i) for i in keep))
  else:
    config = dataclasses.replace(lm.config, num_decoder_layers=len(keep),
                                 skipped=skipped)
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


def sublayers(lm: Any) -> tuple[Sublayer, ...]:
  """(layer, name) of every part of a decoder that can be left out."""
  names = (gemma if isinstance(lm, gemma.Gemma) else t5).SUBLAYERS
  return tuple((i, name) for i in range(layers_of(lm)) for name in names)


def without(lm: Any, skipped: Iterable[Sublayer]) -> Any:
  """The model with some sublayers left out; its parameters stay as they are.

  Args:
    lm: A `T5` or a `Gemma`.
    skipped: Of `sublayers`; at least one self-attention has to stay.

  Raises:
    ValueError: There is no such sublayer, or no self-attention would be left.
  """
  return dataclasses.replace(
      lm, config=dataclasses.replace(lm.config, skipped=tuple(skipped)))


def weighted(lm: Any, params: Mapping[str, Any],
             gates: Mapping[Sublayer, Float[Array, '']]) -> dict[str, Any]:
  """Parameters with which sublayers add gate times what they add.

  With a gate of 0 a model predicts what it does `without` the sublayer, and a
  gate is an argument of a compiled program.

  Args:
    lm: A `T5` or a `Gemma`.
    params: In checkpoint layout.
    gates: By sublayer; others stay as they are.
  """
  decoder = dict(params['decoder'])
  for (i, name), gate in gates.items():
    layer = dict(decoder[f'layers_{i}'])
    norm = POST_NORMS.get(name)
    if norm in layer:                 # what is added has passed a norm
      offset = lm.config.norm_offset
      layer[norm] = jax.tree.map(
          lambda x, g=gate, o=offset: g * (x + o) - o, layer[norm])
    else:
      last = jax.tree.map(lambda x, g=gate: g * x, layer[name][LAST[name]])
      layer[name] = {**layer[name], LAST[name]: last}
    decoder[f'layers_{i}'] = layer
  return {**params, 'decoder': decoder}
