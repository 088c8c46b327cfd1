"""Layers shared by the model families: linear maps, norms, attention.

Checkpoints and training keep one kernel [in, out] per linear layer, as T5X
does. Decoding uses packed parameters: sibling kernels that read the same input
(query, key and value; the two halves of a gated MLP) become one array, in the
layout that the backend reads fastest. `Dense`, and `project` for siblings,
accept both.
"""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Iterable, Iterator, Sequence

from flax import linen as nn
from flax.linen import partitioning
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spec_cascades import struct
from spec_cascades.models import kernels as c_kernels

# Sibling kernels that become one product when packed. In cross-attention the
# query reads the decoder and the rest reads the encoder.
FUSED = (('query', 'key', 'value'), ('wi_0', 'wi_1'))
FUSED_CROSS = (('key', 'value'),)
CROSS_ATTENTION = 'encoder_decoder_attention'
ACTIVATIONS = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu,
               'silu': jax.nn.silu, 'linear': lambda x: x}
MATRICES = ('kernel', 'embedding')     # norms and biases keep their dtype
# On a CPU, float32 weights are read by a kernel of our own (`kernels`). Where
# XLA reads them, its CPU backend packs the right operand of a product with 2 or
# more rows on every call. For large weights that costs more than reading them:
# there the weight is the left operand, [out, in] (see docs/benchmarks.md).
OUT_IN_ELEMENTS = {'cpu': 2**20}
# A table of embeddings up to this size is copied for its kernel, too.
COPIED_ELEMENTS = 2**22

dense_init = nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal')


@struct.dataclass
class Packed:
  """The weight of one product: [out, in] if `out_in`, else [in, out].

  Attributes:
    array: The weight, or its `kernels.panels` if it is `features` wide.
    out_in: Which way it lies.
    kernel: Whether `kernels` multiplies with it, and not XLA.
    features: Of panels, how many there are; else 0.
  """
  array: Float[Array, '...']
  out_in: bool = struct.field(pytree_node=False, default=True)
  kernel: bool = struct.field(pytree_node=False, default=False)
  features: int = struct.field(pytree_node=False, default=0)

  def take(self, columns: Int[Array, 'K']) -> Packed:
    """The weight of some features only."""
    if self.features:
      flat = jnp.swapaxes(self.array, 0, 1).reshape(self.array.shape[1], -1)
      return _panels(flat[:, columns])
    axis = 0 if self.out_in else 1
    return self.replace(array=jnp.take(self.array, columns, axis))


class Spent(dict):
  """A tree of parameters of which an entry is gone once it was iterated over.

  Packing one needs little more memory than its weights: an array is let go as
  soon as there is a packed one.
  """

  @classmethod
  def of(cls, params: dict[str, Any]) -> Spent:
    """The same tree; `params` keeps its arrays."""
    return cls({name: cls.of(x) if isinstance(x, dict) else x
                for name, x in params.items()})

  def items(self) -> Iterator[tuple[str, Any]]:
    """Takes out entry after entry, in order."""
    while self:
      name = next(iter(self))
      yield name, self.pop(name)


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


def by_kernel(dtype: Any, backend: str, cut: bool) -> bool:
  """Whether our own kernels multiply, and not XLA."""
  return (backend == 'cpu' and not cut and dtype == jnp.float32
          and c_kernels.library() is not None)


@jax.jit
def _panels(matrix: Float[Array, 'in out']) -> Packed:
  return Packed(c_kernels.panels(matrix), False, True, matrix.shape[1])


def pack_kernels(kernels: Sequence[Float[Array, 'in out']],
                 backend: str, cut: bool = False) -> Packed:
  """Kernels side by side in the layout that `backend` reads fastest.

  If a mesh is to `cut` arrays, products are XLA's on every backend.
  """
  if by_kernel(kernels[0].dtype, backend, cut):
    return jax.block_until_ready(_panels_of(kernels))
  out_in = (sum(x.size for x in kernels)
            >= OUT_IN_ELEMENTS.get(backend, math.inf))
  # Of one array `concatenate` makes no copy.
  array = _turned(kernels) if out_in else jnp.concatenate(kernels, 1)
  return Packed(jax.block_until_ready(array), out_in)


@jax.jit
def _turned(kernels: Sequence[Float[Array, 'in out']]
            ) -> Float[Array, 'outs in']:
  # In one program, and turned first, so that there is no array in between.
  return jnp.concatenate([x.T for x in kernels])


@jax.jit
def _panels_of(kernels: Sequence[Float[Array, 'in out']]) -> Packed:
  width = c_kernels.library().width
  if any(x.shape[1] % width for x in kernels[:-1]):
    return _panels(jnp.concatenate(kernels, 1))
  # Panel by panel there is no array in between.
  return Packed(jnp.concatenate([c_kernels.panels(x) for x in kernels]), False,
                True, sum(x.shape[1] for x in kernels))


