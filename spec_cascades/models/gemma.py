"""One decoder-only transformer for Gemma 1-3 and Llama-like models.

A configuration says which: windows and rotary bases per layer, soft caps,
norms before and after, gated MLPs with GELU or SiLU, a tied or untied head.
Positions come from the cache's view of a token tree, never from slots: a key is
rotated once, at its own position, which a commit does not change. One
`Transformer` serves training (`__call__`) and decoding (`extend`, `readout`);
`Gemma` makes a `LanguageModel` of it.

References: Gemma Team (2024), https://arxiv.org/abs/2408.00118 (Gemma 2);
  Gemma Team (2025), https://arxiv.org/abs/2503.19786 (Gemma 3);
  Touvron et al. (2023), https://arxiv.org/abs/2307.09288 (Llama 2)
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Mapping

from flax import linen as nn
from flax.linen import partitioning
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from spec_cascades import cache as cache_lib
from spec_cascades import types
from spec_cascades.models import layers
from spec_cascades.models import packed
from spec_cascades.models import positions
from spec_cascades.models import segments

SUBLAYERS = SELF, MLP = 'self_attention', 'mlp'


@dataclasses.dataclass(frozen=True)
class GemmaConfig:
  """Sizes and variants; `windows` repeats over the layers, 0 sees everything.

  Layers with a window rotate by `local_rope`, the others by `rope`.
  `models/presets.py` has published models.
  """
  vocab_size: int = 262_144
  emb_dim: int = 640
  num_layers: int = 18
  num_heads: int = 4
  num_kv_heads: int = 1
  head_dim: int = 256
  mlp_dim: int = 2048
  mlp_activation: str = 'gelu'
  norm_epsilon: float = 1e-6
  norm_offset: float = 1.            # 1: checkpoints store scale - 1 (Gemma)
  post_norms: bool = False           # norms behind attention and MLP, too
  qk_norm: bool = False
  qkv_bias: bool = False
  scale_embedding: bool = True       # by sqrt(emb_dim)
  query_scale: float | None = None   # 1 / sqrt(head_dim) if None
  attention_soft_cap: float | None = None
  logit_soft_cap: float | None = None
  windows: tuple[int, ...] = (0,)
  rope: positions.Rope = positions.Rope()
  local_rope: positions.Rope = positions.Rope()
  logits_via_embedding: bool = True
  dtype: str = 'float32'             # of activations and caches
  skipped: tuple[tuple[int, str], ...] = ()    # (layer, sublayer)
  dropout_rate: float = 0.           # in training; published models have none

  def __post_init__(self):
    object.__setattr__(self, 'windows', tuple(self.windows))
    if not self.windows:
      raise ValueError('Got windows=(); allowed: one number or more, such as '
                       '(0,), with which every layer sees everything.')
    object.__setattr__(self, 'skipped', layers.sublayers(
        self.skipped, self.num_layers, SUBLAYERS))
    layers.check_activations('mlp_activation', (self.mlp_activation,))
    if self.num_heads % self.num_kv_heads:
      raise ValueError(f'num_heads={self.num_heads} is not a multiple of '
                       f'num_kv_heads={self.num_kv_heads}.')

  def window(self, layer: int) -> int:
    """How many positions a layer sees, its own included; 0 is all of them."""
    return self.windows[layer % len(self.windows)]


def norm(config: GemmaConfig, axis: str = 'embed',
         name: str | None = None) -> layers.RMSNorm:
  """This model's kind of RMSNorm."""
  return layers.RMSNorm(config.norm_epsilon, config.norm_offset, axis,
                        name=name)


def cap(x: Float[Array, '*axes'], limit: float | None) -> Float[Array, '*axes']:
  """Squashes x into (-limit, limit)."""
  return x if limit is None else limit * jnp.tanh(x / limit)


