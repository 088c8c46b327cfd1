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
from typing import Any, Mapping

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
from spec_cascades.models import segments
from spec_cascades.models import t5_layers

# Parameters of a model whose encoder is another's, and what they are there.
BORROWED = {'encoder': 'encoder', 'encoder_embedder': 'token_embedder'}
SUBLAYERS = t5_layers.SUBLAYERS


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
  encoder: T5Config | None = None    # of another model, which it reads with

  def __post_init__(self):
    if isinstance(self.encoder, Mapping):              # as JSON has it
      object.__setattr__(self, 'encoder', T5Config(**self.encoder))
    if self.encoder is not None and not (
        isinstance(self.encoder, T5Config) and self.encoder.encoder is None):
      raise ValueError(f'Got encoder={self.encoder!r} of a T5Config; allowed: '
                       'None, or the T5Config of a T5 with its own encoder.')
    object.__setattr__(self, 'mlp_activations', tuple(self.mlp_activations))
    object.__setattr__(self, 'skipped', layers.sublayers(
        self.skipped, self.num_decoder_layers, SUBLAYERS))
    layers.check_activations('mlp_activations', self.mlp_activations)

  @property
  def reading(self) -> T5Config:
    """Of the encoder; one that is another model's is not trained."""
    return self if self.encoder is None else dataclasses.replace(
        self.encoder, num_encoder_layers=self.num_encoder_layers,
        dtype=self.dtype, dropout_rate=0.)

  @property
  def encoding(self) -> T5Config:
    """All but weights that decides what the encoder makes of a text."""
    return dataclasses.replace(
        self.reading, num_decoder_layers=0, skipped=(), dropout_rate=0.,
        logits_via_embedding=True)


class Encoder(nn.Module):
  """The encoder stack; embeddings are the caller's."""
  config: T5Config

  def setup(self):
    cfg = self.config
    self.relpos_bias = positions.RelativeBias(
        cfg.num_heads, cfg.relative_buckets, cfg.relative_max_distance,
        bidirectional=True)
    self.layers = [t5_layers.EncoderLayer(cfg)
                   for _ in range(cfg.num_encoder_layers)]
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
    self.layers = [t5_layers.DecoderLayer(cfg, layers.of_layer(cfg.skipped, i))
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
    self.encoder = Encoder(cfg.reading)
    self.decoder = Decoder(cfg, self.taps)
    if cfg.encoder is not None:
      self.encoder_embedder = layers.Embed(cfg.encoder.vocab_size,
                                           cfg.encoder.emb_dim)

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
    if self.config.encoder is None:
      return self.encoder(self.embed(inputs), mask, **kwargs)
    x = self.encoder_embedder(inputs).astype(self.config.dtype)
    return jax.lax.stop_gradient(self.encoder(x, mask, **kwargs))

  def cross(self, encoded: Float[Array, 'B I E']):
    """Cross-attention keys and values of every layer."""
    return self.decoder.memory(encoded)

  def memory(self, inputs: Int[Array, 'B I']):
    """Encodes a prompt: what `cross` makes of its states."""
    return self.cross(self.encode(inputs))

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
  states: Float[Array, 'B I E'] | None = None          # if drafters share them


@dataclasses.dataclass(frozen=True)
class T5(packed.PackedModel):
  """A T5 as a `LanguageModel`; `Prompt.inputs` is what the encoder reads.

  Where a verifier and a drafter of its encoder both are `shared`, it reads a
  prompt once: a cache keeps its states, and `Prompt.lent` brings them.
  """
  config: T5Config
  _: dataclasses.KW_ONLY
  shared: bool = False

  @property
  def module(self) -> Transformer:
    return Transformer(self.config, self.taps)

  def variables(self, key: jax.Array) -> dict[str, Any]:
    token = jnp.ones((1, 1), jnp.int32)
    return self.module.init(key, token, token)

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
    borrows = self.shared and cfg.encoder is not None
    states = prompt.lent if borrows else None
    if states is None:
      states = self.apply(params, prompt.inputs, method='encode')
    memory = self.apply(params, states, method='cross')
    slots = jnp.zeros((b, cfg.num_heads, capacity, cfg.head_dim), cfg.dtype)
    own = tuple(None if (i, t5_layers.SELF) in cfg.skipped else (slots, slots)
                for i in range(cfg.num_decoder_layers))
    lent = states if self.shared and not borrows else None
    return cache_lib.Cache(own, jnp.zeros(b, jnp.int32),
                           Encoded(memory, prompt.inputs, lent))

  def extend(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """Hidden states [B, N, E] of a block, written at [length, length + N)."""
    distance, mask = cache.view(tree)
    cross = segments.seen(cache.static.inputs, tree.tokens.shape[1])
    hidden, slots = self.apply(
        params, tree.tokens, distance, mask, cross, cache.static.memory,
        cache.write, tree.embedded, method='extend')
    return hidden, cache.replace(layers=slots)
