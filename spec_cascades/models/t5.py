"""T5 encoder-decoders (v1.0 and v1.1) that score a block of tree nodes.

Parameter names, shapes, initialisers and logical axes are those of T5X's
minimal T5, so that its checkpoints and partitioner work. One `Transformer`
serves training (`__call__`, checkpoint layout) and decoding (`encode`, `cross`,
`extend`, `readout`, either layout); `T5` makes a `LanguageModel` of it.

Reference: Raffel et al. (2020), https://arxiv.org/abs/1910.10683
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Mapping

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from spec_cascades import cache as cache_lib
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.models import layers
from spec_cascades.models import packed
from spec_cascades.models import positions
from spec_cascades.models import products
from spec_cascades.models import segments

SUBLAYERS = SELF, CROSS, MLP = 'self_attention', products.CROSS_ATTENTION, 'mlp'


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Sizes and variants; the field names are T5X's.

  v1.0: `mlp_activations=('relu',)`, `logits_via_embedding=True`.
  v1.1: `mlp_activations=('gelu', 'linear')`, `logits_via_embedding=False`.
  """
  vocab_size: int = 32128
  emb_dim: int = 512
  num_heads: int = 6
  num_encoder_layers: int = 8
  num_decoder_layers: int = 8
  head_dim: int = 64
  mlp_dim: int = 1024
  mlp_activations: tuple[str, ...] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  logits_via_embedding: bool = False
  dtype: str = 'float32'             # of activations and caches
  relative_buckets: int = 32
  relative_max_distance: int = 128
  skipped: tuple[tuple[int, str], ...] = ()    # (decoder layer, sublayer)

  def __post_init__(self):
    object.__setattr__(self, 'mlp_activations', tuple(self.mlp_activations))
    object.__setattr__(self, 'skipped', layers.sublayers(
        self.skipped, self.num_decoder_layers, SUBLAYERS))
    layers.check_activations('mlp_activations', self.mlp_activations)


def mlp(config: T5Config) -> layers.MlpBlock:
  """The MLP of a layer, in the encoder or the decoder."""
  return layers.MlpBlock(config.emb_dim, config.mlp_dim,
                         config.mlp_activations, config.dropout_rate)


class Attention(nn.Module):
  """Multi-head attention; T5 folds the 1/sqrt(d) scale into its initialiser."""
  config: T5Config

  @nn.compact
  def __call__(self, x, bias, mask, *, encoded=None, memory=None,
               write: Callable = lambda block: block,
               deterministic: bool = True):
    """Returns the mixed values [B, N, E] and the keys and values attended to.

    Args:
      x: Inputs of the queries [B, N, E]; None to get keys and values only.
      bias: [B or 1, H, N, S] or None.
      mask: [B, N, S].
      encoded: Inputs of the keys and values, if they are not `x`.
      memory: Keys and values that are known already.
      write: The block's own keys and values -> those to attend to.
      deterministic: No dropout.
    """
    cfg = self.config
    if memory is None and encoded is None:
      query, *block = self._project(x, ('query', 'key', 'value'))
      memory = write(tuple(map(layers.slots_of, block)))
    elif x is None:
      return None, self._memory(encoded)
    else:
      query, = self._project(x, ('query',))
      memory = memory or self._memory(encoded)
    drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    mixed = layers.attend(
        query, *memory, bias, mask,
        drop=functools.partial(drop, deterministic=deterministic),
        kernel=layers.attends_by_kernel(self))
    out = layers.Dense(cfg.emb_dim, ('joined_kv', 'embed'), name='out')(mixed)
    return out, memory

  @nn.nowrap
  def _memory(self, encoded):
    return tuple(map(layers.slots_of, self._project(encoded, ('key', 'value'))))

  @nn.nowrap
  def _project(self, x, names):
    cfg = self.config
    scaled = lambda *args: layers.dense_init(*args) / cfg.head_dim**0.5
    flat = layers.project(
        self, x, {name: cfg.num_heads * cfg.head_dim for name in names},
        ('embed', 'joined_kv'), {'query': scaled})
    return [layers.heads_of(y, cfg.num_heads) for y in flat]


