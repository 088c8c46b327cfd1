"""Checkpoints in Hugging Face's layout <-> ours, as pure functions.

A state dict maps names to numpy arrays; what reads files is the caller's
choice. One table per family pairs the names of both sides and serves both
directions. Linear weights are [out, in] there and [in, out] here. A
configuration is the dict in `config.json`, as version 4 or 5 of transformers
writes it.
"""
from __future__ import annotations

from typing import Any, Iterator, Mapping

from flax import traverse_util
import jax
import numpy as np

from spec_cascades.models import gemma
from spec_cascades.models import t5

State = Mapping[str, np.ndarray]
Pairs = Iterator[tuple[str, str]]      # ours, with slashes, and theirs

# Copies of weights that are read elsewhere, and constants.
T5_COPIES = ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')
T5_ACTIVATIONS = {'relu': ('relu',), 'gated-gelu': ('gelu', 'linear')}
GEMMA_ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu', 'silu': 'silu'}
GEMMA_FAMILIES = ('gemma', 'gemma2', 'gemma3_text', 'llama', 'qwen2', 'qwen3')
UNSUPPORTED = ('attention_bias', 'mlp_bias', 'use_bidirectional_attention')
# What a configuration of these families may leave out.
GEMMA3_DEFAULTS = dict(
    vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4,
    head_dim=256, query_pre_attn_scalar=256, sliding_window=4096,
    sliding_window_pattern=6, rope_theta=1_000_000.,
    rope_local_base_freq=10_000.)
FAMILY_DEFAULTS = dict(
    gemma2=dict(sliding_window_pattern=2, attn_logit_softcapping=50.,
                final_logit_softcapping=30., sliding_window=4096,
                query_pre_attn_scalar=256),
    gemma3_text=GEMMA3_DEFAULTS)


def t5_config(config: Mapping[str, Any]) -> t5.T5Config:
  """Reads a T5's `config.json` (v1.0 or v1.1)."""
  activation = config.get('feed_forward_proj', 'relu')
  if activation not in T5_ACTIVATIONS:
    raise ValueError(f'feed_forward_proj {activation!r} is not supported; '
                     f'allowed: {", ".join(T5_ACTIVATIONS)}.')
  tied = config.get('scale_decoder_outputs',
                    config.get('tie_word_embeddings', True))
  layers = config['num_layers']
  return t5.T5Config(
      vocab_size=config['vocab_size'], emb_dim=config['d_model'],
      num_heads=config['num_heads'], num_encoder_layers=layers,
      num_decoder_layers=config.get('num_decoder_layers') or layers,
      head_dim=config['d_kv'], mlp_dim=config['d_ff'],
      mlp_activations=T5_ACTIVATIONS[activation], logits_via_embedding=tied,
      relative_buckets=config.get('relative_attention_num_buckets', 32),
      relative_max_distance=config.get('relative_attention_max_distance', 128))


def t5_params(state: State, config: t5.T5Config) -> dict[str, Any]:
  """Parameters of a `T5ForConditionalGeneration` in our checkpoint layout.

  Raises:
    ValueError: A weight is missing, superfluous or of the wrong shape.
  """
  tied = ('lm_head.weight',) if config.logits_via_embedding else ()
  return _read(state, _t5_pairs(config), t5.T5(config), T5_COPIES + tied)


def t5_state_dict(params: Mapping[str, Any],
                  config: t5.T5Config) -> dict[str, np.ndarray]:
  """The inverse of `t5_params`, without copies of tied weights."""
  return _write(params, _t5_pairs(config))


def gemma_config(config: Mapping[str, Any]) -> gemma.GemmaConfig:
  """Reads the `config.json` of a Gemma 1-3, Llama, Qwen 2 or Qwen 3."""
  config = config.get('text_config', config)
  family = config['model_type']
  if family not in GEMMA_FAMILIES:
    raise ValueError(f'model_type {family!r} is not supported; allowed: '
                     f'{", ".join(GEMMA_FAMILIES)}.')
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
      mlp_activation=_activation(config, is_gemma),
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


