"""Gemma and Llama-like models: transformers' logits, windows, presets."""
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import types
from spec_cascades.checkpoints import huggingface
from spec_cascades.models import gemma, positions, presets
from tests.models import tiny

TOKENS = np.random.default_rng(0).integers(1, tiny.VOCAB, (2, 24))
SIZES = dict(
    vocab_size=tiny.VOCAB, hidden_size=16, intermediate_size=24,
    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=6, max_position_embeddings=64)
LLAMA3 = dict(rope_type='llama3', rope_theta=5e5, factor=8.,
              original_max_position_embeddings=16, low_freq_factor=1.,
              high_freq_factor=4.)
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type='linear', factor=8., rope_theta=1e6),
    sliding_attention=dict(rope_type='default', rope_theta=1e4))
FAMILIES = dict(
    gemma=dict(num_key_value_heads=1),
    gemma2=dict(sliding_window=5, attn_logit_softcapping=3.,
                final_logit_softcapping=8., query_pre_attn_scalar=4),
    gemma3_text=dict(sliding_window=5, sliding_window_pattern=3,
                     query_pre_attn_scalar=9, rope_parameters=GEMMA3_ROPE),
    llama=dict(rope_parameters=LLAMA3, tie_word_embeddings=False),
    llama_tied=dict(model_type='llama', tie_word_embeddings=True),
    qwen2=dict(tie_word_embeddings=False),
    qwen3=dict(tie_word_embeddings=True))
# Parameters that the publishers count, embeddings included.
COUNTS = dict(gemma_2b=2_506_172_416, gemma2_2b=2_614_341_888,
              gemma2_9b=9_241_705_984, gemma2_27b=27_227_128_320,
              gemma3_270m=268_098_176, gemma3_1b=999_885_952,
              smollm2_135m=134_515_008, smollm2_360m=361_821_120)


