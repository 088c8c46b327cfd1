"""Random models of transformers, with logits of a few units, as directories."""
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny

LONG = 24                              # tokens: longer than every window
TOKENS = np.random.default_rng(0).integers(1, tiny.VOCAB, (2, LONG))
INPUTS = np.array(tiny.inputs_of(tiny.LMS['t5_1_1'], rows=2, width=9))
SHIFTED = np.concatenate([np.zeros((2, 1), int), TOKENS[:, :-1]], 1)
LLAMA3 = dict(rope_type='llama3', rope_theta=5e5, factor=8.,
              original_max_position_embeddings=16, low_freq_factor=1.,
              high_freq_factor=4.)
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type='linear', factor=8., rope_theta=1e6),
    sliding_attention=dict(rope_type='default', rope_theta=1e4))
SIZES = dict(
    vocab_size=tiny.VOCAB, hidden_size=16, intermediate_size=24,
    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=6, max_position_embeddings=64)
GEMMA3 = dict(sliding_window=5, query_pre_attn_scalar=9,
              rope_parameters=GEMMA3_ROPE, layer_types=[
                  'sliding_attention', 'full_attention', 'sliding_attention'])
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
              num_attention_heads=2, image_size=8, patch_size=4)
T5 = dict(vocab_size=tiny.VOCAB, d_model=16, d_kv=6, d_ff=24, num_layers=2,
          num_decoder_layers=3, num_heads=3, relative_attention_num_buckets=8,
          relative_attention_max_distance=12)
GATED = dict(T5, feed_forward_proj='gated-gelu')
FAMILIES = dict(
    gemma=('gemma', SIZES | dict(num_key_value_heads=1)),
    gemma2=('gemma2', SIZES | dict(
        sliding_window=5, attn_logit_softcapping=3.,
        final_logit_softcapping=8., query_pre_attn_scalar=4)),
    gemma3=('gemma3_text', SIZES | GEMMA3 | dict(final_logit_softcapping=9.)),
    gemma3_vision=('gemma3', dict(
        text_config=SIZES | GEMMA3, vision_config=VISION,
        mm_tokens_per_image=4)),
    llama2=('llama', SIZES | dict(num_key_value_heads=4, head_dim=4,
                                  rms_norm_eps=1e-5)),
    llama3=('llama', SIZES | dict(rope_parameters=LLAMA3)),
    smollm2=('llama', SIZES | dict(tie_word_embeddings=True, rope_theta=1e5)),
    qwen2=('qwen2', SIZES | dict(head_dim=4)),
    qwen2_windows=('qwen2', SIZES | dict(
        head_dim=4, tie_word_embeddings=True, use_sliding_window=True,
        sliding_window=5, max_window_layers=1)),
    qwen3=('qwen3', SIZES | dict(tie_word_embeddings=True)),
    t5_1_0=('t5', T5), t5_1_1=('t5', GATED | dict(tie_word_embeddings=False)),
    mt5=('mt5', GATED), t5_tied_unscaled=('mt5', GATED))
# What decodes like that and is stored by older versions of transformers.
VERSION_4 = dict(
    t5_1_0={}, t5_1_1=dict(tie_word_embeddings=False),
    mt5=dict(tie_word_embeddings=False))


@functools.cache
def model(name):
  """A random model; T5's head is its own unless the name says otherwise."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  family, options = FAMILIES[name]
  config = transformers.AutoConfig.for_model(family, **options)
  config._attn_implementation = 'eager'
  kind = getattr(transformers, transformers.models.auto.modeling_auto.
                 MODEL_MAPPING_NAMES[family].replace('Text', '').removesuffix(
                     'Model') + ('ForConditionalGeneration' if family in (
                         't5', 'mt5', 'gemma3') else 'ForCausalLM'))
  with torch.random.fork_rng():
    torch.manual_seed(0)                  # of what transformers draws
    made = kind(config).eval()
  generator = torch.Generator().manual_seed(0)
  if name in ('t5_1_1', 'mt5'):
    made.lm_head.weight = torch.nn.Parameter(made.shared.weight / 3)
  with torch.no_grad():
    for weight in made.parameters():
      wide = weight.ndim == 2 and not family.endswith('t5')
      scale = weight.shape[-1]**-.5 if wide else .2
      weight.add_(torch.randn(weight.shape, generator=generator) * scale)
  return made


def save(name, directory, made=None, **options):
  """Writes a model the way transformers does."""
  (made or model(name)).save_pretrained(directory, **options)
  return directory


def edit(directory, **changes):
  """Changes config.json; a value of ... removes the key."""
  path = directory / 'config.json'
  config = json.loads(path.read_text()) | changes
  path.write_text(json.dumps(
      {key: x for key, x in config.items() if x is not ...}))


def words(directory, size=tiny.VOCAB, specials=(), **says):
  """Writes a tokenizer.json of letters and more; 0 pads, 1 ends a text."""
  tokenizers = pytest.importorskip('tokenizers')
  names = ['<pad>', '</s>', '<unk>', *'abcdefghijklmnopqrstuvwxyz']
  names += [f'w{i}' for i in range(len(names), size)]
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(
      {name: i for i, name in enumerate(names[:size])}, names[2 % size]))
  made.decoder = tokenizers.decoders.ByteLevel()
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False)
  made.add_special_tokens(list(specials))
  made.save(str(directory / 'tokenizer.json'))
  (directory / 'tokenizer_config.json').write_text(json.dumps(dict(
      eos_token='</s>', pad_token='<pad>', **says)))
  return made


def logits(made):
  """Teacher-forced logits of a model of transformers."""
  import torch
  if made.config.is_encoder_decoder:
    given = dict(input_ids=torch.asarray(INPUTS),
                 attention_mask=torch.asarray(INPUTS > 0),
                 decoder_input_ids=torch.asarray(SHIFTED))
  else:
    given = dict(input_ids=torch.asarray(TOKENS))
  with torch.no_grad():
    found = made(**given).logits.numpy()
  assert 1 < np.abs(found).max() < 30
  return found


def ours(lm, params):
  """Our logits of the same texts, without a cache."""
  reads = hasattr(lm.config, 'relative_buckets')
  return np.asarray(tiny.forward(
      lm, params, jnp.asarray(INPUTS) if reads else None,
      jnp.asarray(SHIFTED if reads else TOKENS)))


def read(directory):
  """Loads a directory with transformers."""
  import transformers
  described = json.loads((directory / 'config.json').read_text())
  kind = (transformers.AutoModelForSeq2SeqLM if 't5' in described['model_type']
          else transformers.AutoModelForCausalLM)
  made, report = kind.from_pretrained(
      directory, attn_implementation='eager', output_loading_info=True)
  assert not any(report[key] for key in ('missing_keys', 'unexpected_keys',
                                         'mismatched_keys')), report
  return made.eval()
