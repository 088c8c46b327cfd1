"""A layer beside a verifier that predicts what it will draft: EAGLE.

    y_i = layer(mix [g_{i-1}; e_i]),   q(x_{i+1} | x_0 .. x_i) = head(y_i)

as in `layered`, with the verifier's head. In EAGLE g is the state that the head
reads, and y predicts the next one. In EAGLE-3 g is made of what several layers
of the verifier leave, g = norm(fuse [h_low; h_middle; h_high]), and y, behind a
norm of its own, predicts tokens only. Where drafts go on beyond what the
verifier has read, y takes the place of g. The published EAGLE-3 trains a head
for fewer tokens; here it is the verifier's.

References: Li et al. (2024), EAGLE, https://arxiv.org/abs/2401.15077;
  Li et al. (2025), EAGLE-3, https://arxiv.org/abs/2503.01840
"""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from spec_cascades.models import heads
from spec_cascades.models import layered
from spec_cascades.models import masks


@dataclasses.dataclass(frozen=True)
class FeatureConfig(layered.Sizes):
  """Sizes of the layer, and what it reads.

  Attributes:
    taps: Decoder layers of the verifier, from 0 and ascending, whose states are
      fused, as in EAGLE-3; none: it reads what the head reads.
  """
  kind: ClassVar[str] = 'features'
  taps: tuple[int, ...] = ()

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, 'taps', tuple(self.taps))
    whole = all(type(x) is int and x >= 0 for x in self.taps)
    if not whole or list(self.taps) != sorted(set(self.taps)):
      raise ValueError(f'Got taps={self.taps} of FeatureConfig; allowed: '
                       'ascending numbers of layers from 0, such as (0, 4, 8).')

  @property
  def drafters(self) -> tuple[str, ...]:
    """Names of the drafters that it is trained for: `evaluation.kinds`."""
    if self.taps:
      return 'eagle3', 'eagle3_tree'
    return 'eagle', 'eagle_static', 'eagle_tree'


@dataclasses.dataclass(frozen=True)
class Featured(layered.Layered, heads.Beside):
  """A verifier with a feature layer; as a `LanguageModel` the verifier alone.

  Parameters are `{'model': those of lm, 'heads': those of the layer}`.
  """
  lm: Any
  heads: FeatureConfig = FeatureConfig()

  def __post_init__(self):
    self.check_sizes()

  @property
  def sizes(self) -> layered.Sizes:
    """Of the layer."""
    return self.heads

  @property
  def taps(self) -> tuple[int, ...]:
    """Layers of the verifier that it reads."""
    return self.heads.taps

  def own(self, params: Any) -> Any:
    """Parameters of the layer."""
    return params['heads']

  def fresh(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Random parameters of the layer."""
    return self.fresh_layer(model, key)


# Configurations of what is beside a verifier, and the models around both.
KINDS = {heads.HeadsConfig: heads.Headed, FeatureConfig: Featured,
         masks.MasksConfig: masks.Masked}


def beside(lm: Any, config: Any) -> heads.Beside:
  """The model of a verifier and what a configuration says is beside it."""
  return KINDS[type(config)](lm, config)
