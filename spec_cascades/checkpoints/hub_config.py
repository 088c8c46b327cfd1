"""config.json of Hugging Face <-> our configurations, as pure functions.

A configuration is the dict in `config.json`, as version 4 or 5 of transformers
writes it. What it says about code to run is not read.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping

from spec_cascades.checkpoints import loading
from spec_cascades.models import gemma
from spec_cascades.models import positions
from spec_cascades.models import t5

Config = Mapping[str, Any]

T5_FAMILIES = ('t5', 'mt5')
# Classes of transformers that drop a T5's head.
HEADLESS = ('T5Model', 'T5EncoderModel', 'MT5Model', 'MT5EncoderModel')
GEMMA_FAMILIES = ('gemma', 'gemma2', 'gemma3_text', 'llama', 'qwen2', 'qwen3')
# Those that heed a window; in the others transformers overlooks it.
WITH_WINDOWS = ('gemma2', 'gemma3_text', 'qwen2', 'qwen3')
ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu', 'silu': 'silu'}
T5_ACTIVATIONS = {'relu': ('relu',), 'gated-gelu': ('gelu', 'linear')}
UNSUPPORTED = ('attention_bias', 'mlp_bias', 'use_bidirectional_attention')
WINDOWED = {'sliding_attention': True, 'full_attention': False}
# What a configuration of these families may leave out.
GEMMA3_DEFAULTS = dict(
    vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4,
    head_dim=256, query_pre_attn_scalar=256, sliding_window=4096,
    sliding_window_pattern=6, rope_theta=1_000_000.,
    rope_local_base_freq=10_000.)
FAMILY_DEFAULTS = dict(
    gemma=dict(head_dim=256),
    gemma2=dict(sliding_window_pattern=2, attn_logit_softcapping=50.,
                final_logit_softcapping=30., sliding_window=4096, head_dim=256,
                query_pre_attn_scalar=256),
    gemma3_text=GEMMA3_DEFAULTS, qwen3=dict(head_dim=128))
MAX_LAYERS, MAX_SIZE = 1024, 2**24
MAY_BE_ZERO = ('norm_offset', 'dropout_rate')


def model(config: Config) -> Any:
  """The language model that a `config.json` describes.

  Raises:
    ValueError: It is not supported, or says something impossible.
  """
  if not isinstance(config, dict):
    raise ValueError('It has to be a JSON object.')
  inner = config.get('text_config')
  inner = inner if isinstance(inner, dict) else config
  family = inner.get('model_type')
  if config.get('quantization_config') or inner.get('quantization_config'):
    raise ValueError('quantization_config is not supported; get the weights '
                     'that are not quantised, or a GGUF.')
  try:
    if family in T5_FAMILIES:
      lm = t5.T5(t5_config(inner))
    else:
      lm = gemma.Gemma(gemma_config(config))
    hash(lm)
  except KeyError as error:
    raise ValueError(f'It does not say {error}, which a model_type {family!r} '
                     'needs.') from None
  except (TypeError, AttributeError, ArithmeticError) as error:
    raise ValueError(f'A value is of the wrong type or size: {error}.'
                     ) from None
  check(lm.config)
  return lm


def t5_config(config: Config) -> t5.T5Config:
  """Reads a T5's `config.json` (v1.0, v1.1, LM-adapted, FLAN, mT5)."""
  family = config.get('model_type', 't5')
  activation = config.get('feed_forward_proj',
                          'relu' if family == 't5' else 'gated-gelu')
  if activation not in T5_ACTIVATIONS:
    raise ValueError(f'feed_forward_proj {activation!r} is not supported; '
                     f'allowed: {", ".join(T5_ACTIVATIONS)}.')
  if config.get('layer_norm_epsilon', 1e-6) != 1e-6:
    raise ValueError(f'layer_norm_epsilon={config["layer_norm_epsilon"]} is '
                     'not supported; allowed: 1e-06.')
  # Version 5 calls every head tied, and no mT5's output scaled.
  tied = config.get('tie_word_embeddings', True)
  if family == 'mt5' and not _is_version_4(config):
    tied = False
  layers = config['num_layers']
  return t5.T5Config(
      vocab_size=config['vocab_size'], emb_dim=config['d_model'],
      num_heads=config['num_heads'], num_encoder_layers=layers,
      num_decoder_layers=config.get('num_decoder_layers') or layers,
      head_dim=config['d_kv'], mlp_dim=config['d_ff'],
      mlp_activations=T5_ACTIVATIONS[activation],
      logits_via_embedding=config.get('scale_decoder_outputs', tied),
      relative_buckets=config.get('relative_attention_num_buckets', 32),
      relative_max_distance=config.get('relative_attention_max_distance', 128))