class Attention(nn.Module):
  """Self-attention with rotary positions; query heads share key heads."""
  config: GemmaConfig

  @nn.compact
  def __call__(self, x, angle, mask, write: Callable):
    """Returns the mixed values [B, N, E] and the keys and values attended to.

    Args:
      x: Inputs [B, N, E].
      angle: Rotation of every node [B, N, D / 2].
      mask: Keys that a node sees [B, N, S].
      write: The block's own keys and values -> those to attend to.
    """
    cfg = self.config
    query, key, value = self._project(x)
    if cfg.qk_norm:
      query = norm(cfg, 'kv', 'query_norm')(query)
      key = norm(cfg, 'kv', 'key_norm')(key)
    scale = cfg.head_dim**-0.5 if cfg.query_scale is None else cfg.query_scale
    rotate = positions.rotate
    memory = write(tuple(map(layers.slots_of, (rotate(key, angle), value))))
    query = rotate(query, angle) * scale
    self.sow('intermediates', 'queries', query)          # for `Gemma.look`
    mixed = layers.attend(query, *memory, None, mask,
                          soft_cap=cfg.attention_soft_cap,
                          kernel=layers.attends_by_kernel(self))
    out = layers.Dense(cfg.emb_dim, ('joined_kv', 'embed'), name='out')(mixed)
    return out, memory

  @nn.nowrap
  def _project(self, x):
    cfg = self.config
    counts = dict(query=cfg.num_heads, key=cfg.num_kv_heads,
                  value=cfg.num_kv_heads)
    widths = {name: n * cfg.head_dim for name, n in counts.items()}
    flat = layers.project(self, x, widths, ('embed', 'joined_kv'))
    if cfg.qkv_bias:
      flat = [y + self._bias(f'{name}_bias', y)
              for name, y in zip(widths, flat)]
    return [layers.heads_of(y, n) for y, n in zip(flat, counts.values())]

  @nn.nowrap
  def _bias(self, name, like):
    bias = partitioning.param_with_axes(
        name, nn.initializers.zeros, (like.shape[-1],), jnp.float32,
        axes=('joined_kv',))
    return jnp.broadcast_to(bias.astype(like.dtype), like.shape)


class DecoderLayer(nn.Module):
  """Self-attention and an MLP, each between norms and beside a residual."""
  config: GemmaConfig
  skipped: tuple[str, ...] = ()

  def setup(self):
    cfg = self.config
    self.pre_attention_norm = norm(cfg)
    self.self_attention = Attention(cfg)
    self.pre_mlp_norm = norm(cfg)
    self.mlp = layers.MlpBlock(cfg.emb_dim, cfg.mlp_dim,
                               (cfg.mlp_activation, 'linear'),
                               cfg.dropout_rate)
    self.drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    if cfg.post_norms:
      self.post_attention_norm = norm(cfg)
      self.post_mlp_norm = norm(cfg)

  def __call__(self, x, angle, mask, write: Callable, *,
               deterministic: bool = True):
    """Hidden states [B, N, E] -> the same, and keys/values of the layer."""
    own, posts = None, self.config.post_norms
    drop = functools.partial(self.drop, deterministic=deterministic)
    if SELF not in self.skipped:
      y = self.pre_attention_norm(x)
      y, own = self.self_attention(y, angle, mask, write)
      x = x + drop(self.post_attention_norm(y) if posts else y)
    if MLP not in self.skipped:
      y = self.mlp(self.pre_mlp_norm(x), deterministic=deterministic)
      x = x + drop(self.post_mlp_norm(y) if posts else y)
    return x, own