def pack(params: dict[str, Any], backend: str | None = None, *,
         dtype: Any = None, tied: bool = False, joined: bool = True,
         cut: bool = False,
         fused: tuple[tuple[str, ...], ...] = FUSED) -> dict[str, Any]:
  """Checkpoint layout -> decode layout, for a tree of parameters.

  Every `{'kernel': [in, out]}` becomes `{'packed': Packed}`; a group in `fused`
  becomes one entry beside its siblings. Everything else stays as it is.

  Args:
    params: Parameters as a checkpoint or `module.init` has them; `Spent` ones
      are let go one by one.
    backend: Where decoding will run; JAX's default backend if None.
    dtype: Of kernels and embeddings; None keeps theirs.
    tied: The embedding is the head's weight too.
    joined: Whether siblings become one entry at all; where a mesh cuts what
      they compute, they can't.
    cut: A mesh cuts what is packed.
    fused: Groups of sibling kernels that read the same input.
  """
  backend = backend or jax.default_backend()
  out, kernels = {}, {}
  for name, child in params.items():
    if not isinstance(child, dict):
      out[name] = jnp.asarray(child, dtype if name in MATRICES else None)
    elif set(child) == {'embedding'}:
      out[name] = _pack_table(jnp.asarray(child['embedding'], dtype),
                              backend if tied else '', cut)
    elif set(child) == {'kernel'}:
      kernels[name] = jnp.asarray(child['kernel'], dtype)
    else:
      cross = name == CROSS_ATTENTION
      out[name] = pack(child, backend, dtype=dtype, joined=joined, cut=cut,
                       fused=FUSED_CROSS if cross else FUSED)
  for group in fused if joined else ():
    if set(group) <= set(kernels):
      out[packed_name(group)] = pack_kernels(
          [kernels.pop(name) for name in group], backend, cut)
  for name in list(kernels):
    out[name] = {'packed': pack_kernels([kernels.pop(name)], backend, cut)}
  return out


def _pack_table(table: Float[Array, 'V E'], backend: str,
                cut: bool) -> dict[str, Any]:
  """An embedding, which is [out, in] already, and a head's weight if tied."""
  if backend not in OUT_IN_ELEMENTS:
    return {'embedding': table}
  if by_kernel(table.dtype, backend, cut):
    copied = table.size <= COPIED_ELEMENTS
    packed = _panels(table.T) if copied else Packed(table, True, True)
    return {'embedding': table, 'packed': packed}
  out_in = table.size >= OUT_IN_ELEMENTS[backend]
  return {'embedding': table,
          'packed': Packed(table if out_in else table.T, out_in)}


def narrow_head(params: dict[str, Any], tokens: Int[Array, 'K'], *,
                tied: bool) -> dict[str, Any]:
  """Packed parameters whose head reads out only some tokens' logits."""
  if tied:
    embedder = params['token_embedder']
    table = embedder['embedding']
    packed = embedder.get('packed', Packed(table, out_in=True)).take(tokens)
    return {**params, 'token_embedder': {'embedding': table, 'packed': packed}}
  packed = params['decoder']['logits_dense']['packed']
  decoder = {**params['decoder'],
             'logits_dense': {'packed': packed.take(tokens)}}
  return {**params, 'decoder': decoder}


def packed_name(names: tuple[str, ...]) -> str:
  """The name under which a group of kernels is packed."""
  return 'packed_' + '_'.join(names)


def linear(x: Float[Array, '*rows in'], weight: Packed, *,
           dtype: Any = None) -> Float[Array, '*rows out']:
  """x @ W in x's dtype, summed and returned in `dtype` if given.

  Barriers keep the left-operand form of an [out, in] weight.
  """
  if weight.kernel:
    flat = x.astype(jnp.float32).reshape(-1, x.shape[-1])
    features = weight.features or len(weight.array)
    y = c_kernels.product(flat, weight.array, features)
    return y.reshape(*x.shape[:-1], features).astype(dtype or x.dtype)
  array = weight.array.astype(x.dtype)
  product = functools.partial(jnp.matmul, preferred_element_type=dtype)
  if not weight.out_in:
    return product(x, array)
  flat = x.reshape(-1, x.shape[-1])
  rows = len(flat)
  if rows == 1:
    y = lax.dot_general(flat, array, (((1,), (1,)), ((), ())),
                        preferred_element_type=dtype)
  else:
    # Eigen's kernel takes 4 columns at a time and the rest one by one: six
    # columns cost more than eight.
    filled = jnp.pad(flat, ((0, -rows % 4), (0, 0)))
    turned = lax.optimization_barrier(filled.T)
    y = lax.optimization_barrier(product(array, turned)).T[:rows]
  return y.reshape(*x.shape[:-1], y.shape[-1])


def logits(x: Float[Array, '*rows in'],
           weight: Packed) -> Float[Array, '*rows out']:
  """x @ W in float32.

  A bfloat16 weight is read as it is if x is bfloat16, too: the products are
  exact in float32, and a float32 copy of a large head would cost more.
  """
  dtype = x.dtype if x.dtype == weight.array.dtype else jnp.float32
  return linear(x.astype(dtype), weight, dtype=jnp.float32)


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
      weight = Packed(partitioning.param_with_axes(
          'kernel', self.init, (x.shape[-1], self.features), jnp.float32,
          axes=self.axes), out_in=False)
    return logits(x, weight) if self.wide else linear(x, weight)


def project(module: nn.Module, x: Float[Array, '*rows in'],
            widths: dict[str, int], axes: tuple[str, str],
            inits: dict[str, Callable] | None = None) -> list[Array]:
  """Sibling linear layers, named in `widths`, that read one input.

  Reads `module`'s fused weight if its parameters are packed, else one kernel
  [in, out] per name. Call it in a compact method.

  Returns:
    One array [*rows, widths[name]] per name, in order.
  """
  name = packed_name(tuple(widths))
  if module.has_variable('params', name):
    y = linear(x, module.get_variable('params', name))
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
      return logits(x, self.get_variable('params', 'packed'))
    return logits(x, Packed(self.embedding.T, out_in=False))


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
