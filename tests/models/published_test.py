"""Presets against the published config.json of each model, typed in here.

A row has the preset, the name on huggingface.co (of google, google-t5, Qwen,
meta-llama or HuggingFaceTB; Llama 3.3 as -Instruct only) and the numbers of its
config.json; what a family's models share follows.
"""
import pytest

from spec_cascades.checkpoints import hub_writing
from spec_cascades.models import layers
from spec_cascades.models import positions
from spec_cascades.models import presets

# Vocabulary, hidden and intermediate size; layers, heads, key/value heads, size
# of a head; rms_norm_eps, rope_theta, tie_word_embeddings.
DECODERS = '''
gemma_2b      gemma-2b         256000  2048 16384  18   8  1 256 1e-6   1e4 t
gemma_7b      gemma-7b         256000  3072 24576  28  16 16 256 1e-6   1e4 t
gemma2_2b     gemma-2-2b       256000  2304  9216  26   8  4 256 1e-6   1e4 t
gemma2_9b     gemma-2-9b       256000  3584 14336  42  16  8 256 1e-6   1e4 t
gemma2_27b    gemma-2-27b      256000  4608 36864  46  32 16 128 1e-6   1e4 t
gemma3_270m   gemma-3-270m     262144   640  2048  18   4  1 256 1e-6   1e6 t
gemma3_1b     gemma-3-1b-pt    262144  1152  6912  26   4  1 256 1e-6   1e6 t
gemma3_4b     gemma-3-4b-pt    262208  2560 10240  34   8  4 256 1e-6   1e6 t
gemma3_12b    gemma-3-12b-pt   262208  3840 15360  48  16  8 256 1e-6   1e6 t
gemma3_27b    gemma-3-27b-pt   262208  5376 21504  62  32 16 128 1e-6   1e6 t
llama2_7b     Llama-2-7b-hf     32000  4096 11008  32  32 32 128 1e-5   1e4 f
llama2_13b    Llama-2-13b-hf    32000  5120 13824  40  40 40 128 1e-5   1e4 f
llama2_70b    Llama-2-70b-hf    32000  8192 28672  80  64  8 128 1e-5   1e4 f
llama3_8b     Meta-Llama-3-8B  128256  4096 14336  32  32  8 128 1e-5   5e5 f
llama3_70b    Meta-Llama-3-70B 128256  8192 28672  80  64  8 128 1e-5   5e5 f
llama3_1_8b   Llama-3.1-8B     128256  4096 14336  32  32  8 128 1e-5   5e5 f
llama3_1_70b  Llama-3.1-70B    128256  8192 28672  80  64  8 128 1e-5   5e5 f
llama3_1_405b Llama-3.1-405B   128256 16384 53248 126 128  8 128 1e-5   5e5 f
llama3_2_1b   Llama-3.2-1B     128256  2048  8192  16  32  8  64 1e-5   5e5 t
llama3_2_3b   Llama-3.2-3B     128256  3072  8192  28  24  8 128 1e-5   5e5 t
llama3_3_70b  Llama-3.3-70B    128256  8192 28672  80  64  8 128 1e-5   5e5 f
smollm2_135m  SmolLM2-135M      49152   576  1536  30   9  3  64 1e-5   1e5 t
smollm2_360m  SmolLM2-360M      49152   960  2560  32  15  5  64 1e-5   1e5 t
smollm2_1_7b  SmolLM2-1.7B      49152  2048  8192  24  32 32  64 1e-5 1.3e5 t
qwen2_0_5b    Qwen2-0.5B       151936   896  4864  24  14  2  64 1e-6   1e6 t
qwen2_1_5b    Qwen2-1.5B       151936  1536  8960  28  12  2 128 1e-6   1e6 t
qwen2_7b      Qwen2-7B         152064  3584 18944  28  28  4 128 1e-6   1e6 f
qwen2_72b     Qwen2-72B        152064  8192 29568  80  64  8 128 1e-5   1e6 f
qwen2_5_0_5b  Qwen2.5-0.5B     151936   896  4864  24  14  2  64 1e-6   1e6 t
qwen2_5_1_5b  Qwen2.5-1.5B     151936  1536  8960  28  12  2 128 1e-6   1e6 t
qwen2_5_3b    Qwen2.5-3B       151936  2048 11008  36  16  2 128 1e-6   1e6 t
qwen2_5_7b    Qwen2.5-7B       152064  3584 18944  28  28  4 128 1e-6   1e6 f
qwen2_5_14b   Qwen2.5-14B      152064  5120 13824  48  40  8 128 1e-5   1e6 f
qwen2_5_32b   Qwen2.5-32B      152064  5120 27648  64  40  8 128 1e-5   1e6 f
qwen2_5_72b   Qwen2.5-72B      152064  8192 29568  80  64  8 128 1e-5   1e6 f
qwen3_0_6b    Qwen3-0.6B       151936  1024  3072  28  16  8 128 1e-6   1e6 t
qwen3_1_7b    Qwen3-1.7B       151936  2048  6144  28  16  8 128 1e-6   1e6 t
qwen3_4b      Qwen3-4B         151936  2560  9728  36  32  8 128 1e-6   1e6 t
qwen3_8b      Qwen3-8B         151936  4096 12288  36  32  8 128 1e-6   1e6 f
qwen3_14b     Qwen3-14B        151936  5120 17408  40  40  8 128 1e-6   1e6 f
qwen3_32b     Qwen3-32B        151936  5120 25600  64  64  8 128 1e-6   1e6 f
'''
KEYS = ('vocab_size', 'hidden_size', 'intermediate_size', 'num_hidden_layers',
        'num_attention_heads', 'num_key_value_heads', 'head_dim',
        'rms_norm_eps', 'rope_theta', 'tie_word_embeddings')
