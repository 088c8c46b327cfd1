"""Models as directories that transformers loads: config.json, safetensors."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import jax.numpy as jnp

from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import hub_config
from spec_cascades.checkpoints import huggingface
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import tensors
from spec_cascades.data import files
from spec_cascades.models import gemma
from spec_cascades.models import positions
from spec_cascades.models import t5

SHARD_BYTES = 4 * 2**30
# The longest text is not a property of our models; transformers wants one.
MAX_POSITIONS = 131_072
CLASSES = dict(
    t5='T5ForConditionalGeneration', gemma='GemmaForCausalLM',
    gemma2='Gemma2ForCausalLM', gemma3_text='Gemma3ForCausalLM',
    llama='LlamaForCausalLM', qwen2='Qwen2ForCausalLM',
    qwen3='Qwen3ForCausalLM')


def write(directory: str | os.PathLike, source: loading.Source,
          dtype: str = 'float32', *, shard_bytes: int = SHARD_BYTES,
          tick: tensors.Write = lambda _: None) -> None:
  """Writes a model; reads one array at a time, and tied weights once.

  Args:
    directory: Exists; config.json is written last.
    source: Has been found to fit (`loading.fit`).
    dtype: Of all weights.
    shard_bytes: Weights of one file; a single larger array is not split.
    tick: See `tensors.write`.

  Raises:
    ValueError: Hugging Face has no such model; a file is damaged.
  """
  directory = pathlib.Path(directory).expanduser()
  described = describe(source.lm.config)
  leaves = {theirs: hub.turned(ours, source.leaves[ours])
            for ours, theirs in huggingface.pairs(source.lm.config)}
  groups = tensors.shards(leaves, jnp.dtype(dtype).itemsize, shard_bytes)
  places, total = {}, 0
  for name, group in zip(tensors.file_names(len(groups)), groups):
    total += tensors.write(directory / name, group, dtype, tick)
    places |= dict.fromkeys(group, name)
  if len(groups) > 1:
    index = dict(metadata=dict(total_size=total), weight_map=places)
    files.write_atomically(directory / hub.INDEX,
                           json.dumps(index, indent=2) + '\n')
  described |= {'torch_dtype': dtype}
  if source.max_input_length is not None:
    described |= {hub.LONGEST: source.max_input_length}
  files.write_atomically(directory / hub.CONFIG,
                         json.dumps(described, indent=2) + '\n')


def describe(config: Any) -> dict[str, Any]:
  """The config.json of a model, which versions 4 and 5 understand.

  Raises:
    ValueError: Hugging Face has no such model.
  """
  told = (_t5 if isinstance(config, t5.T5Config) else _gemma)(config)
  told = dict(architectures=[CLASSES[told['model_type']]], **told)
  again = hub_config.model(told).config
  want, got = vars(_plain(config)), vars(_plain(again))
  lost = [f'{name}={want[name]}' for name in want if want[name] != got[name]]
  if lost:
    raise ValueError(f'A {told["model_type"]} of Hugging Face has no '
                     f'{", ".join(lost)}.')
  return told


def _t5(config: t5.T5Config) -> dict[str, Any]:
  if config.encoder is not None:
    raise ValueError('A T5 of Hugging Face has no encoder of other sizes than '
                     'its decoder, such as one that its verifier lends.')
  kinds = {ours: theirs for theirs, ours in hub_config.T5_ACTIVATIONS.items()}
  if config.mlp_activations not in kinds:
    raise ValueError(f'A T5 of Hugging Face has no mlp_activations='
                     f'{config.mlp_activations}.')
  return dict(
      model_type='t5', vocab_size=config.vocab_size, d_model=config.emb_dim,
      d_kv=config.head_dim, d_ff=config.mlp_dim, num_heads=config.num_heads,
      num_layers=config.num_encoder_layers,
      num_decoder_layers=config.num_decoder_layers,
      relative_attention_num_buckets=config.relative_buckets,
      relative_attention_max_distance=config.relative_max_distance,
      feed_forward_proj=kinds[config.mlp_activations],
      tie_word_embeddings=config.logits_via_embedding,
      dropout_rate=config.dropout_rate, layer_norm_epsilon=1e-6,
      is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0,
      eos_token_id=1)


def _gemma(config: gemma.GemmaConfig) -> dict[str, Any]:
  family, windows = _family(config), _windows(config)
  kinds = {ours: theirs for theirs, ours in hub_config.ACTIVATIONS.items()}
  if config.mlp_activation not in kinds:
    raise ValueError(f'A {family} of Hugging Face has no mlp_activation='
                     f'{config.mlp_activation}; allowed: {", ".join(kinds)}.')
  activation = kinds[config.mlp_activation]
  told = dict(
      model_type=family, vocab_size=config.vocab_size,
      hidden_size=config.emb_dim, intermediate_size=config.mlp_dim,
      num_hidden_layers=config.num_layers,
      num_attention_heads=config.num_heads,
      num_key_value_heads=config.num_kv_heads, head_dim=config.head_dim,
      hidden_act=activation, hidden_activation=activation,
      rms_norm_eps=config.norm_epsilon, rope_theta=config.rope.base,
      rope_scaling=_scaling(config.rope),
      max_position_embeddings=MAX_POSITIONS,
      tie_word_embeddings=config.logits_via_embedding)
  if family in ('gemma2', 'gemma3_text'):
    scale = config.query_scale or config.head_dim**-0.5
    told |= dict(query_pre_attn_scalar=_near(scale**-2),
                 attn_logit_softcapping=config.attention_soft_cap,
                 final_logit_softcapping=config.logit_soft_cap)
  if family == 'gemma3_text':
    told |= dict(rope_local_base_freq=config.local_rope.base)
  if any(windows) or family in ('gemma2', 'gemma3_text'):
    told |= dict(
        sliding_window=max(windows) or config.vocab_size,
        layer_types=['sliding_attention' if x else 'full_attention'
                     for x in windows])
  if family.startswith('qwen'):
    told |= dict(use_sliding_window=any(windows), max_window_layers=next(
        (i for i, x in enumerate(windows) if x), len(windows)))
  return told


def _family(config: gemma.GemmaConfig) -> str:
  """The model_type that has these variants."""
  if config.scale_embedding:
    return 'gemma3_text' if config.qk_norm else (
        'gemma2' if config.post_norms else 'gemma')
  return 'qwen2' if config.qkv_bias else 'qwen3' if config.qk_norm else 'llama'


def _windows(config: gemma.GemmaConfig) -> tuple[int, ...]:
  """The window of every layer; ValueError if there are several."""
  windows = tuple(config.window(i) for i in range(config.num_layers))
  if len({*windows} - {0}) > 1:
    raise ValueError(f'Hugging Face has one window for all layers; got '
                     f'{config.windows}.')
  return windows


def _scaling(rope: positions.Rope) -> dict[str, Any] | None:
  if rope.trained_length is not None:
    return dict(rope_type='llama3', factor=rope.factor,
                original_max_position_embeddings=rope.trained_length,
                low_freq_factor=rope.slow, high_freq_factor=rope.fast)
  return None if rope.factor == 1 else dict(rope_type='linear',
                                            factor=rope.factor)


def _near(x: float) -> float:
  """The integer that a number is up to rounding; else the number."""
  return round(x) if abs(x - round(x)) < 1e-9 * x else x


def _plain(config: Any) -> Any:
  """The same model, spelt in one way; without what files do not say."""
  if isinstance(config, t5.T5Config):
    return dataclasses.replace(config, dtype='float32', dropout_rate=0.)
  windows = _windows(config) or (0,)         # a model without layers
  scale = config.query_scale or config.head_dim**-0.5
  return dataclasses.replace(
      config, dtype='float32', dropout_rate=0., windows=windows,
      query_scale=round(scale, 12),
      local_rope=config.local_rope if any(windows) else config.rope,
      rope=config.rope if not all(windows) else config.local_rope)
