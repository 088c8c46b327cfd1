"""One layer of its own beside a verifier, which reads the verifier's states.

    y_i = layer(x_i),   x_i = g_{i-1}  or  mix [g_{i-1}; e_i]

g_{i-1} is made of the state that the verifier has, having read x_0 .. x_{i-1},
with g_{-1} = 0, and e_i is the verifier's embedding of x_i. The layer attends
to what it has read, and, beside an encoder-decoder, to the keys and values that
the verifier's last layer has of its inputs. `features` and `heads` say what g
is, and what y is for.
"""
from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spec_cascades import cache as cache_lib
from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.models import layers
from spec_cascades.models import positions
from spec_cascades.models import segments
from spec_cascades.models import t5
from spec_cascades.models import t5_layers


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the layer.

  Attributes:
    num_heads: Of its attention; beside a T5 they are the T5's.
    head_dim: Width of one; beside a T5 it is the T5's.
    mlp_dim: Of its gated MLP.
  """
  num_heads: int = 4
  head_dim: int = 64
  mlp_dim: int = 768

  def __post_init__(self):
    for field in dataclasses.fields(Sizes):
      check.interval(f'{field.name} of {type(self).__name__}',
                     getattr(self, field.name), 1, 10**6, whole=True)


class SelfLayer(nn.Module):
  """Self-attention and an MLP, each behind a norm and beside a residual."""
  config: t5.T5Config

  def setup(self):
    self.pre_self_attention_layer_norm = layers.RMSNorm()
    self.self_attention = t5_layers.Attention(self.config)
    self.pre_mlp_layer_norm = layers.RMSNorm()
    self.mlp = t5_layers.mlp(self.config)

  def __call__(self, x, bias, mask, cross_mask=None, encoded=None, memory=None,
               *, write=lambda block: block):
    """As `t5_layers.DecoderLayer`, the part of it without an encoder."""
    del cross_mask, encoded, memory
    y, own = self.self_attention(
        self.pre_self_attention_layer_norm(x), bias, mask, write=write)
    x = x + y
    return x + self.mlp(self.pre_mlp_layer_norm(x)), own


class Layer(nn.Module):
  """(g_{i-1}, e_i) -> y_i, and keys and values to keep."""
  config: t5.T5Config
  crosses: bool                      # attends to an encoder's inputs
  reads: bool = True                 # e_i, too
  fuses: bool = False                # g is made of several states

  def setup(self):
    cfg = self.config
    if self.reads:
      self.mix = layers.Dense(cfg.emb_dim, ('embed', 'embed'))
    if self.fuses:
      self.fuse = layers.Dense(cfg.emb_dim, ('embed', 'embed'))
      self.fused_norm, self.state_norm = layers.RMSNorm(), layers.RMSNorm()
    self.relpos_bias = positions.RelativeBias(
        cfg.num_heads, cfg.relative_buckets, cfg.relative_max_distance,
        bidirectional=False)
    kind = t5_layers.DecoderLayer if self.crosses else SelfLayer
    self.layer = kind(cfg)

  def __call__(self, before, embedded, distance, mask, cross=(None, None),
               write=lambda block: block):
    """g [B, N, E] and embeddings -> states, keys and values."""
    x = before
    if self.reads:
      x = self.mix(jnp.concatenate([x, embedded.astype(x.dtype)], -1))
    memory, cross_mask = cross
    x, own = self.layer(x, self.relpos_bias(distance), mask, cross_mask, None,
                        memory, write=write)
    return (self.state_norm(x) if self.fuses else x), own

  def given(self, left):
    """g of states that layers of the verifier leave, one behind the other."""
    return self.fused_norm(self.fuse(left))


@struct.dataclass
class Reading:
  """What a block needs besides its tokens: g before, and an encoder's."""
  before: Float[Array, 'B N E']
  encoded: Any = None               # memory of a layer, inputs [B, I]


