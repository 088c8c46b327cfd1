"""Heads beside a verifier's own, which predict the tokens behind the next.

They read the state h that the verifier predicts the next token from. Head k,
k = 1 .. K, predicts the token k places behind that one:

    x_0 = h,  x_i = x_{i-1} + silu([x_{i-1}; e_1 .. e_k] W_i + b_i),  x_n R

The embeddings e_1 .. e_k, of the next token and of those drafted behind it, are
read in the first block of Hydra's heads and nowhere in Medusa's. W and b are 0
at first and R is the verifier's readout, so every head begins as the verifier's
own.

Behind a prefix layer (Hydra++), h is what a `layered` layer makes of the states
of the whole text; its products with `out` and `wo` are 0 at first, so that it
begins as h itself.

References: Cai et al. (2024), Medusa, https://arxiv.org/abs/2401.10774;
  Ankner et al. (2024), Hydra, https://arxiv.org/abs/2402.05109
"""
from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Mapping

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spec_cascades import check
from spec_cascades import types
from spec_cascades.models import layered
from spec_cascades.models import layers
from spec_cascades.models import products
from spec_cascades.models import reduced


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """What the heads are.

  Attributes:
    count: K.
    blocks: Residual blocks of a head.
    own: Each head has a readout of its own; else all share the verifier's.
    sequential: Heads read the tokens drafted so far, as Hydra's do.
    paths: The tree to draft, see `drafters.paths`; none if it was not chosen.
    prefix: The layer before the heads, as Hydra++ has it; None: there is none.
  """
  kind: ClassVar[str] = 'heads'
  count: int = 4
  blocks: int = 1
  own: bool = True
  sequential: bool = False
  paths: tuple[tuple[int, ...], ...] = ()
  prefix: layered.Sizes | None = None

  def __post_init__(self):
    if isinstance(self.prefix, Mapping):                       # from a file
      object.__setattr__(self, 'prefix', layered.Sizes(**self.prefix))
    object.__setattr__(self, 'paths', tuple(map(tuple, self.paths)))
    for name in ('count', 'blocks'):
      check.interval(f'{name} of HeadsConfig', getattr(self, name), 1, 1000,
                     whole=True, hint='It is a count.')

  @property
  def drafters(self) -> tuple[str, ...]:
    """Names of the drafters that they are trained for: `evaluation.kinds`."""
    return ('medusa',) if self.prefix is None else ('hydra++',)


class Block(nn.Module):
  """x + silu([x; more] W + b), the identity at first."""

  @nn.compact
  def __call__(self, x: Float[Array, '*axes E'],
               more: Float[Array, '*axes M'] | None = None):
    wide = x if more is None else jnp.concatenate([x, more], -1)
    y = layers.Dense(x.shape[-1], ('embed', 'embed'), nn.initializers.zeros,
                     name='linear')(wide)
    bias = self.param('bias', nn.initializers.zeros, x.shape[-1:])
    return x + jax.nn.silu(y + jnp.broadcast_to(bias.astype(x.dtype), y.shape))


class Head(nn.Module):
  """Logits of one head with a readout of its own, otherwise states."""
  config: HeadsConfig
  vocab_size: int

  @nn.compact
  def __call__(self, x: Float[Array, '*axes E'],
               embedded: Float[Array, '*axes k E'] | None = None):
    more = embedded
    if embedded is not None:
      more = embedded.reshape(*x.shape[:-1], -1).astype(x.dtype)
    for i in range(self.config.blocks):
      x = Block(name=f'block_{i}')(x, None if i else more)
    if not self.config.own:
      return x
    return layers.Dense(self.vocab_size, ('embed', 'vocab'), wide=True,
                        name='logits_dense')(x)


