"""Published models by name: sizes of T5s, Gemmas, Llamas, SmolLM2s and Qwens.

A checkpoint brings its own configuration; these are for training such a model
from scratch, and for counting. Names are those of the publishers.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

from spec_cascades.models import gemma
from spec_cascades.models import positions
from spec_cascades.models import t5

_gemma2 = functools.partial(
    gemma.GemmaConfig, 256_000, post_norms=True, windows=(4096, 0),
    attention_soft_cap=50., logit_soft_cap=30.)
_gemma3 = functools.partial(
    gemma.GemmaConfig, post_norms=True, qk_norm=True, windows=(512,) * 5 + (0,),
    rope=positions.Rope(1_000_000.))
# Those that also see images have longer contexts and 64 rows to spare.
_gemma3_long = functools.partial(
    _gemma3, 262_208, windows=(1024,) * 5 + (0,),
    rope=positions.Rope(1_000_000., 8.))
_llama = functools.partial(
    gemma.GemmaConfig, mlp_activation='silu', norm_epsilon=1e-5, norm_offset=0.,
    scale_embedding=False, logits_via_embedding=False)
_llama2 = functools.partial(_llama, 32_000, head_dim=128)
_llama3 = functools.partial(_llama, 128_256, num_kv_heads=8, head_dim=128)
_smollm2 = functools.partial(
    _llama, 49_152, rope=positions.Rope(100_000.), logits_via_embedding=True)
_qwen = functools.partial(
    _llama, norm_epsilon=1e-6, rope=positions.Rope(1_000_000.))
_qwen2 = functools.partial(_qwen, qkv_bias=True, head_dim=128)
_qwen3 = functools.partial(
    _qwen, 151_936, qk_norm=True, num_kv_heads=8, head_dim=128)
_tied = functools.partial(_qwen2, 151_936, logits_via_embedding=True)


def _t5_1_0(width, heads, layers, head_dim, mlp_dim):
  return t5.T5Config(32_128, width, heads, layers, layers, head_dim, mlp_dim,
                     ('relu',), logits_via_embedding=True)


def _t5_1_1(vocab_size, width, heads, layers, mlp_dim):
  return t5.T5Config(vocab_size, width, heads, layers, layers, 64, mlp_dim)


def _rope3(factor):
  return positions.Rope(500_000., factor, 8192)


# Width, heads and layers (of each stack), and inner width of the MLP.
_T5_1_1 = dict(
    small=(512, 6, 8, 1024), base=(768, 12, 12, 2048),
    large=(1024, 16, 24, 2816), xl=(2048, 32, 24, 5120),
    xxl=(4096, 64, 24, 10_240))
# Width, layers, heads and inner width of the MLP.
_LLAMA3 = {'8b': (4096, 32, 32, 14_336), '70b': (8192, 80, 64, 28_672)}

T5 = {
    't5_small': _t5_1_0(512, 8, 6, 64, 2048),
    't5_base': _t5_1_0(768, 12, 12, 64, 3072),
    't5_large': _t5_1_0(1024, 16, 24, 64, 4096),
    't5_3b': _t5_1_0(1024, 32, 24, 128, 16_384),
    't5_11b': _t5_1_0(1024, 128, 24, 128, 65_536),
    # LM-adapted and FLAN models are v1.1 models that were trained further.
    **{f'{family}_{size}': _t5_1_1(32_128, *shape)
       for family in ('t5_1_1', 't5_lm_adapt', 'flan_t5')
       for size, shape in _T5_1_1.items()},
    **{f'mt5_{size}': _t5_1_1(250_112, *shape)
       for size, shape in _T5_1_1.items()},
}
GEMMA = {
    'gemma_2b': gemma.GemmaConfig(256_000, 2048, 18, 8, 1, 256, 16_384),
    'gemma_7b': gemma.GemmaConfig(256_000, 3072, 28, 16, 16, 256, 24_576),
    'gemma2_2b': _gemma2(2304, 26, 8, 4, mlp_dim=9216),
    'gemma2_9b': _gemma2(3584, 42, 16, 8, mlp_dim=14_336),
    'gemma2_27b': _gemma2(4608, 46, 32, 16, 128, 36_864,
                          query_scale=144**-0.5),
    'gemma3_270m': _gemma3(262_144, 640, 18, 4, 1, mlp_dim=2048),
    'gemma3_1b': _gemma3(262_144, 1152, 26, 4, 1, mlp_dim=6912),
    'gemma3_4b': _gemma3_long(emb_dim=2560, num_layers=34, num_heads=8,
                         num_kv_heads=4, mlp_dim=10_240),
    'gemma3_12b': _gemma3_long(emb_dim=3840, num_layers=48, num_heads=16,
                          num_kv_heads=8, mlp_dim=15_360),
    'gemma3_27b': _gemma3_long(emb_dim=5376, num_layers=62, num_heads=32,
                          num_kv_heads=16, head_dim=128, mlp_dim=21_504,
                          query_scale=168**-0.5),
}
LLAMA = {
    'llama2_7b': _llama2(4096, 32, 32, 32, mlp_dim=11_008),
    'llama2_13b': _llama2(5120, 40, 40, 40, mlp_dim=13_824),
    'llama2_70b': _llama2(8192, 80, 64, 8, mlp_dim=28_672),
    **{f'llama{version}_{size}': _llama3(width, layers, heads, mlp_dim=mlp_dim,
                                         rope=rope)
       for version, rope in (('3', positions.Rope(500_000.)),
                             ('3_1', _rope3(8.)))
       for size, (width, layers, heads, mlp_dim) in _LLAMA3.items()},
    'llama3_3_70b': _llama3(8192, 80, 64, mlp_dim=28_672, rope=_rope3(8.)),
    'llama3_1_405b': _llama3(16_384, 126, 128, mlp_dim=53_248, rope=_rope3(8.)),
    'llama3_2_1b': _llama3(2048, 16, 32, head_dim=64, mlp_dim=8192,
                           rope=_rope3(32.), logits_via_embedding=True),
    'llama3_2_3b': _llama3(3072, 28, 24, mlp_dim=8192, rope=_rope3(32.),
                           logits_via_embedding=True),
}
SMOLLM2 = {
    'smollm2_135m': _smollm2(576, 30, 9, 3, 64, 1536),
    'smollm2_360m': _smollm2(960, 32, 15, 5, 64, 2560),
    'smollm2_1_7b': _llama(49_152, 2048, 24, 32, 32, 64, 8192,
                           rope=positions.Rope(130_000.),
                           logits_via_embedding=True),
}
# Sizes that versions 2 and 2.5 share. From 14B on the base models' epsilon is
# 1e-5, as here, and 1e-6 that of those fine-tuned to instructions, whose
# checkpoints say so.
_QWEN2 = {
    '0_5b': _tied(896, 24, 14, 2, head_dim=64, mlp_dim=4864),
    '1_5b': _tied(1536, 28, 12, 2, mlp_dim=8960),
    '7b': _qwen2(152_064, 3584, 28, 28, 4, mlp_dim=18_944),
    '72b': _qwen2(152_064, 8192, 80, 64, 8, mlp_dim=29_568, norm_epsilon=1e-5)}
QWEN = {
    **{f'{version}_{size}': config for version in ('qwen2', 'qwen2_5')
       for size, config in _QWEN2.items()},
    'qwen2_5_3b': _tied(2048, 36, 16, 2, mlp_dim=11_008),
    'qwen2_5_14b': _qwen2(152_064, 5120, 48, 40, 8, mlp_dim=13_824,
                          norm_epsilon=1e-5),
    'qwen2_5_32b': _qwen2(152_064, 5120, 64, 40, 8, mlp_dim=27_648,
                          norm_epsilon=1e-5),
    'qwen3_0_6b': _qwen3(1024, 28, 16, mlp_dim=3072, logits_via_embedding=True),
    'qwen3_1_7b': _qwen3(2048, 28, 16, mlp_dim=6144, logits_via_embedding=True),
    'qwen3_4b': _qwen3(2560, 36, 32, mlp_dim=9728, logits_via_embedding=True),
    'qwen3_8b': _qwen3(4096, 36, 32, mlp_dim=12_288),
    'qwen3_14b': _qwen3(5120, 40, 40, mlp_dim=17_408),
    'qwen3_32b': _qwen3(5120, 64, 64, mlp_dim=25_600),
}
PRESETS = {**T5, **GEMMA, **LLAMA, **SMOLLM2, **QWEN}


def model(name: str, *, vocab_size: int | None = None, dtype: str = 'float32',
          dropout_rate: float = 0.) -> Any:
  """A published model without its weights.

  Args:
    name: One of `PRESETS`.
    vocab_size: Replaces the published one.
    dtype: Of activations and caches.
    dropout_rate: Of what is trained; published decoders had none.

  Raises:
    ValueError: Unknown name.
  """
  if not isinstance(name, str) or name not in PRESETS:
    raise ValueError(f'Unknown preset {name!r}; allowed: {", ".join(PRESETS)}.')
  config = PRESETS[name]
  made = dataclasses.replace(config, dtype=dtype, dropout_rate=dropout_rate,
                             vocab_size=vocab_size or config.vocab_size)
  return t5.T5(made) if isinstance(made, t5.T5Config) else gemma.Gemma(made)