class EncoderLayer(nn.Module):
  """Self-attention and an MLP, each behind a norm and beside a residual."""
  config: T5Config

  def setup(self):
    self.pre_attention_layer_norm = layers.RMSNorm()
    self.attention = Attention(self.config)
    self.pre_mlp_layer_norm = layers.RMSNorm()
    self.mlp = mlp(self.config)
    self.drop = nn.Dropout(self.config.dropout_rate, broadcast_dims=(-2,))

  def __call__(self, x, bias, mask, *, deterministic: bool = True):
    """Hidden states [B, I, E] -> [B, I, E]."""
    drop = functools.partial(self.drop, deterministic=deterministic)
    y, _ = self.attention(self.pre_attention_layer_norm(x), bias, mask,
                          deterministic=deterministic)
    x = x + drop(y)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
    return x + drop(y)


class DecoderLayer(nn.Module):
  """Self-attention, cross-attention and an MLP, each behind a norm."""
  config: T5Config
  skipped: tuple[str, ...] = ()

  def setup(self):
    self.pre_self_attention_layer_norm = layers.RMSNorm()
    self.self_attention = Attention(self.config)
    self.pre_cross_attention_layer_norm = layers.RMSNorm()
    self.encoder_decoder_attention = Attention(self.config)
    self.pre_mlp_layer_norm = layers.RMSNorm()
    self.mlp = mlp(self.config)
    self.drop = nn.Dropout(self.config.dropout_rate, broadcast_dims=(-2,))

  def __call__(self, x, bias, mask, cross_mask, encoded=None, memory=None, *,
               write: Callable = lambda block: block,
               deterministic: bool = True):
    """Hidden states [B, N, E] -> the same, and keys/values of the block."""
    drop, own = functools.partial(self.drop, deterministic=deterministic), None
    if SELF not in self.skipped:
      y, own = self.self_attention(
          self.pre_self_attention_layer_norm(x), bias, mask, write=write,
          deterministic=deterministic)
      x = x + drop(y)
    if CROSS not in self.skipped:
      y, _ = self.encoder_decoder_attention(
          self.pre_cross_attention_layer_norm(x), None, cross_mask,
          encoded=encoded, memory=memory, deterministic=deterministic)
      x = x + drop(y)
    if MLP not in self.skipped:
      y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
      x = x + drop(y)
    return x, own

  def memory(self, encoded):
    """Cross-attention's keys and values of one prompt, each [B, H, I, D]."""
    return None if CROSS in self.skipped else self.encoder_decoder_attention(
        None, None, None, encoded=encoded)[1]