def has_tied_head(config: Config) -> bool:
  """Whether a T5 without a head of its own reads its embedding there.

  Version 5 says that it does, too, where a class without a head was saved and
  the head is lost.
  """
  named = config.get('architectures')
  lost = isinstance(named, list) and any(x in HEADLESS for x in named)
  return (config.get('tie_word_embeddings', True) is True and not lost
          and not _is_version_4(config))


def gemma_config(config: Config) -> gemma.GemmaConfig:
  """Reads the `config.json` of a Gemma 1-3, Llama, Qwen 2 or Qwen 3."""
  config = config.get('text_config', config)
  family = config.get('model_type')
  if family not in GEMMA_FAMILIES:
    raise ValueError(f'model_type {family!r} is not supported; allowed: '
                     f'{", ".join(GEMMA_FAMILIES + T5_FAMILIES)}.')
  config = {**FAMILY_DEFAULTS.get(family, {}), **config}
  is_gemma = family.startswith('gemma')
  heads, width = config['num_attention_heads'], config['hidden_size']
  for option in UNSUPPORTED:
    if config.get(option):
      raise ValueError(f'{option}={config[option]} is not supported.')
  scalar = config.get('query_pre_attn_scalar')
  rope, local_rope = _ropes(config)
  return gemma.GemmaConfig(
      vocab_size=config['vocab_size'], emb_dim=width,
      num_layers=config['num_hidden_layers'], num_heads=heads,
      num_kv_heads=config.get('num_key_value_heads') or heads,
      head_dim=config.get('head_dim') or width // heads,
      mlp_dim=config['intermediate_size'],
      mlp_activation=_activation(config, family),
      norm_epsilon=config.get('rms_norm_eps', 1e-6),
      norm_offset=1. if is_gemma else 0.,
      post_norms=family in ('gemma2', 'gemma3_text'),
      qk_norm=family in ('gemma3_text', 'qwen3'), qkv_bias=family == 'qwen2',
      scale_embedding=is_gemma,
      query_scale=None if scalar is None else scalar**-0.5,
      attention_soft_cap=config.get('attn_logit_softcapping'),
      logit_soft_cap=config.get('final_logit_softcapping'),
      windows=_windows(config), rope=rope, local_rope=local_rope,
      logits_via_embedding=config.get('tie_word_embeddings', is_gemma))


def check(config: Any) -> None:
  """Refuses values that no published model has; JSON may hold anything."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if isinstance(value, (positions.Rope, t5.T5Config)):
      check(value)
    elif field.type == 'int' or field.name == 'windows':
      is_depth = field.name.endswith('layers')
      least = 0 if is_depth or field.name == 'windows' else 1
      most = MAX_LAYERS if is_depth else MAX_SIZE
      for x in value if isinstance(value, tuple) else (value,):
        if type(x) is not int or not least <= x <= most:
          raise ValueError(f'{field.name}={x!r} is not possible; allowed: '
                           f'integers from {least} to {most}.')
    elif field.type.startswith(('float', 'int')):
      if value is None and 'None' in field.type:
        continue
      if type(value) not in (int, float) or not 0 <= value < math.inf or (
          not value and field.name not in MAY_BE_ZERO):
        raise ValueError(f'{field.name}={value!r} is not possible; allowed: '
                         'positive numbers.')
    elif field.type == 'bool' and type(value) is not bool:
      raise ValueError(f'{field.name}={value!r} has to be true or false.')
    elif field.name == 'dtype' and value not in loading.DTYPES:
      raise ValueError(f'dtype={value!r} is not possible; allowed: '
                       f'{", ".join(loading.DTYPES)}.')
    elif field.name == 'mlp_activations' and (
        value not in T5_ACTIVATIONS.values()):
      raise ValueError(f'mlp_activations={value!r} is not possible; allowed: '
                       f'{", ".join(map(str, T5_ACTIVATIONS.values()))}.')
  if isinstance(config, positions.Rope) and config.slow >= config.fast:
    raise ValueError(f'low_freq_factor={config.slow} has to be smaller than '
                     f'high_freq_factor={config.fast}.')
  if isinstance(config, gemma.GemmaConfig) and config.head_dim % 2:
    raise ValueError(f'head_dim={config.head_dim} has to be even.')
  if isinstance(config, t5.T5Config) and not (
      4 <= config.relative_buckets <= 2 * config.relative_max_distance - 2):
    raise ValueError(f'{config.relative_buckets} relative buckets do not fit '
                     f'a distance of {config.relative_max_distance}.')


def _is_version_4(config: Config) -> bool:
  """Whether a version of transformers before 5 wrote it, or nothing says."""
  return str(config.get('transformers_version', '4')).split('.')[0] in (
      '2', '3', '4')


def _activation(config: Config, family: str) -> str:
  """Our name of an activation; Gemma 1's "gelu" means the tanh formula."""
  name = config.get('hidden_activation') or config.get('hidden_act')
  meant = (None, 'gelu') if family == 'gemma' else (None,)
  if family.startswith('gemma') and name in meant:
    name = 'gelu_pytorch_tanh'
  if name not in ACTIVATIONS:
    raise ValueError(f'Activation {name!r} is not supported; allowed: '
                     f'{", ".join(ACTIVATIONS)}.')
  return ACTIVATIONS[name]