def gemma_params(state: State, config: gemma.GemmaConfig) -> dict[str, Any]:
  """Parameters of a causal language model in our checkpoint layout.

  Reads the language model of a multimodal checkpoint, too.

  Raises:
    ValueError: A weight is missing, superfluous or of the wrong shape.
  """
  end = 'embed_tokens.weight'
  prefix = next((name for name in state if name.endswith(end)), end)[:-len(end)]
  body = {'model.' + name.removeprefix(prefix): x for name, x in state.items()
          if name.startswith(prefix) and not name.endswith('inv_freq')}
  if not config.logits_via_embedding:
    for name in state:
      if name.endswith('lm_head.weight'):
        body['lm_head.weight'] = state[name]
  ignored = ('model.lm_head.weight',)
  return _read(body, _gemma_pairs(config), gemma.Gemma(config), ignored)


def gemma_state_dict(params: Mapping[str, Any],
                     config: gemma.GemmaConfig) -> dict[str, np.ndarray]:
  """The inverse of `gemma_params`, without copies of tied weights."""
  return _write(params, _gemma_pairs(config))


def _t5_pairs(config: t5.T5Config) -> Pairs:
  yield 'token_embedder/embedding', 'shared.weight'
  if not config.logits_via_embedding:
    yield 'decoder/logits_dense/kernel', 'lm_head.weight'
  gated = len(config.mlp_activations) > 1
  mlp = ('wi_0', 'wi_1', 'wo') if gated else ('wi', 'wo')
  attention = dict(query='q', key='k', value='v', out='o')
  stacks = dict(
      encoder=(config.num_encoder_layers,
               [('attention', 'SelfAttention', 'attention')]),
      decoder=(config.num_decoder_layers,
               [('self_attention', 'SelfAttention', 'self_attention'),
                ('encoder_decoder_attention', 'EncDecAttention',
                 'cross_attention')]))
  for stack, (depth, blocks) in stacks.items():
    yield f'{stack}/{stack}_norm/scale', f'{stack}.final_layer_norm.weight'
    yield (f'{stack}/relpos_bias/rel_embedding',
           f'{stack}.block.0.layer.0.SelfAttention.'
           'relative_attention_bias.weight')
    for i in range(depth):
      ours, theirs = f'{stack}/layers_{i}', f'{stack}.block.{i}.layer'
      for j, (block, name, label) in enumerate(blocks):
        yield (f'{ours}/pre_{label}_layer_norm/scale',
               f'{theirs}.{j}.layer_norm.weight')
        for a, b in attention.items():
          yield f'{ours}/{block}/{a}/kernel', f'{theirs}.{j}.{name}.{b}.weight'
      j = len(blocks)
      yield (f'{ours}/pre_mlp_layer_norm/scale',
             f'{theirs}.{j}.layer_norm.weight')
      for name in mlp:
        yield (f'{ours}/mlp/{name}/kernel',
               f'{theirs}.{j}.DenseReluDense.{name}.weight')


def _gemma_pairs(config: gemma.GemmaConfig) -> Pairs:
  yield 'token_embedder/embedding', 'model.embed_tokens.weight'
  yield 'decoder/decoder_norm/scale', 'model.norm.weight'
  if not config.logits_via_embedding:
    yield 'decoder/logits_dense/kernel', 'lm_head.weight'
  names = {
      'self_attention/query/kernel': 'self_attn.q_proj.weight',
      'self_attention/key/kernel': 'self_attn.k_proj.weight',
      'self_attention/value/kernel': 'self_attn.v_proj.weight',
      'self_attention/out/kernel': 'self_attn.o_proj.weight',
      'mlp/wi_0/kernel': 'mlp.gate_proj.weight',
      'mlp/wi_1/kernel': 'mlp.up_proj.weight',
      'mlp/wo/kernel': 'mlp.down_proj.weight',
      'pre_attention_norm/scale': 'input_layernorm.weight',
      'pre_mlp_norm/scale': 'post_attention_layernorm.weight'}
  if config.post_norms:
    names |= {
        'post_attention_norm/scale': 'post_attention_layernorm.weight',
        'pre_mlp_norm/scale': 'pre_feedforward_layernorm.weight',
        'post_mlp_norm/scale': 'post_feedforward_layernorm.weight'}
  if config.qk_norm:
    names |= {'self_attention/query_norm/scale': 'self_attn.q_norm.weight',
              'self_attention/key_norm/scale': 'self_attn.k_norm.weight'}
  if config.qkv_bias:
    names |= {'self_attention/query_bias': 'self_attn.q_proj.bias',
              'self_attention/key_bias': 'self_attn.k_proj.bias',
              'self_attention/value_bias': 'self_attn.v_proj.bias'}
  for i in range(config.num_layers):
    for ours, theirs in names.items():
      yield f'decoder/layers_{i}/{ours}', f'model.layers.{i}.{theirs}'


