"""Layers shared by the model families: linear maps, norms, attention.

`Dense`, and `project` for siblings, accept parameters as checkpoints have them
and as `products.pack` makes them for decoding.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Sequence

from flax import linen as nn
from flax.linen import partitioning
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from spec_cascades.models import kernels as c_kernels
from spec_cascades.models import products

ACTIVATIONS = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu,
               'silu': jax.nn.silu, 'linear': lambda x: x}

dense_init = nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal')


def check_activations(field: str, names: Iterable[str]) -> None:
  """Raises ValueError unless there are such activations."""
  for name in names:
    if name not in ACTIVATIONS:
      raise ValueError(f'Unknown activation {name!r} in {field}; allowed: '
                       f'{", ".join(ACTIVATIONS)}.')


def sublayers(skipped: Iterable[tuple[int, str]], depth: int,
              names: Sequence[str]) -> tuple[tuple[int, str], ...]:
  """Sublayers of a decoder that are left out, in order, each once.

  Raises:
    ValueError: There is no such sublayer, or no attention to itself is left.
  """
  found = sorted({(int(layer), str(name)) for layer, name in skipped})
  for layer, name in found:
    if not 0 <= layer < depth or name not in names:
      raise ValueError(f'Got the sublayer ({layer}, {name!r}) to leave out; '
                       f'allowed: a layer from 0 to {depth - 1} and one of '
                       f'{", ".join(names)}.')
  if depth and sum(name == names[0] for _, name in found) == depth:
    raise ValueError(f'Got the {names[0]} of all {depth} layers to leave out; '
                     'keep one.')
  return tuple(found)


def of_layer(skipped: Iterable[tuple[int, str]], layer: int) -> tuple[str, ...]:
  """Names of the sublayers of one layer."""
  return tuple(name for at, name in skipped if at == layer)


def wide(x: Float[Array, 'B N E'], left: Sequence[Array],
         taps: Sequence[int]) -> Float[Array, 'B N W']:
  """What the head reads, and behind it what some layers leave: [x; left_i ..].

  Args:
    x: What the head reads; without taps, all there is.
    left: States behind each layer, like x.
    taps: Layers whose states are wanted, from 0.

  Raises:
    ValueError: There is no such layer.
  """
  if taps and max(taps) >= len(left):
    raise ValueError(f'Got the layers {tuple(taps)} whose states are wanted; '
                     f'allowed: numbers from 0 to {len(left) - 1}.')
  return jnp.concatenate([x, *(left[i] for i in taps)], -1) if taps else x


def front(x: Float[Array, '*axes W'], width: int) -> Float[Array, '*axes E']:
  """Of a state, see `wide`, what the head reads."""
  return x if x.shape[-1] == width else x[..., :width]


def call(layer: nn.Module, *arrays: Any, remat: bool, **static: Any) -> Any:
  """`layer(*arrays, **static)`.

  With `remat`, gradients keep what goes into the layer and compute again what
  is inside: less memory for one more forward pass.
  """
  run = lambda layer, *arrays: layer(*arrays, **static)
  return (nn.remat(run) if remat else run)(layer, *arrays)


class Dense(nn.Module):
  """x @ kernel without bias, packed or not; `axes` are logical axes."""
  features: int
  axes: tuple[str, str]
  init: Callable = dense_init
  wide: bool = False                 # float32 results, for logits

  @nn.compact
  def __call__(self, x: Float[Array, '*rows in']) -> Float[Array, '*rows out']:
    if self.has_variable('params', 'packed'):
      weight = self.get_variable('params', 'packed')
    else:
      weight = products.Packed(partitioning.param_with_axes(
          'kernel', self.init, (x.shape[-1], self.features), jnp.float32,
          axes=self.axes), out_in=False)
    multiply = products.logits if self.wide else products.linear
    return multiply(x, weight)


def project(module: nn.Module, x: Float[Array, '*rows in'],
            widths: dict[str, int], axes: tuple[str, str],
            inits: dict[str, Callable] | None = None) -> list[Array]:
  """Sibling linear layers, named in `widths`, that read one input.

  Reads `module`'s fused weight if its parameters are packed, else one kernel
  [in, out] per name. Call it in a compact method.

  Returns:
    One array [*rows, widths[name]] per name, in order.
  """
  name = products.packed_name(tuple(widths))
  if module.has_variable('params', name):
    y = products.linear(x, module.get_variable('params', name))
    ends = [sum(list(widths.values())[:i + 1]) for i in range(len(widths) - 1)]
    return jnp.split(y, ends, -1)
  inits = inits or {}
  return [Dense(width, axes, inits.get(name, dense_init), name=name)(x)
          for name, width in widths.items()]


class MlpBlock(nn.Module):
  """act(x wi) wo, or act_0(x wi_0) * act_1(x wi_1) wo when gated."""
  emb_dim: int
  mlp_dim: int
  activations: tuple[str, ...]
  dropout_rate: float = 0.

  @nn.compact
  def __call__(self, x, *, deterministic: bool = True):
    """[B, N, E] -> [B, N, E]; otherwise give an rng named 'dropout'."""
    acts = self.activations
    names = ['wi'] if len(acts) == 1 else [f'wi_{i}' for i in range(len(acts))]
    inner = project(self, x, dict.fromkeys(names, self.mlp_dim),
                    ('embed', 'mlp'))
    y = functools.reduce(
        jnp.multiply, (ACTIVATIONS[f](h) for f, h in zip(acts, inner)))
    y = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(
        y, deterministic=deterministic)
    return Dense(self.emb_dim, ('mlp', 'embed'), name='wo')(y)


def ending(x: Float[Array, 'B N E'],
           embedded: Float[Array, 'B M E'] | None) -> Float[Array, 'B N E']:
  """Embeddings of a block whose last M nodes have them given, if any do."""
  if embedded is None:
    return x
  return jnp.concatenate(
      [x[:, :-embedded.shape[1]], embedded.astype(x.dtype)], 1)


class RMSNorm(nn.Module):
  """x / rms(x) * (offset + scale), computed in float32 (Zhang et al. 2019)."""
  epsilon: float = 1e-6
  offset: float = 0.0                # 1 for Gemma, which stores scale - 1
  axis: str = 'embed'                # logical axis of the scale

  @nn.compact
  def __call__(self, x: Float[Array, '*rows E']) -> Float[Array, '*rows E']:
    init = nn.initializers.constant(1 - self.offset)
    scale = partitioning.param_with_axes(
        'scale', init, (x.shape[-1],), jnp.float32, axes=(self.axis,))
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), -1, keepdims=True)
    weight = self.offset + scale.astype(jnp.float32)
    weight = jnp.broadcast_to(weight, wide.shape)
    return (wide * lax.rsqrt(mean + self.epsilon) * weight).astype(x.dtype)


class Embed(nn.Module):
  """A table of embeddings [V, E], which can also read out logits."""
  vocab_size: int
  features: int
  stddev: float = 1.0

  def setup(self):
    self.embedding = partitioning.param_with_axes(
        'embedding', nn.initializers.normal(self.stddev),
        (self.vocab_size, self.features), jnp.float32, axes=('vocab', 'embed'))

  def __call__(self, tokens: Array) -> Float[Array, '*rows E']:
    return self.embedding[tokens]

  def attend(self, x: Float[Array, '*rows E']) -> Float[Array, '*rows V']:
    """Float32 logits x @ embedding.T, through the packed weight if any."""
    if self.has_variable('params', 'packed'):
      return products.logits(x, self.get_variable('params', 'packed'))
    return products.logits(x, products.Packed(self.embedding.T, out_in=False))


def attend(query: Float[Array, 'B N H D'], key: Float[Array, 'B K S D'],
           value: Float[Array, 'B K S D'], bias: Float[Array, 'B H N S'] | None,
           mask: Bool[Array, 'B N S'], *,
           soft_cap: float | None = None,
           drop: Callable | None = None,
           kernel: bool = False) -> Float[Array, 'B N HD']:
  """Attention with H query heads over K <= H key heads; softmax in float32.

  Scores are not scaled: scale the query. A `soft_cap` c maps scores to
  c tanh(score / c). A node that may see nothing attends to all alike. With
  `kernel`, which has no gradient, nothing is dropped.
  """
  b, n, heads, width = query.shape
  if kernel and c_kernels.attends(width):
    return c_kernels.attention(query, key, value, bias, mask, soft_cap)
  groups, slots = key.shape[1:3]
  # Products with the caches on the right, as they are: on the left, a CPU would
  # turn over all values in every step.
  rows = jnp.moveaxis(query.reshape(b, n, groups, heads // groups, width), 1, 3)
  score = lax.dot_general(
      rows.reshape(b, groups, -1, width), key, (((3,), (3,)), ((0, 1), (0, 1))),
      preferred_element_type=jnp.float32).reshape(b, heads, n, slots)
  if soft_cap is not None:
    score = soft_cap * jnp.tanh(score / soft_cap)
  if bias is not None:
    score = score + jnp.broadcast_to(bias, score.shape)
  visible = jnp.broadcast_to(mask[:, None], score.shape)
  weight = jax.nn.softmax(jnp.where(visible, score, -1e9)).astype(value.dtype)
  if drop is not None:
    weight = drop(weight)
  mixed = (weight.reshape(b, groups, -1, slots) @ value).reshape(
      b, groups, heads // groups, n, width)
  return jnp.moveaxis(mixed, 3, 1).reshape(b, n, heads * width)


def attends_by_kernel(module: nn.Module) -> bool:
  """Whether a module's parameters, `out` among them, are packed for that."""
  packed = module.variables.get('params', {}).get('out', {}).get('packed')
  return packed is not None and packed.kernel


def heads_of(x: Float[Array, 'B N HD'], heads: int) -> Float[Array, 'B N H D']:
  """Splits the last axis into heads."""
  return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def slots_of(x: Float[Array, 'B N H D']) -> Float[Array, 'B H N D']:
  """Keys or values as caches have them, see `cache.axis`."""
  return jnp.swapaxes(x, 1, 2)