class Decoder(nn.Module):
  """The stack and, if the embedding is not tied, the head."""
  config: GemmaConfig
  taps: tuple[int, ...] = ()

  def setup(self):
    cfg = self.config
    self.layers = [DecoderLayer(cfg, layers.of_layer(cfg.skipped, i))
                   for i in range(cfg.num_layers)]
    self.decoder_norm = norm(cfg)
    self.drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))
    if not cfg.logits_via_embedding:
      self.logits_dense = layers.Dense(cfg.vocab_size, ('embed', 'vocab'),
                                       wide=True)

  def __call__(self, x, position, distance, mask, write: Callable, *,
               remat: bool = False, deterministic: bool = True):
    """Embedded block [B, N, E] -> `layers.wide`, keys/values per layer.

    Args:
      x: Embedded tokens [B, N, E].
      position: Of every node [B, N].
      distance: Query position - key position [B, N, S].
      mask: Keys that a node may see [B, N, S], before windows.
      write: (layer, block's keys and values) -> keys and values to attend to.
      remat: See `layers.call`; for gradients.
      deterministic: No dropout; otherwise give an rng named 'dropout'.
    """
    cfg = self.config
    x = self.drop(x, deterministic=deterministic)
    ropes = {window: cfg.local_rope if window else cfg.rope
             for window in cfg.windows}
    angles = {window: rope.angles(position, cfg.head_dim)
              for window, rope in ropes.items()}
    masks = {window: mask & (distance < window) if window else mask
             for window in cfg.windows}
    owned, left = [], []
    for i, layer in enumerate(self.layers):
      window = cfg.window(i)
      x, own = layers.call(layer, x, angles[window], masks[window],
                           remat=remat, write=functools.partial(write, i),
                           deterministic=deterministic)
      owned.append(own)
      left.append(x)
    x = self.drop(self.decoder_norm(x), deterministic=deterministic)
    return layers.wide(x, left, self.taps), tuple(owned)

  def readout(self, x):
    """Logits of an untied head."""
    return self.logits_dense(x)


class Transformer(nn.Module):
  """A Gemma as a linen module, with parameter names in T5X's style."""
  config: GemmaConfig
  taps: tuple[int, ...] = ()

  def setup(self):
    cfg = self.config
    self.token_embedder = layers.Embed(cfg.vocab_size, cfg.emb_dim,
                                       cfg.emb_dim**-0.5)
    self.decoder = Decoder(cfg, self.taps)

  def __call__(self, *args: Any, **kwargs: Any) -> Float[Array, 'B T V']:
    """Teacher-forced logits; arguments are those of `states`."""
    return self.readout(self.states(*args, **kwargs))

  def states(self, tokens: Int[Array, 'B N'],
             at: Int[Array, 'B T'] | None = None,
             texts: tuple[Array, Array] | None = None,
             branches: segments.Branches | None = None, *, remat: bool = False,
             deterministic: bool = True) -> Float[Array, 'B T E']:
    """States of a whole text: at n, having read tokens[:, :n + 1].

    Padding on the right needs no mask: nothing before it sees it.

    Args:
      tokens: What is read.
      at: The slots n whose states are wanted; None: all.
      texts: Segments and positions [B, N] where rows hold several texts, see
        `segments.joined`.
      branches: At slots of the text; their states come behind the others.
      remat: See `layers.call`; for gradients.
      deterministic: No dropout; otherwise give an rng named 'dropout'.
    """
    n = tokens.shape[1]
    owner, position = texts or (None, jnp.broadcast_to(
        jnp.arange(n), tokens.shape))
    mask, x = position[:, :, None] >= position[:, None], self.embed(tokens)
    if texts:
      mask &= segments.same(owner, owner)
    if branches is not None:
      x, position, mask = branches.behind(x, position, mask)
    distance = position[:, :, None] - position[:, None]
    hidden, _ = self.decoder(x, position, distance, mask,
                             lambda layer, block: block, remat=remat,
                             deterministic=deterministic)
    if at is not None:
      own = jnp.take_along_axis(hidden[:, :n], at[..., None], 1)
      hidden = jnp.concatenate([own, hidden[:, n:]], 1)
    return hidden

  def embed(self, tokens: Int[Array, '*axes']) -> Float[Array, '*axes E']:
    """Token embeddings as the first layer reads them."""
    cfg = self.config
    x = self.token_embedder(tokens).astype(cfg.dtype)
    if cfg.scale_embedding:
      x = x * jnp.asarray(cfg.emb_dim**0.5, x.dtype)
    return x

  def extend(self, tokens: Int[Array, 'B N'], position: Int[Array, 'B N'],
             distance: Int[Array, 'B N S'], mask: Bool[Array, 'B N S'],
             write: Callable, embedded: Float[Array, 'B M E'] | None = None):
    """Scores a block: states [B, N, E] and keys and values of every layer."""
    x = layers.ending(self.embed(tokens), embedded)
    return self.decoder(x, position, distance, mask, write)

  def closed(self, x: Float[Array, '*axes E']) -> Float[Array, '*axes E']:
    """What the head reads if layers end with the states x."""
    return self.decoder.decoder_norm(x)

  def readout(self, hidden: Float[Array, '*axes E']) -> Float[Array, '*axes V']:
    """Float32 logits of decoder states."""
    cfg, embedder = self.config, self.token_embedder
    read = embedder.attend if cfg.logits_via_embedding else self.decoder.readout
    return cap(read(layers.front(hidden, cfg.emb_dim)), cfg.logit_soft_cap)