# What the rest of the file says, by the first word of the preset.
SHARED = dict(
    gemma=dict(model_type='gemma'),
    gemma2=dict(model_type='gemma2', sliding_window=4096,
                attn_logit_softcapping=50, final_logit_softcapping=30),
    gemma3=dict(model_type='gemma3_text', rope_local_base_freq=1e4,
                attn_logit_softcapping=None, final_logit_softcapping=None),
    llama2=dict(model_type='llama'), llama3=dict(model_type='llama'),
    smollm2=dict(model_type='llama'),
    qwen2=dict(model_type='qwen2', use_sliding_window=False),
    qwen3=dict(model_type='qwen3', use_sliding_window=False))
WINDOWS = dict(gemma3_270m=512, gemma3_1b=512, gemma3_4b=1024, gemma3_12b=1024,
               gemma3_27b=1024)
# query_pre_attn_scalar, where it is not the size of a head.
SCALARS = dict(gemma2_27b=144, gemma3_27b=168)
# How many layers with a window come before one without.
PATTERNS = dict(gemma2=1, gemma3=5)
LINEAR = dict.fromkeys(('gemma3_4b', 'gemma3_12b', 'gemma3_27b'), 8)
STRETCHED = dict(llama3_1_8b=8, llama3_1_70b=8, llama3_1_405b=8, llama3_2_1b=32,
                 llama3_2_3b=32, llama3_3_70b=8)