def reference(family):
  """A random transformers model: its configuration, weights and logits."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  options = dict(dict(model_type=family), **SIZES) | FAMILIES[family]
  config = transformers.AutoConfig.for_model(
      options.pop('model_type'), **options)
  model = transformers.AutoModelForCausalLM.from_config(
      config, attn_implementation='eager').eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for weight in model.parameters():
      scale = weight.shape[-1]**-.5 if weight.ndim == 2 else .3
      weight.add_(torch.randn(weight.shape, generator=generator) * scale)
    logits = model(torch.asarray(TOKENS)).logits.numpy()
  state = {name: x.numpy() for name, x in model.state_dict().items()}
  return config.to_dict(), state, logits


@pytest.mark.parametrize('family', FAMILIES)
def test_logits_equal_those_of_transformers(family):
  described, state, want = reference(family)
  config = huggingface.gemma_config(described)
  lm, params = gemma.Gemma(config), huggingface.gemma_params(state, config)
  got = tiny.forward(lm, params, None, jnp.asarray(TOKENS))
  assert 1 < np.abs(want).max() < 30
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
  back = huggingface.gemma_state_dict(params, config)
  assert set(state) - set(back) <= {'lm_head.weight'}
  for name, array in back.items():
    np.testing.assert_array_equal(array, state[name])


def test_checkpoints_that_do_not_fit_are_refused():
  lm = tiny.LMS['gemma2']
  state = huggingface.gemma_state_dict(tiny.params_of(lm), lm.config)
  read = lambda changes: huggingface.gemma_params(state | changes, lm.config)
  nested = {'language_model.' + name: x for name, x in state.items()}
  huggingface.gemma_params(nested | {'vision_tower.x': np.ones(1)}, lm.config)
  with pytest.raises(ValueError, match='superfluous .*o_proj.bias'):
    read({'model.layers.0.self_attn.o_proj.bias': np.ones(16)})
  with pytest.raises(ValueError, match='decoder/decoder_norm/scale needs'):
    read({'model.norm.weight': np.ones(3)})
  del state['model.norm.weight']
  with pytest.raises(ValueError, match='missing .*model.norm.weight'):
    read({})


def test_version_4_configurations_describe_the_presets():
  older = dict(
      gemma_2b=dict(
          model_type='gemma', vocab_size=256_000, hidden_size=2048,
          num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=1,
          intermediate_size=16_384, head_dim=256, hidden_act='gelu',
          hidden_activation=None, rope_theta=1e4, rope_scaling=None),
      gemma3_270m=dict(
          model_type='gemma3_text', vocab_size=262_144, hidden_size=640,
          num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1,
          intermediate_size=2048, sliding_window=512, rope_scaling=None,
          rope_theta=1e6, rope_local_base_freq=1e4, query_pre_attn_scalar=256),
      gemma2_27b=dict(
          model_type='gemma2', vocab_size=256_000, hidden_size=4608,
          num_hidden_layers=46, num_attention_heads=32, num_key_value_heads=16,
          intermediate_size=36_864, head_dim=128, query_pre_attn_scalar=144,
          hidden_activation='gelu_pytorch_tanh', rope_theta=1e4),
      smollm2_135m=dict(
          model_type='llama', vocab_size=49_152, hidden_size=576,
          num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
          intermediate_size=1536, hidden_act='silu', rms_norm_eps=1e-5,
          rope_theta=100_000, tie_word_embeddings=True))
  for name, described in older.items():
    want, got = presets.PRESETS[name], huggingface.gemma_config(described)
    scale = want.query_scale or want.head_dim**-.5
    assert (got.query_scale or got.head_dim**-.5) == pytest.approx(scale)
    loose = dict(query_scale=None)
    if not any(want.windows):
      loose |= dict(local_rope=want.local_rope)      # no layer uses it
    assert dataclasses.replace(got, **loose) == dataclasses.replace(
        want, query_scale=None)


def test_configurations_beyond_the_decoder_are_refused():
  llama = dict(model_type='llama', hidden_act='silu', **SIZES)
  huggingface.gemma_config(llama)
  scaled = dict(rope_type='yarn', rope_theta=1e4)
  for change, message in (
      (dict(model_type='mamba'), "'mamba' is not supported; allowed: gemma, "),
      (dict(mlp_bias=True), 'mlp_bias=True is not supported'),
      (dict(hidden_act='gelu'), "Activation 'gelu' is not supported"),
      (dict(use_sliding_window=True), 'needs layer_types'),
      (dict(use_sliding_window=True, max_window_layers=1, sliding_window=5),
       "sliding_window=5 is not possible for a 'llama'; allowed for: gemma2"),
      (dict(rope_parameters=scaled), "type 'yarn' are not supported")):
    with pytest.raises(ValueError, match=message):
      huggingface.gemma_config(llama | change)
  same = huggingface.gemma_config(llama | dict(sliding_window=5))
  assert same.windows == (0,)                  # no layer is said to have it


def test_only_gemma_1_calls_the_tanh_formula_gelu():
  read = lambda family, **says: huggingface.gemma_config(
      dict(SIZES, model_type=family, **says)).mlp_activation
  assert read('gemma', hidden_act='gelu') == 'gelu'
  for family in ('gemma2', 'gemma3_text'):
    assert read(family) == 'gelu'
    assert read(family, hidden_activation='gelu_pytorch_tanh') == 'gelu'
    with pytest.raises(ValueError, match="Activation 'gelu' is not supported"):
      read(family, hidden_activation='gelu')


def test_presets_have_the_published_parameter_counts():
  def count(config, layers):
    lm = gemma.Gemma(dataclasses.replace(config, num_layers=layers))
    shapes = jax.eval_shape(lm.init_params, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))

  for name in COUNTS:
    config = presets.PRESETS[name]
    rest = count(config, 0)
    layer = count(config, 1) - rest
    assert rest + config.num_layers * layer == COUNTS[name], name


def test_a_window_of_three_sees_two_tokens_back():
  config = dataclasses.replace(tiny.LMS['gemma1'].config, windows=(3,),
                               num_layers=1)
  lm = gemma.Gemma(config)
  params = tiny.params_of(lm)
  a = np.arange(1, 9)[None]
  b = np.where(a == 3, 30, a)                        # at position 2
  a, b = (tiny.forward(lm, params, None, jnp.asarray(x)) for x in (a, b))
  changed = np.abs(a - b).max((0, 2)) > 0
  np.testing.assert_array_equal(np.flatnonzero(changed), (2, 3, 4))


def test_rotation_is_by_distance_only():
  key = jax.random.key(0)
  query, keys = jax.random.normal(key, (2, 1, 1, 1, 8))
  def score(rope, i, j):
    turn = lambda x, at: positions.rotate(x, rope.angles(jnp.array([[at]]), 8))
    return float((turn(query, i) * turn(keys, j)).sum())

  for given in ((), (1e6, 8.), (5e5, 8., 16)):
    rope = positions.Rope(*given)
    far, near = score(rope, 104, 100), score(rope, 9, 5)
    assert near == pytest.approx(far, abs=1e-4)
    assert abs(near - score(rope, 9, 8)) > 1e-2


def test_llama3_scaling_keeps_fast_and_divides_slow_frequencies():
  plain = positions.Rope(5e5).frequencies(64)
  scaled = positions.Rope(5e5, 8., 8192).frequencies(64)
  np.testing.assert_allclose(scaled[:10], plain[:10])
  np.testing.assert_allclose(scaled[-10:], plain[-10:] / 8)
  assert np.all(np.diff(scaled) < 0)


def test_parameter_names_shapes_and_logical_axes():
  lm = gemma.Gemma(dataclasses.replace(
      tiny.LMS['gemma3'].config, num_layers=1, qkv_bias=True,
      logits_via_embedding=False))
  layer = 'decoder/layers_0/'
  want = {
      'token_embedder/embedding': ((31, 16), ('vocab', 'embed')),
      'decoder/decoder_norm/scale': ((16,), ('embed',)),
      'decoder/logits_dense/kernel': ((16, 31), ('embed', 'vocab')),
      layer + 'pre_attention_norm/scale': ((16,), ('embed',)),
      layer + 'post_attention_norm/scale': ((16,), ('embed',)),
      layer + 'pre_mlp_norm/scale': ((16,), ('embed',)),
      layer + 'post_mlp_norm/scale': ((16,), ('embed',)),
      layer + 'mlp/wi_0/kernel': ((16, 24), ('embed', 'mlp')),
      layer + 'mlp/wi_1/kernel': ((16, 24), ('embed', 'mlp')),
      layer + 'mlp/wo/kernel': ((24, 16), ('mlp', 'embed')),
      layer + 'self_attention/query/kernel': (
          (16, 128), ('embed', 'joined_kv')),
      layer + 'self_attention/key/kernel': ((16, 32), ('embed', 'joined_kv')),
      layer + 'self_attention/value/kernel': ((16, 32), ('embed', 'joined_kv')),
      layer + 'self_attention/out/kernel': ((128, 16), ('joined_kv', 'embed')),
      layer + 'self_attention/query_bias': ((128,), ('joined_kv',)),
      layer + 'self_attention/key_bias': ((32,), ('joined_kv',)),
      layer + 'self_attention/value_bias': ((32,), ('joined_kv',)),
      layer + 'self_attention/query_norm/scale': ((32,), ('kv',)),
      layer + 'self_attention/key_norm/scale': ((32,), ('kv',))}
  assert tiny.layout(lm, jnp.ones((1, 1), jnp.int32)) == want


def test_gradients_are_finite_and_reach_every_parameter():
  lm = tiny.LMS['gemma3']
  loss = lambda params: jnp.square(
      lm.module.apply({'params': params}, jnp.asarray(TOKENS))).mean()
  for gradient in jax.tree.leaves(jax.jit(jax.grad(loss))(tiny.params_of(lm))):
    assert np.isfinite(gradient).all() and np.any(gradient != 0)


def test_misuse_is_refused():
  with pytest.raises(ValueError, match="'tanh' in mlp_activation; allowed"):
    gemma.GemmaConfig(mlp_activation='tanh')
  with pytest.raises(ValueError, match='not a multiple of num_kv_heads=3'):
    gemma.GemmaConfig(num_kv_heads=3)
  with pytest.raises(ValueError, match=r'windows=\(\); allowed: one'):
    gemma.GemmaConfig(windows=())
  prompt = types.Prompt(jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32),
                        jnp.ones((1, 4), jnp.int32))
  with pytest.raises(ValueError, match='leave Prompt.inputs None'):
    tiny.LMS['gemma1'].init({}, prompt, 8)


def test_dropout_acts_in_training_only():
  config = tiny.LMS['gemma2'].config
  lm = gemma.Gemma(dataclasses.replace(config, dropout_rate=.5))
  plain, params = gemma.Gemma(config), tiny.params_of(lm)
  batch = dict(inputs=jnp.asarray(TOKENS), targets=jnp.asarray(TOKENS),
               input_lengths=jnp.asarray([5, 24]))
  run = jax.jit(lambda key: lm.teacher_forced(params, batch, dropout=key))
  a, b = run(jax.random.key(0)), run(jax.random.key(1))
  assert np.abs(a - b).max() > .1
  np.testing.assert_array_equal(a, run(jax.random.key(0)))
  np.testing.assert_array_equal(*(x.teacher_forced(params, batch)
                                  for x in (lm, plain)))