def _read(state: State, pairs: Pairs, lm: Any, ignored: tuple[str, ...]):
  """Their state dict -> our tree; names and shapes have to agree."""
  pairs = dict(pairs)
  missing = sorted(set(pairs.values()) - set(state))
  superfluous = sorted(set(state) - set(pairs.values()) - set(ignored))
  if missing or superfluous:
    raise ValueError(f'The checkpoint does not fit {lm.config}: missing '
                     f'{missing[:5]}, superfluous {superfluous[:5]}.')
  flat = {ours: _turn(ours, state[theirs]) for ours, theirs in pairs.items()}
  shapes = jax.eval_shape(lm.init_params, jax.random.key(0))
  for ours, want in traverse_util.flatten_dict(shapes, sep='/').items():
    if flat[ours].shape != want.shape:
      raise ValueError(f'{pairs[ours]} has shape {state[pairs[ours]].shape}; '
                       f'{ours} needs {want.shape} after transposition.')
  return traverse_util.unflatten_dict(flat, sep='/')


def _write(params: Mapping[str, Any], pairs: Pairs) -> dict[str, np.ndarray]:
  """Our tree -> their state dict."""
  flat = traverse_util.flatten_dict(params, sep='/')
  return {theirs: _turn(ours, flat[ours]) for ours, theirs in pairs}


def _turn(ours: str, array: Any) -> np.ndarray:
  """Transposes what the two layouts store the other way round."""
  array = np.asarray(array)
  return array if ours.endswith('embedding') and 'rel_' not in ours else array.T


def _activation(config: Mapping[str, Any], is_gemma: bool) -> str:
  """Our name of an activation; a Gemma's "gelu" means the tanh formula."""
  name = config.get('hidden_activation') or config.get('hidden_act')
  if is_gemma and name in (None, 'gelu'):
    name = 'gelu_pytorch_tanh'
  if name not in GEMMA_ACTIVATIONS:
    raise ValueError(f'Activation {name!r} is not supported; allowed: '
                     f'{", ".join(GEMMA_ACTIVATIONS)}.')
  return GEMMA_ACTIVATIONS[name]


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
  """The window of every layer; 0 sees everything."""
  window, layers = config.get('sliding_window') or 0, config.get('layer_types')
  if layers:
    return tuple(window if kind == 'sliding_attention' else 0
                 for kind in layers)
  if config.get('use_sliding_window'):
    raise ValueError('use_sliding_window needs layer_types, which say which '
                     'layers have a window.')
  period = config.get('sliding_window_pattern', 1)
  return (window,) * (period - 1) + (0,)


def _ropes(config: Mapping[str, Any]) -> tuple[gemma.Rope, gemma.Rope]:
  """Rotary frequencies of layers without and with a window."""
  base = config.get('rope_theta', 10_000.)
  old = {'rope_theta': base, **(config.get('rope_scaling') or {})}
  given = config.get('rope_parameters') or old
  local = {'rope_theta': config['rope_local_base_freq']} if (
      'rope_local_base_freq' in config) else given
  return (_rope(given.get('full_attention', given)),
          _rope(given.get('sliding_attention', local)))


def _rope(config: Mapping[str, Any]) -> gemma.Rope:
  kind = config.get('rope_type', config.get('type', 'default'))
  base = config['rope_theta']
  if kind == 'default':
    return gemma.Rope(base)
  if kind == 'linear':
    return gemma.Rope(base, config['factor'])
  if kind == 'llama3':
    return gemma.Rope(
        base, config['factor'], config['original_max_position_embeddings'],
        config['low_freq_factor'], config['high_freq_factor'])
  raise ValueError(f'Rotary embeddings of type {kind!r} are not supported; '
                   'allowed: default, linear, llama3.')
