"""A layer beside a verifier that predicts the verifier's next state: EAGLE.

    f^_i = layer(mix [f_{i-1}; e_i]),   q(x_{i+1} | x_0 .. x_i) = head(f^_i)

f_i is the state that the verifier's head reads, having read x_0 .. x_i, e_i the
verifier's embedding of x_i, and f_{-1} = 0. Layer and `mix` are trained;
embedding and head are the verifier's. The layer attends to what it has read,
and, beside an encoder-decoder, to the keys and values that the verifier's last
layer has of its inputs.

Reference: Li et al. (2024), EAGLE, https://arxiv.org/abs/2401.15077
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import cache as cache_lib
from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.models import heads
from spec_cascades.models import layers
from spec_cascades.models import masks
from spec_cascades.models import segments
from spec_cascades.models import t5


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
  """Sizes of the layer.

  Attributes:
    num_heads: Of its attention; beside a T5 they are the T5's.
    head_dim: Width of one; beside a T5 it is the T5's.
    mlp_dim: Of its gated MLP.
  """
  kind: ClassVar[str] = 'features'
  num_heads: int = 4
  head_dim: int = 64
  mlp_dim: int = 768

  def __post_init__(self):
    for field in dataclasses.fields(self):
      check.interval(f'{field.name} of FeatureConfig',
                     getattr(self, field.name), 1, 10**6, whole=True)


class SelfLayer(nn.Module):
  """Self-attention and an MLP, each behind a norm and beside a residual."""
  config: t5.T5Config

  def setup(self):
    self.pre_self_attention_layer_norm = layers.RMSNorm()
    self.self_attention = t5.Attention(self.config)
    self.pre_mlp_layer_norm = layers.RMSNorm()
    self.mlp = t5.MlpBlock(self.config)

  def __call__(self, x, bias, mask, cross_mask=None, encoded=None, memory=None,
               *, write=lambda block: block):
    """As `t5.DecoderLayer`, of which it is the part without an encoder."""
    del cross_mask, encoded, memory
    y, own = self.self_attention(
        self.pre_self_attention_layer_norm(x), bias, mask, write=write)
    x = x + y
    return x + self.mlp(self.pre_mlp_layer_norm(x)), own


class Layer(nn.Module):
  """(f_{i-1}, e_i) -> f^_i, and keys and values to keep."""
  config: t5.T5Config
  crosses: bool

  def setup(self):
    cfg = self.config
    self.mix = layers.Dense(cfg.emb_dim, ('embed', 'embed'))
    self.relpos_bias = layers.RelativeBias(
        cfg.num_heads, cfg.relative_buckets, cfg.relative_max_distance,
        bidirectional=False)
    kind = t5.DecoderLayer if self.crosses else SelfLayer
    self.layer = kind(cfg)

  def __call__(self, before, embedded, distance, mask, cross=(None, None),
               write=lambda block: block):
    """States before [B, N, E] and embeddings -> states, keys and values."""
    x = self.mix(jnp.concatenate([before, embedded.astype(before.dtype)], -1))
    memory, cross_mask = cross
    return self.layer(x, self.relpos_bias(distance), mask, cross_mask, None,
                      memory, write=write)


@struct.dataclass
class Reading:
  """What a block needs besides its tokens: states before, and an encoder's."""
  before: Float[Array, 'B N E']
  encoded: Any = None               # memory of a layer, inputs [B, I]


