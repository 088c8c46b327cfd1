"""Positions in attention: T5's relative bias, and rotary embeddings."""
from __future__ import annotations

import dataclasses
import math

from flax import linen as nn
from flax.linen import partitioning
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np


class RelativeBias(nn.Module):
  """T5's attention bias of every head from distances, see `relative_bucket`."""
  heads: int
  buckets: int
  max_distance: int
  bidirectional: bool

  @nn.compact
  def __call__(self, distance: Int[Array, 'B N S']) -> Float[Array, 'B H N S']:
    init = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')
    table = partitioning.param_with_axes(
        'rel_embedding', init, (self.heads, self.buckets), jnp.float32,
        axes=('heads', 'relpos_buckets'))
    bucket = relative_bucket(
        distance, bidirectional=self.bidirectional, buckets=self.buckets,
        max_distance=self.max_distance)
    return jnp.moveaxis(table.T[bucket].astype(jnp.float32), -1, 1)


def relative_bucket(distance: Array, *, bidirectional: bool, buckets: int = 32,
                    max_distance: int = 128) -> Array:
  """T5's bucket of a distance = query position - key position.

  Half of the buckets are exact, the rest grow with the logarithm up to
  `max_distance`; a bidirectional bias spends half of them on keys that follow.

  Reference: Raffel et al. (2020), https://arxiv.org/abs/1910.10683, sec. 2.1
  """
  offset = jnp.zeros_like(distance)
  if bidirectional:
    buckets //= 2
    offset = jnp.where(distance < 0, buckets, 0)
    distance = jnp.abs(distance)
  distance = jnp.maximum(distance, 0)
  exact = buckets // 2
  safe = jnp.maximum(distance, 1).astype(jnp.float32)
  growth = jnp.log(safe / exact) / math.log(max_distance / exact)
  large = exact + (growth * (buckets - exact)).astype(jnp.int32)
  near = distance < exact
  return offset + jnp.where(near, distance, jnp.minimum(large, buckets - 1))


@dataclasses.dataclass(frozen=True)
class Rope:
  """Frequencies of a rotary position embedding, base^(-2i/D) / factor.

  With `trained_length` T (Llama 3.1) only slow frequencies are divided: those
  that turn less than `slow` times within T, and partly those that turn less
  than `fast` times.

  Reference: Su et al. (2021), https://arxiv.org/abs/2104.09864
  """
  base: float = 10_000.
  factor: float = 1.
  trained_length: int | None = None
  slow: float = 1.
  fast: float = 4.

  def frequencies(self, width: int) -> np.ndarray:
    """Radians per position of each of width / 2 pairs, float64."""
    plain = self.base ** -(np.arange(0, width, 2) / width)
    kept = 0.
    if self.trained_length is not None:
      turns = plain * self.trained_length / (2 * math.pi)
      kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
    return plain * (kept + (1 - kept) / self.factor)

  def angles(self, position: Int[Array, 'B N'],
             width: int) -> Float[Array, 'B N half']:
    """Angle of every pair at every position, float32."""
    frequency = jnp.asarray(self.frequencies(width), jnp.float32)
    return position[..., None].astype(jnp.float32) * frequency[None, None]


def rotate(x: Float[Array, 'B N H D'],
           angle: Float[Array, 'B N half']) -> Float[Array, 'B N H D']:
  """Rotates pairs (i, i + D/2) of every head by their angles, in float32."""
  cos, sin = jnp.cos(angle)[:, :, None], jnp.sin(angle)[:, :, None]
  first, second = jnp.split(x.astype(jnp.float32), 2, -1)
  turned = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(turned, -1).astype(x.dtype)