def _windows(config: Config) -> tuple[int, ...]:
  """The window of every layer; 0 sees everything."""
  windows, family = _windows_told(config), config['model_type']
  if any(windows) and family not in WITH_WINDOWS:
    raise ValueError(f'sliding_window={config["sliding_window"]} is not '
                     f'possible for a {family!r}; allowed for: '
                     f'{", ".join(WITH_WINDOWS)}.')
  return windows


def _windows_told(config: Config) -> tuple[int, ...]:
  """What a configuration says of windows, whatever the family does with it."""
  window, kinds = config.get('sliding_window') or 0, config.get('layer_types')
  layers = config['num_hidden_layers']
  if kinds:
    unknown = [kind for kind in kinds if kind not in WINDOWED]
    if unknown or len(kinds) != layers:
      raise ValueError(f'layer_types of {len(kinds)} layers {unknown[:1]} are '
                       f'not supported; allowed: {layers} of '
                       f'{", ".join(WINDOWED)}.')
    return tuple(window if WINDOWED[kind] else 0 for kind in kinds)
  if config.get('use_sliding_window'):
    first = config.get('max_window_layers')
    if first is None:
      raise ValueError('use_sliding_window needs layer_types, which say which '
                       'layers have a window.')
    first = min(first, layers, MAX_LAYERS)
    return (0,) * first + (window,) * (min(layers, MAX_LAYERS) - first)
  period = min(config.get('sliding_window_pattern', 1), MAX_LAYERS)
  return (window,) * (period - 1) + (0,)


def _ropes(config: Config) -> tuple[positions.Rope, positions.Rope]:
  """Rotary frequencies of layers without and with a window."""
  base = config.get('rope_theta', 10_000.)
  old = {'rope_theta': base, **(config.get('rope_scaling') or {})}
  given = config.get('rope_parameters') or old
  if config.get('partial_rotary_factor', 1.) != 1.:
    raise ValueError('partial_rotary_factor='
                     f'{config["partial_rotary_factor"]} is not supported.')
  local = {'rope_theta': config['rope_local_base_freq']} if (
      'rope_local_base_freq' in config) else given
  return (_rope(given.get('full_attention', given)),
          _rope(given.get('sliding_attention', local)))


def _rope(config: Config) -> positions.Rope:
  kind = config.get('rope_type', config.get('type', 'default'))
  base = config['rope_theta']
  if kind == 'default':
    return positions.Rope(base)
  if kind == 'linear':
    return positions.Rope(base, config['factor'])
  if kind == 'llama3':
    return positions.Rope(
        base, config['factor'], config['original_max_position_embeddings'],
        config['low_freq_factor'], config['high_freq_factor'])
  raise ValueError(f'Rotary embeddings of type {kind!r} are not supported; '
                   'allowed: default, linear, llama3.')