@dataclasses.dataclass(frozen=True)
class Gemma(packed.PackedModel):
  """A decoder-only `LanguageModel`; the prompt is the prefix."""
  config: GemmaConfig

  @property
  def module(self) -> Transformer:
    return Transformer(self.config, self.taps)

  def variables(self, key: jax.Array) -> dict[str, Any]:
    return self.module.init(key, jnp.ones((1, 1), jnp.int32))

  def states(self, params: Any, batch: Mapping[str, Array], *,
             dropout: Key[Array, ''] | None = None, remat: bool = False,
             branches: segments.Branches | None = None):
    """States before the head, see `teacher_forced`.

    Inputs have `input_lengths[b]` >= 1 tokens, or `input_segments`. With
    `branches` their states come behind those of the targets.
    """
    given = lambda *names: (batch[name] for name in names)
    if 'target_segments' in batch:
      tokens, *texts, at = segments.joined(*given(
          'inputs', 'input_segments', 'targets', 'target_segments'))
    else:
      texts = None
      tokens, at = segments.behind(*given('inputs', 'input_lengths', 'targets'))
    if branches is not None:
      branches = branches.moved(at)
    return self.module.apply(
        {'params': params}, tokens, at, texts, branches,
        rngs=dropout if dropout is None else {'dropout': dropout},
        deterministic=dropout is None, remat=remat, method='states')

  def init(self, params: Any, prompt: types.Prompt,
           capacity: int) -> cache_lib.Cache:
    """Allocates `capacity` slots per row; reads nothing.

    Raises:
      ValueError: The prompt has `inputs`, which only an encoder reads.
    """
    del params
    if prompt.inputs is not None:
      raise ValueError('A Gemma has no encoder: put the text into '
                       'Prompt.prefix and leave Prompt.inputs None.')
    cfg, b = self.config, len(prompt.prefix)
    slots = jnp.zeros((b, cfg.num_kv_heads, capacity, cfg.head_dim), cfg.dtype)
    own = tuple(None if (i, SELF) in cfg.skipped else (slots, slots)
                for i in range(cfg.num_layers))
    return cache_lib.Cache(own, jnp.zeros(b, jnp.int32))

  def extend(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """Hidden states [B, N, E] of a block, written at [length, length + N)."""
    distance, mask = cache.view(tree)
    position = cache.length[:, None] + tree.depth
    hidden, slots = self.apply(params, tree.tokens, position, distance, mask,
                               cache.write, tree.embedded, method='extend')
    return hidden, cache.replace(layers=slots)

  def look(self, params: Any, cache: cache_lib.Cache, tree: types.TokenTree):
    """As `extend`; and of each layer its scaled queries [B, N, H, D]."""
    position = cache.length[:, None] + tree.depth
    (hidden, slots), seen = self.module.apply(
        {'params': params}, tree.tokens, position, *cache.view(tree),
        cache.write, method='extend', mutable=['intermediates'])
    of = seen['intermediates']['decoder']
    return hidden, cache.replace(layers=slots), tuple(
        None if own is None else of[f'layers_{i}'][SELF]['queries'][0]
        for i, own in enumerate(slots))
