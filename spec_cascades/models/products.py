"""Products with weights, packed as decoding reads them fastest.

Checkpoints and training keep one kernel [in, out] per linear layer, as T5X
does. Decoding uses packed parameters: sibling kernels that read the same input
(query, key and value; the two halves of a gated MLP) become one array, in the
layout that the backend reads fastest.
"""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Iterator, Sequence

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from spec_cascades import struct
from spec_cascades.models import kernels as c_kernels
from spec_cascades.models import pages

# Sibling kernels that become one product when packed. In cross-attention the
# query reads the decoder and the rest reads the encoder.
FUSED = (('query', 'key', 'value'), ('wi_0', 'wi_1'))
FUSED_CROSS = (('key', 'value'),)
CROSS_ATTENTION = 'encoder_decoder_attention'
EMBEDDER = 'token_embedder'
MATRICES = ('kernel', 'embedding')     # norms and biases keep their dtype
# On a CPU, float32 weights are read by a kernel of our own (`kernels`). Where
# XLA reads them, its CPU backend packs the right operand of a product with 2 or
# more rows on every call. For large weights that costs more than reading them:
# there the weight is the left operand, [out, in] (see docs/benchmarks.md).
OUT_IN_ELEMENTS = {'cpu': 2**20}
# A table of embeddings up to this size is copied for its kernel, too.
COPIED_ELEMENTS = 2**22
# Bytes up to which a matrix may take another place, however much of all it is.
LARGE = 2**25


@struct.dataclass
class Packed:
  """The weight of one product: [out, in] if `out_in`, else [in, out].

  Attributes:
    array: The weight, or its `kernels.panels` if it is `features` wide; the
      order of those is another in bfloat16, so no `astype`.
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
      return _panels(c_kernels.matrix(self.array, self.features)[:, columns])
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
      head = tied and name == EMBEDDER
      out[name] = _pack_table(jnp.asarray(child['embedding'], dtype),
                              backend if head else '', cut)
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


def compacted(packed: dict[str, Any], *, halves: bool | None = None,
              freed: Callable[[int], None] = lambda nbytes: None
              ) -> dict[str, Any]:
  """Packed parameters as a CPU reads them fastest, for long use.

  Matrices of our kernels lie in one piece of memory (`pages`), and are held as
  bfloat16 if all their numbers are: products are the same to the bit, from half
  as many bytes. To pack what is being trained do without: programs are compiled
  for either dtype. One that is large, and most of a model, stays what it is:
  for a while memory would hold it twice.

  Args:
    packed: From `pack`; entries are taken out, so that memory does not hold all
      of them twice.
    halves: Whether matrices are held as bfloat16; None: if all can be.
    freed: Called with the bytes that were let go.
  """
  is_packed = lambda x: isinstance(x, Packed)
  arrays = [x.array for x in jax.tree.leaves(packed, is_leaf=is_packed)
            if is_packed(x) and x.kernel]
  if halves is None:
    halves = all(map(c_kernels.are_halves, arrays))
  most = max(LARGE, sum(x.nbytes for x in arrays) // 4)
  total = sum(pages.room(x.size * (2 if halves else x.dtype.itemsize))
              for x in arrays if x.nbytes <= most)
  del arrays
  put = pages.Piece(total).put if total >= pages.HUGE else jnp.asarray

  def moved(x):
    array = np.asarray(x.array)
    return x.replace(array=put(c_kernels.halves(array) if halves else array))

  def walk(tree):
    if not isinstance(tree, dict):
      return tree
    found = {}
    for name in list(tree):
      child = tree.pop(name)
      if not (is_packed(child) and child.kernel and child.array.nbytes <= most):
        found[name] = walk(child)
        continue
      nbytes = child.array.nbytes
      shared = found.get('embedding') is child.array     # it comes before
      found[name] = child = moved(child)
      if shared:
        found['embedding'] = child.array
      del child
      freed(nbytes)
    return found

  return walk(packed)


def narrow_head(params: dict[str, Any], tokens: Int[Array, 'K'], *,
                tied: bool) -> dict[str, Any]:
  """Packed parameters whose head reads out only some tokens' logits."""
  if tied:
    embedder = params[EMBEDDER]
    table = embedder['embedding']
    packed = embedder.get('packed', Packed(table, out_in=True)).take(tokens)
    return {**params, EMBEDDER: {'embedding': table, 'packed': packed}}
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
