"""What T5 and Gemma share: a linen module that decodes packed parameters."""
from __future__ import annotations

import abc
import dataclasses
from typing import Any

from flax import linen as nn
import jax
from jaxtyping import Array, Float, Int

from spec_cascades.models import layers


@dataclasses.dataclass(frozen=True)
class PackedModel(abc.ABC):
  """The part of a `LanguageModel` that its head and its layout need.

  A family adds `module` (with a method `readout`), `variables`,
  `teacher_forced`, `init` and `extend`; its `config` has `vocab_size`, `dtype`
  and `logits_via_embedding`.
  """
  config: Any

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

  def init_params(self, key: jax.Array) -> dict[str, Any]:
    """Random parameters in checkpoint layout."""
    return self.variables(key)['params']

  def pack(self, params: dict[str, Any], *,
           joined: bool = True) -> dict[str, Any]:
    """Checkpoint layout -> decode layout, matrices in activations' dtype.

    Without `joined`, sibling matrices stay apart, see `layers.pack`.
    """
    return layers.pack(params, dtype=self.config.dtype, joined=joined,
                       tied=self.config.logits_via_embedding)

  def narrow(self, params: Any, tokens: Int[Array, 'K']) -> Any:
    """Packed parameters whose head predicts only `tokens`."""
    return layers.narrow_head(params, tokens,
                              tied=self.config.logits_via_embedding)

  def head(self, params: Any, hidden: Float[Array, '*axes E']):
    """Logits [*axes, V], float32."""
    return self.apply(params, hidden, method='readout')

  def apply(self, params: Any, *args: Any, method: str) -> Any:
    """Runs a method of the module."""
    return self.module.apply({'params': params}, *args, method=method)