class Encoder(nn.Module):
  """The encoder stack; embeddings are the caller's."""
  config: T5Config

  def setup(self):
    cfg = self.config
    self.relpos_bias = positions.RelativeBias(
        cfg.num_heads, cfg.relative_buckets, cfg.relative_max_distance,
        bidirectional=True)
    self.layers = [EncoderLayer(cfg) for _ in range(cfg.num_encoder_layers)]
    self.encoder_norm = layers.RMSNorm()
    self.drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))

  def __call__(self, x, mask, *, deterministic: bool = True,
               remat: bool = False):
    """Embedded inputs [B, I, E], seen [B, I, I] -> states [B, I, E]."""
    i = jnp.arange(x.shape[1])
    bias = self.relpos_bias((i[:, None] - i[None])[None])
    x = self.drop(x, deterministic=deterministic)
    for layer in self.layers:
      x = layers.call(layer, x, bias, mask, remat=remat,
                      deterministic=deterministic)
    return self.drop(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
  """The decoder stack and, if the embedding is not tied, the head."""
  config: T5Config
  taps: tuple[int, ...] = ()

  def setup(self):
    cfg = self.config
    self.relpos_bias = positions.RelativeBias(
        cfg.num_heads, cfg.relative_buckets, cfg.relative_max_distance,
        bidirectional=False)
    self.layers = [DecoderLayer(cfg, layers.of_layer(cfg.skipped, i))
                   for i in range(cfg.num_decoder_layers)]
    self.decoder_norm = layers.RMSNorm()
    self.drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ('embed', 'vocab'))

  def __call__(self, x, distance, mask, cross_mask, *, encoded=None,
               memory=None, write=None, deterministic: bool = True,
               remat: bool = False):
    """Embedded block [B, N, E] -> `layers.wide`, keys/values per layer.

    Args:
      x: Embedded tokens [B, N, E].
      distance: Query position - key position [B or 1, N, S].
      mask: Keys that a node sees [B, N, S].
      cross_mask: Encoder states that a node sees [B, N, I].
      encoded: Encoder states [B, I, E], or None if `memory` is given.
      memory: Cross-attention keys and values per layer.
      write: (layer, block's keys and values) -> keys and values to attend to.
      deterministic: No dropout.
      remat: See `layers.call`; for gradients.
    """
    bias = self.relpos_bias(distance)
    x, owned, left = self.drop(x, deterministic=deterministic), [], []
    for i, layer in enumerate(self.layers):
      store = functools.partial(write, i) if write else lambda block: block
      x, own = layers.call(
          layer, x, bias, mask, cross_mask, encoded,
          memory[i] if memory else None, remat=remat, write=store,
          deterministic=deterministic)
      owned.append(own)
      left.append(x)
    x = self.drop(self.decoder_norm(x), deterministic=deterministic)
    return layers.wide(x, left, self.taps), tuple(owned)

  def memory(self, encoded):
    """Cross-attention keys and values of every layer."""
    return tuple(layer.memory(encoded) for layer in self.layers)

  def readout(self, x):
    """Logits of an untied head."""
    return self.logits_dense(x)


class Transformer(nn.Module):
  """T5 as a linen module, in the parameter layout of T5X's minimal T5."""
  config: T5Config
  taps: tuple[int, ...] = ()

  def setup(self):
    cfg = self.config
    self.token_embedder = layers.Embed(cfg.vocab_size, cfg.emb_dim)
    self.encoder = Encoder(cfg)
    self.decoder = Decoder(cfg, self.taps)

  def __call__(self, *args: Any, **kwargs: Any) -> Float[Array, 'B N V']:
    """Teacher-forced logits; arguments are those of `states`."""
    return self.readout(self.states(*args, **kwargs))

  def states(self, inputs: Int[Array, 'B I'], shifted: Int[Array, 'B N'],
             texts: tuple[Array, Array] | None = None,
             branches: segments.Branches | None = None, *,
             deterministic: bool = True, remat: bool = False):
    """Decoder states [B, N, E] of a whole text; 0 is padding in `inputs`.

    Args:
      inputs: Encoder tokens.
      shifted: Decoder inputs: the targets moved right by one, 0 first.
      texts: Segments of both, where rows hold several, see `segments`.
      branches: `segments.Branches`, whose states come behind the text's.
      deterministic: No dropout; otherwise give an rng named 'dropout'.
      remat: See `layers.call`; for gradients.
    """
    sources, targets = texts or (None, None)
    encoded = self.encode(inputs, sources, deterministic=deterministic,
                          remat=remat)
    b, n = shifted.shape
    i = jnp.arange(n)[None]
    mask = jnp.broadcast_to(i[..., None] >= i[:, None], (b, n, n))
    cross_mask, x = segments.seen(inputs, n), self.embed(shifted)
    if texts:
      mask &= segments.same(targets, targets)
      cross_mask &= segments.same(targets, sources)
    if branches is not None:
      cross_mask = branches.beside(cross_mask)
      x, i, mask = branches.behind(x, jnp.broadcast_to(i, (b, n)), mask)
    return self.decoder(
        x, i[..., None] - i[:, None], mask, cross_mask, encoded=encoded,
        deterministic=deterministic, remat=remat)[0]

  def embed(self, tokens):
    """Token embeddings in the activations' dtype."""
    return self.token_embedder(tokens).astype(self.config.dtype)

  def encode(self, inputs: Int[Array, 'B I'], texts: Array | None = None,
             **kwargs: bool):
    """Encoder states [B, I, E]; keywords are those of `Encoder`."""
    mask = segments.seen(inputs, inputs.shape[1])
    if texts is not None:
      mask &= segments.same(texts, texts)
    return self.encoder(self.embed(inputs), mask, **kwargs)

  def memory(self, inputs: Int[Array, 'B I']):
    """Encodes a prompt: cross-attention keys and values of every layer."""
    return self.decoder.memory(self.encode(inputs))

  def extend(self, tokens, distance, mask, cross_mask, memory, write,
             embedded=None):
    """Scores a block: states [B, N, E] and keys and values of every layer."""
    x = layers.ending(self.embed(tokens), embedded)
    return self.decoder(x, distance, mask, cross_mask, memory=memory,
                        write=write)

  def closed(self, x: Float[Array, '*axes E']) -> Float[Array, '*axes E']:
    """What the head reads if layers end with the states x."""
    return self.decoder.decoder_norm(x)

  def readout(self, hidden: Float[Array, '*axes E']) -> Float[Array, '*axes V']:
    """Float32 logits of decoder states."""
    cfg = self.config
    wide = layers.front(hidden, cfg.emb_dim).astype(jnp.float32)
    if cfg.logits_via_embedding:
      return self.token_embedder.attend(wide / cfg.emb_dim**0.5)
    return self.decoder.readout(wide)