class Beside(reduced.Around, abc.ABC):
  """A verifier with a trained part beside it; a `LanguageModel` without it.

  Parameters are `{'model': those of lm, 'heads': those of the part}`. A kind is
  a dataclass with fields `lm`, a `LanguageModel` with `embed`, and `heads`, its
  configuration, and a method `fresh`.
  """
  heads: Any

  @abc.abstractmethod
  def fresh(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Untrained parameters of the part, given those of the verifier."""

  @property
  def vocab_size(self) -> int:
    return self.lm.vocab_size

  def init_params(self, key: jax.Array) -> dict[str, Any]:
    """Random parameters of the verifier, and the part untrained."""
    model = self.lm.init_params(key)
    part = self.fresh(model, jax.random.fold_in(key, 1))
    return dict(model=model, heads=part)

  def state(self, params: Any) -> jax.ShapeDtypeStruct:
    """Width and dtype of what the verifier's head reads, [E]."""
    return jax.eval_shape(self.lm.embed, params['model'], jnp.int32(0))

  def pack(self, params: Any, **kwargs: bool) -> Any:
    """Checkpoint layout -> decode layout, of both, see `products.pack`."""
    model = self.lm.pack(params['model'], **kwargs)
    dtype = self.state(dict(model=model)).dtype
    return dict(model=model, heads=products.pack(
        params['heads'], dtype=dtype, cut=kwargs.get('cut', False)))

  def states(self, params: Any, batch: Mapping[str, Array], **kwargs: Any):
    """See the verifier."""
    return self.lm.states(params['model'], batch, **kwargs)

  def teacher_forced(self, params: Any, batch: Mapping[str, Array],
                     **kwargs: Any) -> Float[Array, 'B T V']:
    """The verifier's own logits."""
    return self.lm.teacher_forced(params['model'], batch, **kwargs)

  def init(self, params: Any, prompt: types.Prompt, capacity: int) -> Any:
    """The cache of the verifier."""
    return self.lm.init(params['model'], prompt, capacity)

  def extend(self, params: Any, cache: Any, tree: types.TokenTree):
    """As the verifier does."""
    return self.lm.extend(params['model'], cache, tree)

  def head(self, params: Any, hidden: Any) -> Float[Array, '*axes V']:
    """The verifier's own head."""
    return self.lm.head(params['model'], hidden)


@dataclasses.dataclass(frozen=True)
class Headed(layered.Layered, Beside):
  """A verifier with heads, whose parameters are `{'head_1': ..., ...}`.

  Those of the layer before them, if there is one, are `prefix`.
  """
  lm: Any
  heads: HeadsConfig = HeadsConfig()
  reads: ClassVar[bool] = False

  def __post_init__(self):
    if self.heads.prefix is not None:
      self.check_sizes()

  @property
  def sizes(self) -> layered.Sizes:
    """Of the layer before the heads."""
    return self.heads.prefix

  def own(self, params: Any) -> Any:
    """Parameters of the layer before the heads."""
    return params['heads']['prefix']

  def fresh(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Heads that begin as that of the verifier."""
    state = self.state(dict(model=model))
    eye = jnp.eye(state.shape[0], dtype=state.dtype)
    readout = self.lm.head(model, eye) if self.heads.own else None

    def head(k):
      embedded = (jnp.zeros((k, *state.shape), state.dtype)
                  if self.heads.sequential else None)
      made = self._head.init(key, jnp.zeros(state.shape, state.dtype), embedded)
      if readout is None:
        return dict(made['params'])
      # A copy each: an update may be given no buffer twice to reuse.
      return dict(made['params'], logits_dense=dict(kernel=jnp.copy(readout)))

    made = {f'head_{k}': head(k) for k in range(1, self.heads.count + 1)}
    if self.heads.prefix is not None:
      made['prefix'] = jax.tree_util.tree_map_with_path(
          _still, self.fresh_layer(model, key))
    return made

  def ahead(self, params: Any, k: int, hidden: Float[Array, '*axes E'],
            tokens: Int[Array, '*axes k']) -> Float[Array, '*axes V']:
    """Float32 logits of head k.

    Args:
      params: In either layout.
      k: From 1.
      hidden: What the verifier's own head reads; leading axes may be 1.
      tokens: The token predicted there and k - 1 behind it, for heads that
        read them. Others give the axes of `hidden`.
    """
    embedded = None
    if self.heads.sequential:
      embedded = self.lm.embed(params['model'], tokens)
      hidden = jnp.broadcast_to(
          hidden, (*tokens.shape[:-1], hidden.shape[-1]))
    out = self._head.apply({'params': params['heads'][f'head_{k}']}, hidden,
                           embedded)
    return out if self.heads.own else self.lm.head(params['model'], out)

  @property
  def _head(self) -> Head:
    return Head(self.heads, self.vocab_size)


def _still(path, x):
  """0 for the matrices that write to the residual stream of a layer."""
  return jnp.zeros_like(x) if {'out', 'wo'} & {k.key for k in path} else x
