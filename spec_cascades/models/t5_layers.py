"""Layers of T5's encoder and decoder, with the names of T5X's minimal T5."""
from __future__ import annotations

import functools
from typing import Any, Callable

from flax import linen as nn

from spec_cascades.models import layers
from spec_cascades.models import products

SUBLAYERS = SELF, CROSS, MLP = 'self_attention', products.CROSS_ATTENTION, 'mlp'


def mlp(config: Any) -> layers.MlpBlock:
  """The MLP of a layer, in the encoder or the decoder."""
  return layers.MlpBlock(config.emb_dim, config.mlp_dim,
                         config.mlp_activations, config.dropout_rate)


class Attention(nn.Module):
  """Multi-head attention; T5 folds the 1/sqrt(d) scale into its initialiser."""
  config: Any

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
  config: Any

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
  config: Any
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