@struct.dataclass
class Encoded:
  """What a T5 cache keeps of its prompt; never rolled back."""
  memory: tuple[tuple[Array, Array], ...]
  inputs: Int[Array, 'B I']


@dataclasses.dataclass(frozen=True)
class T5(packed.PackedModel):
  """A T5 as a `LanguageModel`; `Prompt.inputs` is what the encoder reads."""
  config: T5Config

  @property
  def module(self) -> Transformer:
    return Transformer(self.config, self.taps)

  def variables(self, key: jax.Array) -> dict[str, Any]:
    return self.module.init(key, *2 * [jnp.ones((1, 1), jnp.int32)])

  def states(self, params: Any, batch: Mapping[str, Array], *,
             dropout: Key[Array, ''] | None = None, remat: bool = False,
             branches: segments.Branches | None = None):
    """States before the head, see `teacher_forced`; then of `branches`."""
    targets, texts = batch['targets'], None
    if 'target_segments' in batch:
      texts = batch['input_segments'], batch['target_segments']
      shifted = segments.shifted(targets, texts[1])
    else:
      shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return self.module.apply(
        {'params': params}, batch['inputs'], shifted, texts, branches,
        rngs=dropout if dropout is None else {'dropout': dropout},
        deterministic=dropout is None, remat=remat, method='states')

  def init(self, params: Any, prompt: types.Prompt,
           capacity: int) -> cache_lib.Cache:
    """Runs the encoder; allocates `capacity` slots per row.

    Raises:
      ValueError: The prompt has no `inputs`.
    """
    if prompt.inputs is None:
      raise ValueError('A T5 needs Prompt.inputs, the text that its encoder '
                       'reads; got None.')
    cfg, b = self.config, len(prompt.inputs)
    memory = self.apply(params, prompt.inputs, method='memory')
    slots = jnp.zeros((b, cfg.num_heads, capacity, cfg.head_dim), cfg.dtype)
    own = tuple(None if (i, SELF) in cfg.skipped else (slots, slots)
                for i in range(cfg.num_decoder_layers))
    return cache_lib.Cache(own, jnp.zeros(b, jnp.int32),
                           Encoded(memory, prompt.inputs))

  def extend(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """Hidden states [B, N, E] of a block, written at [length, length + N)."""
    distance, mask = cache.view(tree)
    cross = segments.seen(cache.static.inputs, tree.tokens.shape[1])
    hidden, slots = self.apply(
        params, tree.tokens, distance, mask, cross, cache.static.memory,
        cache.write, tree.embedded, method='extend')
    return hidden, cache.replace(layers=slots)