@dataclasses.dataclass(frozen=True)
class Featured(heads.Beside):
  """A verifier with a feature layer; as a `LanguageModel` the verifier alone.

  Parameters are `{'model': those of lm, 'heads': those of the layer}`.
  """
  lm: Any
  heads: FeatureConfig = FeatureConfig()

  def __post_init__(self):
    if self.crosses:
      want = self.lm.config.num_heads, self.lm.config.head_dim
      if (self.heads.num_heads, self.heads.head_dim) != want:
        raise ValueError(
            f'A feature layer with {self.heads.num_heads} heads of '
            f'{self.heads.head_dim} beside a T5, whose keys and values of the '
            f'inputs it reads; allowed: its {want[0]} heads of {want[1]}.')

  @property
  def crosses(self) -> bool:
    """Whether the verifier has an encoder."""
    return type(self.lm) is t5.T5

  def layer(self, width: int, dtype: Any) -> Layer:
    """The linen module."""
    return Layer(t5.T5Config(
        vocab_size=1, emb_dim=width, dtype=jnp.dtype(dtype).name,
        **dataclasses.asdict(self.heads)), self.crosses)

  def fresh(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Random parameters of the layer."""
    state = self.state(dict(model=model))
    x = jnp.zeros((1, 1, *state.shape), state.dtype)
    seen, cross = jnp.ones((1, 1, 1), bool), (None, None)
    if self.crosses:
      slots = jnp.zeros((1, 1, self.heads.num_heads, self.heads.head_dim),
                        state.dtype)
      cross = ((slots, slots), seen)
    return dict(self.layer(state.shape[0], state.dtype).init(
        key, x, x, jnp.zeros((1, 1, 1), jnp.int32), seen, cross)['params'])

  def cache(self, params: Any, rows: int, capacity: int) -> cache_lib.Cache:
    """Empty slots of the layer."""
    dtype = self.state(params).dtype
    slots = jnp.zeros((rows, capacity, self.heads.num_heads,
                       self.heads.head_dim), dtype)
    return cache_lib.Cache(((slots, slots),), jnp.zeros(rows, jnp.int32))

  def encoded(self, target_cache: Any) -> Any:
    """What the layer reads of an encoder, from the verifier's cache."""
    if not self.crosses:
      return None
    return target_cache.static.memory[-1], target_cache.static.inputs

  def follow(self, params: Any, before: Float[Array, 'B N E'], tokens: Array,
             distance: Array, mask: Array, encoded: Any = None,
             write: Any = lambda block: block):
    """States [B, N, E] having read each token, and keys and values.

    Args:
      params: In either layout.
      before: The state before each token.
      tokens: [B, N].
      distance: Query position - key position [B or 1, N, S].
      mask: Keys that a token sees [B, N, S].
      encoded: See `encoded`.
      write: The block's keys and values -> those to attend to.
    """
    cross = (None, None)
    if self.crosses:
      memory, inputs = encoded
      cross = memory, segments.seen(inputs, tokens.shape[1])
    embedded = self.lm.embed(params['model'], tokens)
    return self.layer(before.shape[-1], before.dtype).apply(
        {'params': params['heads']}, before, embedded, distance, mask, cross,
        write)


@dataclasses.dataclass(frozen=True)
class Reader:
  """A `Featured` as a `LanguageModel` of its own, for drafters.

  `cache.static` is a `Reading`, of the state before each node of the next
  block; of the block it keeps the last state.
  """
  featured: Featured

  @property
  def vocab_size(self) -> int:
    return self.featured.vocab_size

  def extend(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """States [B, N, E] of a block, written at [length, length + N)."""
    distance, mask = cache.view(tree)
    known = cache.static
    hidden, slots = self.featured.follow(
        params, known.before, tree.tokens, distance, mask, known.encoded,
        functools.partial(cache.write, 0))
    return hidden, cache.replace(
        layers=(slots,), static=Reading(hidden[:, -1:], known.encoded))

  def head(self, params: Any, hidden: Any) -> Float[Array, '*axes V']:
    """The verifier's own head."""
    return self.featured.head(params, hidden)


# Configurations of what is beside a verifier, and the models around both.
KINDS = {heads.HeadsConfig: heads.Headed, FeatureConfig: Featured,
         masks.MasksConfig: masks.Masked}


def beside(lm: Any, config: Any) -> heads.Beside:
  """The model of a verifier and what a configuration says is beside it."""
  return KINDS[type(config)](lm, config)
