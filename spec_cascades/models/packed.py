"""What T5 and Gemma share: a linen module that decodes packed parameters."""
from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping

from flax import linen as nn
import jax
from jaxtyping import Array, Float, Int, Key

from spec_cascades.models import products


@dataclasses.dataclass(frozen=True)
class PackedModel(abc.ABC):
  """The part of a `LanguageModel` that its head and its layout need.

  A family adds `module` (with methods `readout` and `embed`), `variables`,
  `states`, `init` and `extend`; its `config` has `vocab_size`, `dtype` and
  `logits_via_embedding`.

  Attributes:
    config: Sizes and variants.
    taps: Decoder layers whose states `states` and `extend` hand out, too,
      behind those that the head reads: see `layers.wide`.
  """
  config: Any
  taps: tuple[int, ...] = ()

  @property
  def vocab_size(self) -> int:
    return self.config.vocab_size

  @property
  @abc.abstractmethod
  def module(self) -> nn.Module:
    """The linen module; cheap to make."""

  @abc.abstractmethod
  def variables(self, key: jax.Array) -> dict[str, Any]:
    """What the module's `init` gives."""

  @abc.abstractmethod
  def states(self, params: Any, batch: Mapping[str, Array], *,
             dropout: Key[Array, ''] | None = None, remat: bool = False
             ) -> Float[Array, 'B T E']:
    """What the head reads; see `teacher_forced`."""

  def teacher_forced(self, params: Any, batch: Mapping[str, Array], *,
                     dropout: Key[Array, ''] | None = None,
                     remat: bool = False) -> Float[Array, 'B T V']:
    """Logits of a batch's targets, each given the input and those before it.

    Args:
      params: Parameters in checkpoint layout.
      batch: `inputs` [B, W] with `input_lengths` [B], and `targets` [B, T];
        with segments of both, rows hold several texts, see `segments`.
      dropout: Of its noise; None: no dropout.
      remat: For a gradient in less memory, see `layers.call`.
    """
    hidden = self.states(params, batch, dropout=dropout, remat=remat)
    return self.head(params, hidden)

  def embed(self, params: Any, tokens: Int[Array, '*axes']
            ) -> Float[Array, '*axes E']:
    """Embeddings as the first layer reads them, in the activations' dtype."""
    return self.apply(params, tokens, method='embed')

  def init_params(self, key: jax.Array) -> dict[str, Any]:
    """Random parameters in checkpoint layout."""
    return self.variables(key)['params']

  def pack(self, params: dict[str, Any], *,
           joined: bool = True, cut: bool = False) -> dict[str, Any]:
    """Checkpoint layout -> decode layout, matrices in activations' dtype.

    Without `joined`, sibling matrices stay apart, and a mesh may `cut` them:
    see `products.pack`.
    """
    return products.pack(
        params, dtype=self.config.dtype, joined=joined, cut=cut,
        tied=self.config.logits_via_embedding)

  def narrow(self, params: Any, tokens: Int[Array, 'K']) -> Any:
    """Packed parameters whose head predicts only `tokens`."""
    return products.narrow_head(params, tokens,
                                tied=self.config.logits_via_embedding)

  def head(self, params: Any, hidden: Float[Array, '*axes E']):
    """Logits [*axes, V], float32."""
    return self.apply(params, hidden, method='readout')

  def exit(self, params: Any, left: Float[Array, '*axes E']
           ) -> Float[Array, '*axes E']:
    """What the head reads where decoding ends behind a layer; see `taps`."""
    return self.apply(params, left, method='closed')

  def apply(self, params: Any, *args: Any, method: str) -> Any:
    """Runs a method of the module."""
    return self.module.apply({'params': params}, *args, method=method)