# Vocabulary, d_model, d_kv, d_ff, heads, layers of each stack,
# feed_forward_proj, tie_word_embeddings.
T5S = '''
t5_small          t5-small           32128  512  64  2048   8  6       relu t
t5_base           t5-base            32128  768  64  3072  12 12       relu t
t5_large          t5-large           32128 1024  64  4096  16 24       relu t
t5_3b             t5-3b              32128 1024 128 16384  32 24       relu t
t5_11b            t5-11b             32128 1024 128 65536 128 24       relu t
t5_1_1_small      t5-v1_1-small      32128  512  64  1024   6  8 gated-gelu f
t5_1_1_base       t5-v1_1-base       32128  768  64  2048  12 12 gated-gelu f
t5_1_1_large      t5-v1_1-large      32128 1024  64  2816  16 24 gated-gelu f
t5_1_1_xl         t5-v1_1-xl         32128 2048  64  5120  32 24 gated-gelu f
t5_1_1_xxl        t5-v1_1-xxl        32128 4096  64 10240  64 24 gated-gelu f
t5_lm_adapt_small t5-small-lm-adapt  32128  512  64  1024   6  8 gated-gelu f
t5_lm_adapt_base  t5-base-lm-adapt   32128  768  64  2048  12 12 gated-gelu f
t5_lm_adapt_large t5-large-lm-adapt  32128 1024  64  2816  16 24 gated-gelu f
t5_lm_adapt_xl    t5-xl-lm-adapt     32128 2048  64  5120  32 24 gated-gelu f
t5_lm_adapt_xxl   t5-xxl-lm-adapt    32128 4096  64 10240  64 24 gated-gelu f
flan_t5_small     flan-t5-small      32128  512  64  1024   6  8 gated-gelu f
flan_t5_base      flan-t5-base       32128  768  64  2048  12 12 gated-gelu f
flan_t5_large     flan-t5-large      32128 1024  64  2816  16 24 gated-gelu f
flan_t5_xl        flan-t5-xl         32128 2048  64  5120  32 24 gated-gelu f
flan_t5_xxl       flan-t5-xxl        32128 4096  64 10240  64 24 gated-gelu f
mt5_small         mt5-small         250112  512  64  1024   6  8 gated-gelu f
mt5_base          mt5-base          250112  768  64  2048  12 12 gated-gelu f
mt5_large         mt5-large         250112 1024  64  2816  16 24 gated-gelu f
mt5_xl            mt5-xl            250112 2048  64  5120  32 24 gated-gelu f
mt5_xxl           mt5-xxl           250112 4096  64 10240  64 24 gated-gelu f
'''
T5_KEYS = ('vocab_size', 'd_model', 'd_kv', 'd_ff', 'num_heads', 'num_layers',
           'feed_forward_proj', 'tie_word_embeddings')


def rows(table):
  """Preset, publisher's name and what its config.json says, by row."""
  kinds = dict(t=True, f=False)
  value = lambda x: kinds[x] if x in kinds else (
      x if x[0].isalpha() else float(x))
  lines = [line.split() for line in table.strip().splitlines()]
  return {name: (source, [value(x) for x in rest])
          for name, source, *rest in lines}


def scaling(name):
  if name in LINEAR:
    return dict(rope_type='linear', factor=LINEAR[name])
  if name in STRETCHED:
    return dict(rope_type='llama3', factor=STRETCHED[name], low_freq_factor=1,
                high_freq_factor=4, original_max_position_embeddings=8192)
  return None


def test_every_preset_is_in_one_table():
  assert sorted([*rows(DECODERS), *rows(T5S)]) == sorted(presets.PRESETS)
  assert {*WINDOWS, *SCALARS, *STRETCHED} < set(presets.PRESETS)


@pytest.mark.parametrize('name', rows(DECODERS))
def test_a_decoder_is_the_published_one(name):
  source, numbers = rows(DECODERS)[name]
  family = name.split('_')[0]
  want = dict(zip(KEYS, numbers, strict=True), rope_scaling=scaling(name),
              **SHARED[family])
  if family in PATTERNS:
    with_window = PATTERNS[family]
    want |= dict(
        query_pre_attn_scalar=SCALARS.get(name, want['head_dim']),
        sliding_window=WINDOWS.get(name, want.get('sliding_window')),
        layer_types=['full_attention' if i % (with_window + 1) == with_window
                     else 'sliding_attention'
                     for i in range(int(want['num_hidden_layers']))])
  told = hub_writing.describe(presets.PRESETS[name])
  assert {key: told[key] for key in want} == want, source
  config = presets.PRESETS[name]
  google = family.startswith('gemma')
  assert config.mlp_activation == ('gelu' if google else 'silu')
  assert (config.norm_offset, config.scale_embedding) == (google, google)
  assert config.qkv_bias == (family == 'qwen2')
  if family != 'gemma3':
    assert config.local_rope == (
        config.rope if family == 'gemma2' else positions.Rope())


@pytest.mark.parametrize('name', rows(T5S))
def test_a_t5_is_the_published_one(name):
  source, numbers = rows(T5S)[name]
  want = dict(zip(T5_KEYS, numbers, strict=True),
              relative_attention_num_buckets=32,
              relative_attention_max_distance=128, layer_norm_epsilon=1e-6)
  want['num_decoder_layers'] = want['num_layers']
  told = hub_writing.describe(presets.PRESETS[name])
  assert {key: told[key] for key in want} == want, source
  assert layers.RMSNorm().epsilon == 1e-6    # a T5 has no field for it