class Layered(abc.ABC):
  """The part of a model beside a verifier, `lm`, that its layer needs.

  A kind adds `state`, which `heads.Beside` has, `sizes` and `own`.
  """
  lm: Any
  reads: bool = True
  taps: tuple[int, ...] = ()

  @property
  @abc.abstractmethod
  def sizes(self) -> Sizes:
    """Of the layer."""

  @abc.abstractmethod
  def own(self, params: Any) -> Any:
    """Of the model's parameters, those of the layer."""

  def check_sizes(self) -> None:
    """Raises ValueError for heads that can't read what a T5's have kept."""
    if self.crosses:
      want = self.lm.config.num_heads, self.lm.config.head_dim
      if (self.sizes.num_heads, self.sizes.head_dim) != want:
        raise ValueError(
            f'A layer with {self.sizes.num_heads} heads of '
            f'{self.sizes.head_dim} beside a T5, whose keys and values of the '
            f'inputs it reads; allowed: its {want[0]} heads of {want[1]}.')

  @property
  def crosses(self) -> bool:
    """Whether the verifier has an encoder."""
    return type(self.lm) is t5.T5

  @property
  def verifier(self) -> Any:
    """The verifier, which hands out the states that the layer reads."""
    if not self.taps:
      return self.lm
    return dataclasses.replace(self.lm, taps=self.taps)

  def layer(self, width: int, dtype: Any) -> Layer:
    """The linen module."""
    sizes = {field.name: getattr(self.sizes, field.name)
             for field in dataclasses.fields(Sizes)}
    return Layer(t5.T5Config(
        vocab_size=1, emb_dim=width, dtype=jnp.dtype(dtype).name, **sizes),
                 self.crosses, self.reads, bool(self.taps))

  def fresh_layer(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Random parameters of the layer, beside those of the verifier."""
    state = self.state(dict(model=model))
    x = jnp.zeros((1, 1, *state.shape), state.dtype)
    seen, cross = jnp.ones((1, 1, 1), bool), (None, None)
    if self.crosses:
      slots = jnp.zeros((1, self.sizes.num_heads, 1, self.sizes.head_dim),
                        state.dtype)
      cross = ((slots, slots), seen)

    def whole(layer, left, *args):
      return layer(layer.given(left) if self.taps else left, *args)

    return dict(self.layer(state.shape[0], state.dtype).init(
        key, jnp.concatenate([x] * max(1, len(self.taps)), -1), x,
        jnp.zeros((1, 1, 1), jnp.int32), seen, cross, method=whole)['params'])

  def cache(self, params: Any, rows: int, capacity: int) -> cache_lib.Cache:
    """Empty slots of the layer."""
    dtype = self.state(params).dtype
    slots = jnp.zeros((rows, self.sizes.num_heads, capacity,
                       self.sizes.head_dim), dtype)
    return cache_lib.Cache(((slots, slots),), jnp.zeros(rows, jnp.int32))

  def encoded(self, target_cache: Any) -> Any:
    """What the layer reads of an encoder, from the verifier's cache."""
    if not self.crosses:
      return None
    return target_cache.static.memory[-1], target_cache.static.inputs

  def given(self, params: Any, hidden: Float[Array, '*axes W']
            ) -> Float[Array, '*axes E']:
    """g: the verifier's own state, or what is made of several.

    Args:
      params: In either layout.
      hidden: What `verifier` hands out.

    Raises:
      ValueError: Another verifier handed it out.
    """
    state = self.state(params)
    width = state.shape[0] * (1 + len(self.taps))
    if hidden.shape[-1] != width:
      raise ValueError(
          f'Got states of width {hidden.shape[-1]}; allowed: {width}, for the '
          f'layers {self.taps} of the verifier. Decode with `verifier` of the '
          'model beside it.')
    hidden = hidden.astype(state.dtype)
    if not self.taps:
      return hidden
    return self.layer(state.shape[0], state.dtype).apply(
        {'params': self.own(params)}, hidden[..., state.shape[0]:],
        method='given')

  def follow(self, params: Any, before: Float[Array, 'B N E'], tokens: Array,
             distance: Array, mask: Array, encoded: Any = None,
             write: Any = lambda block: block):
    """States [B, N, E] at each token, and the keys and values attended to.

    Args:
      params: In either layout.
      before: g before each token, or a state of the layer in its place.
      tokens: [B, N].
      distance: Query position - key position [B or 1, N, S].
      mask: Keys that a token sees [B, N, S].
      encoded: See `encoded`.
      write: The block's keys and values -> those to attend to.
    """
    cross, embedded = (None, None), None
    if self.crosses:
      memory, inputs = encoded
      cross = memory, segments.seen(inputs, tokens.shape[1])
    if self.reads:
      embedded = self.lm.embed(params['model'], tokens)
    return self.layer(before.shape[-1], before.dtype).apply(
        {'params': self.own(params)}, before, embedded, distance, mask, cross,
        write)


@dataclasses.dataclass(frozen=True)
class Reader:
  """A `Layered` model's layer as a `LanguageModel`, for drafters.

  `cache.static` is a `Reading`, of the state before each node of the next
  block; of the block it keeps the last state.
  """
  beside: Layered

  @property
  def vocab_size(self) -> int:
    return self.beside.vocab_size

  def extend(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """States [B, N, E] of a block, written at [length, length + N)."""
    distance, mask = cache.view(tree)
    known = cache.static
    hidden, slots = self.beside.follow(
        params, known.before, tree.tokens, distance, mask, known.encoded,
        functools.partial(cache.write, 0))
    return hidden, cache.replace(
        layers=(slots,), static=Reading(hidden[:, -1:], known.encoded))

  def head(self, params: Any, hidden: Any) -> Float[Array, '*axes V']:
    """The verifier's own head."""
    return self.beside.head(params, hidden)
