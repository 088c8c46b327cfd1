"""Presets have the sizes that were published, and gin files name them."""
import math
import pathlib
import re
import sys

import pytest

from spec_cascades.checkpoints import hub_config, hub_writing, loading
from spec_cascades.models import gemma, presets, t5

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402

from spec_cascades.training import loop  # noqa: E402

# Parameters of the public checkpoints, tied weights once.
T5_1_1 = dict(small=76_961_152, base=247_577_856, large=783_150_080,
              xl=2_849_757_184, xxl=11_135_332_352)
COUNTS = dict(
    t5_small=60_506_624, t5_base=222_903_552, t5_large=737_668_096,
    t5_3b=2_851_598_336, t5_11b=11_307_321_344,
    mt5_small=300_176_768, mt5_base=582_401_280, mt5_large=1_229_581_312,
    mt5_xl=3_742_619_648, mt5_xxl=12_921_057_280,
    gemma_2b=2_506_172_416, gemma_7b=8_537_680_896,
    gemma2_2b=2_614_341_888, gemma2_9b=9_241_705_984,
    gemma2_27b=27_227_128_320, gemma3_270m=268_098_176,
    gemma3_1b=999_885_952, llama2_7b=6_738_415_616,
    llama2_13b=13_015_864_320, llama2_70b=68_976_648_192,
    llama3_8b=8_030_261_248, llama3_70b=70_553_706_496,
    llama3_1_8b=8_030_261_248, llama3_1_70b=70_553_706_496,
    llama3_3_70b=70_553_706_496,
    llama3_2_1b=1_235_814_400, llama3_2_3b=3_212_749_824,
    smollm2_135m=134_515_008, smollm2_360m=361_821_120,
    smollm2_1_7b=1_711_376_384, qwen2_0_5b=494_032_768,
    qwen2_1_5b=1_543_714_304, qwen2_5_3b=3_085_938_688,
    qwen2_7b=7_615_616_512, qwen2_5_14b=14_770_033_664,
    qwen2_5_32b=32_763_876_352, qwen2_72b=72_706_203_648,
    qwen2_5_0_5b=494_032_768, qwen2_5_1_5b=1_543_714_304,
    qwen2_5_7b=7_615_616_512, qwen2_5_72b=72_706_203_648,
    qwen3_0_6b=596_049_920, qwen3_8b=8_190_735_360,
    **{f'{family}_{size}': count for size, count in T5_1_1.items()
       for family in ('t5_1_1', 't5_lm_adapt', 'flan_t5')})
# What publishers round: millions without the embedding (Gemma 3's report),
# billions with it.
GEMMA3 = dict(gemma3_4b=3_209, gemma3_12b=10_759, gemma3_27b=25_600)
BILLIONS = dict(llama3_1_405b=405., qwen3_1_7b=1.7, qwen3_4b=4.,
                qwen3_14b=14.8, qwen3_32b=32.8)


def sizes(name):
  return {key: math.prod(shape)
          for key, shape in loading.expected(presets.model(name)).items()}


@pytest.mark.parametrize('name', presets.PRESETS)
def test_parameters_are_as_many_as_published(name):
  found = sizes(name)
  total = sum(found.values())
  if name in GEMMA3:
    rest = total - found['token_embedder/embedding']
    assert round(rest / 1e6) == GEMMA3[name]
  elif name in BILLIONS:
    assert abs(total / 1e9 - BILLIONS[name]) < .02 * BILLIONS[name]
  else:
    assert total == COUNTS[name]


def test_one_layer_stands_for_all():
  import jax
  from flax import traverse_util
  for lm in (presets.model('t5_1_1_small', vocab_size=64),
             presets.model('gemma3_270m', vocab_size=64)):
    whole = jax.eval_shape(lm.init_params, jax.random.key(0))
    flat = traverse_util.flatten_dict(whole, sep='/')
    assert loading.expected(lm) == {k: x.shape for k, x in flat.items()}


@pytest.mark.parametrize('name', presets.PRESETS)
def test_hugging_face_has_the_same_model(name):
  config = presets.PRESETS[name]
  again = hub_config.model(hub_writing.describe(config)).config
  assert hub_writing.describe(again) == hub_writing.describe(config)
  hub_config.check(config)


@pytest.mark.parametrize('file', ['t5', 'decoder_only'])
def test_gin_files_make_every_model_that_they_name(file):
  import gin
  path = ROOT / f'gin/models/{file}.gin'
  head = re.sub(r'\n#', ' ', path.read_text().split('Command')[0])
  text = re.sub(r'\s+', '', head)
  named = set()
  for group in re.findall(r'\{([\w,]+)\}_\{([\w,]+)\}', text):
    named |= {f'{a}_{b}' for a in group[0].split(',')
              for b in group[1].split(',')}
  for stem, names in re.findall(r'(?<![}\w])(\w+)_\{([\w,]+)\}', text):
    named |= {f'{stem}_{name}' for name in names.split(',')}
  kind = t5.T5 if file == 't5' else gemma.Gemma
  assert named == {name for name in presets.PRESETS
                   if type(presets.model(name)) is kind}
  for name in sorted(named)[:3]:
    _cli.configure([str(path)], [f"PRESET = '{name}'", 'VOCAB_SIZE = 77'])
    made = gin.query_parameter('loop.Run.lm').scoped_configurable_fn()
    assert made == presets.model(name, vocab_size=77)
    assert made.vocab_size == 77 and loop.Run
  gin.clear_config()


def test_misuse_is_refused():
  with pytest.raises(ValueError, match="preset 't5_2_0'; allowed: t5_small, "):
    presets.model('t5_2_0')
  for name in ('t5_small', 'gemma_2b'):
    assert presets.model(name, dropout_rate=.1).config.dropout_rate == .1
  assert presets.model('llama3_8b', dtype='bfloat16').config.dtype == 'bfloat16'
