"""Checkpoints in Hugging Face's layout <-> ours, as pure functions.

A state dict maps names to numpy arrays; what reads files is the caller's
choice. One table per family pairs the names of both sides and serves both
directions, for arrays and for leaves that are not read yet. Linear weights are
[out, in] there and [in, out] here. Configurations are `hub_config`'s.
"""
from __future__ import annotations

from typing import Any, Collection, Iterator, Mapping, NamedTuple

from flax import traverse_util
import jax
import numpy as np

from spec_cascades.checkpoints import hub_config
from spec_cascades.models import gemma
from spec_cascades.models import t5

State = Mapping[str, np.ndarray]
Pairs = Iterator[tuple[str, str]]      # ours, with slashes, and theirs

# Copies of weights that are read elsewhere.
T5_COPIES = ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')
HEAD = 'lm_head.weight'
EMBEDDING = 'embed_tokens.weight'
# Constants, and a table that no version of T5 uses.
UNUSED = ('rotary_emb.inv_freq', 'attn.masked_bias',
          'EncDecAttention.relative_attention_bias.weight')
# Parts of a multimodal model that do not read text.
OTHER_SENSES = ('vision_tower', 'multi_modal_projector', 'vision_model')

t5_config, gemma_config = hub_config.t5_config, hub_config.gemma_config


class Names(NamedTuple):
  """Who is who among the arrays of a checkpoint.

  Attributes:
    wanted: What the tables call an array -> what the checkpoint calls it.
    copies: Names of arrays that have to equal the embedding.
    left_over: Names of arrays that nothing reads.
  """
  wanted: dict[str, str]
  copies: tuple[str, ...]
  left_over: tuple[str, ...]


def pairs(config: Any) -> Pairs:
  """Names of all parameters, ours and theirs."""
  return PAIRS[type(config)](config)


def is_turned(ours: str) -> bool:
  """Whether the two layouts store an array the other way round."""
  return not ours.endswith('embedding') or 'rel_' in ours


def names(found: Collection[str], config: Any) -> Names:
  """Finds the language model among the arrays of a checkpoint."""
  known = {theirs for _, theirs in pairs(config)}
  if isinstance(config, t5.T5Config):
    wanted = {name: name for name in found}
    copies = T5_COPIES
  else:
    prefix = next((name for name in sorted(found) if name.endswith(EMBEDDING)),
                  EMBEDDING).removesuffix(EMBEDDING)
    wanted = {'model.' + name.removeprefix(prefix): name for name in found
              if name.startswith(prefix)}
    copies = ()
  heads = tuple(sorted(name for name in found if name.endswith(HEAD)))
  if HEAD in known:
    wanted |= dict(zip([HEAD], heads))
  else:
    copies += heads
  wanted = {theirs: name for theirs, name in wanted.items() if theirs in known}
  read = {*wanted.values(), *copies}
  rest = [name for name in found if name not in read
          and not name.endswith(UNUSED)
          and not set(name.split('.')) & set(OTHER_SENSES)]
  return Names(wanted, tuple(x for x in copies if x in found), tuple(rest))


def t5_params(state: State, config: t5.T5Config) -> dict[str, Any]:
  """Parameters of a `T5ForConditionalGeneration` in our checkpoint layout.

  Raises:
    ValueError: A weight is missing, superfluous or of the wrong shape.
  """
  return _read(state, t5.T5(config))


def t5_state_dict(params: Mapping[str, Any],
                  config: t5.T5Config) -> dict[str, np.ndarray]:
  """The inverse of `t5_params`, without copies of tied weights."""
  return _write(params, config)


def gemma_params(state: State, config: gemma.GemmaConfig) -> dict[str, Any]:
  """Parameters of a causal language model in our checkpoint layout.

  Reads the language model of a multimodal checkpoint, too.

  Raises:
    ValueError: A weight is missing, superfluous or of the wrong shape.
  """
  return _read(state, gemma.Gemma(config))


def gemma_state_dict(params: Mapping[str, Any],
                     config: gemma.GemmaConfig) -> dict[str, np.ndarray]:
  """The inverse of `gemma_params`, without copies of tied weights."""
  return _write(params, config)


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


PAIRS = {t5.T5Config: _t5_pairs, gemma.GemmaConfig: _gemma_pairs}


def _read(state: State, lm: Any) -> dict[str, Any]:
  """Their state dict -> our tree; names and shapes have to agree."""
  table, found = dict(pairs(lm.config)), names(state, lm.config)
  missing = sorted(set(table.values()) - set(found.wanted))
  if missing or found.left_over:
    raise ValueError(
        f'The checkpoint does not fit {lm.config}: missing {missing[:5]}, '
        f'superfluous {sorted(found.left_over)[:5]}.')
  flat = {ours: _turn(ours, state[found.wanted[theirs]])
          for ours, theirs in table.items()}
  shapes = jax.eval_shape(lm.init_params, jax.random.key(0))
  for ours, want in traverse_util.flatten_dict(shapes, sep='/').items():
    if flat[ours].shape != want.shape:
      raise ValueError(f'{table[ours]} has shape {flat[ours].shape} after '
                       f'transposition; {ours} needs {want.shape}.')
  return traverse_util.unflatten_dict(flat, sep='/')


def _write(params: Mapping[str, Any], config: Any) -> dict[str, np.ndarray]:
  """Our tree -> their state dict."""
  flat = traverse_util.flatten_dict(params, sep='/')
  return {theirs: _turn(ours, flat[ours]) for ours, theirs in pairs(config)}


def _turn(ours: str, array: Any) -> np.ndarray:
  """Transposes what the two layouts store the other way round."""
  return np.asarray(array).T if is_turned(ours) else np.asarray(array)
