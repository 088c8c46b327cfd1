"""T5: transformers' logits, T5X's parameter layout, padding."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import types
from spec_cascades.checkpoints import huggingface
from spec_cascades.models import positions, t5
from tests.models import tiny

INPUTS = np.array(tiny.inputs_of(tiny.LMS['t5_1_1'], rows=3, width=9))
SHIFTED = np.random.default_rng(0).integers(1, tiny.VOCAB, (3, 20))
SHIFTED[:, 0] = 0
VARIANTS = dict(
    t5_1_0=dict(feed_forward_proj='relu', tie_word_embeddings=True),
    t5_1_1=dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False))


@functools.cache
def reference(name):
  """A random transformers model: its configuration, weights and logits."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  config = transformers.T5Config(
      vocab_size=tiny.VOCAB, d_model=16, d_kv=6, d_ff=24, num_layers=2,
      num_decoder_layers=3, num_heads=3, relative_attention_num_buckets=8,
      relative_attention_max_distance=12, **VARIANTS[name])
  torch.manual_seed(0)                 # of what it begins with
  model = transformers.T5ForConditionalGeneration(config).eval()
  generator = torch.Generator().manual_seed(0)
  draw = lambda x: torch.randn(x.shape, generator=generator)
  with torch.no_grad():
    if not VARIANTS[name]['tie_word_embeddings']:
      model.lm_head.weight = torch.nn.Parameter(model.shared.weight / 3)
    for weight in model.parameters():
      weight.add_(draw(weight) * .2)
    mask = torch.asarray(INPUTS > 0)
    logits = model(input_ids=torch.asarray(INPUTS), attention_mask=mask,
                   decoder_input_ids=torch.asarray(SHIFTED)).logits.numpy()
  state = {key: x.numpy() for key, x in model.state_dict().items()}
  return config.to_dict(), state, logits


@pytest.mark.parametrize('name', VARIANTS)
def test_logits_equal_those_of_transformers(name):
  described, state, want = reference(name)
  config = huggingface.t5_config(described)
  assert config.logits_via_embedding == VARIANTS[name]['tie_word_embeddings']
  lm, params = t5.T5(config), huggingface.t5_params(state, config)
  got = tiny.forward(lm, params, jnp.asarray(INPUTS), jnp.asarray(SHIFTED))
  assert 1 < np.abs(want).max() < 30
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', VARIANTS)
def test_state_dict_goes_there_and_back(name):
  described, state, _ = reference(name)
  config = huggingface.t5_config(described)
  back = huggingface.t5_state_dict(huggingface.t5_params(state, config), config)
  copies = {'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'}
  tied = {'lm_head.weight'} if config.logits_via_embedding else set()
  assert set(back) == set(state) - copies - tied
  for key, array in back.items():
    np.testing.assert_array_equal(array, state[key])


def test_parameter_names_shapes_and_logical_axes_are_those_of_t5x():
  config = t5.T5Config(
      vocab_size=31, emb_dim=16, num_heads=3, head_dim=6, mlp_dim=24,
      num_encoder_layers=1, num_decoder_layers=1, relative_buckets=8)
  read = ((16, 18), ('embed', 'joined_kv'))
  out = ((18, 16), ('joined_kv', 'embed'))
  norm = ((16,), ('embed',))
  relative = ((3, 8), ('heads', 'relpos_buckets'))
  want = {
      'token_embedder/embedding': ((31, 16), ('vocab', 'embed')),
      'encoder/relpos_bias/rel_embedding': relative,
      'encoder/layers_0/pre_attention_layer_norm/scale': norm,
      'encoder/layers_0/attention/query/kernel': read,
      'encoder/layers_0/attention/key/kernel': read,
      'encoder/layers_0/attention/value/kernel': read,
      'encoder/layers_0/attention/out/kernel': out,
      'encoder/layers_0/pre_mlp_layer_norm/scale': norm,
      'encoder/layers_0/mlp/wi_0/kernel': ((16, 24), ('embed', 'mlp')),
      'encoder/layers_0/mlp/wi_1/kernel': ((16, 24), ('embed', 'mlp')),
      'encoder/layers_0/mlp/wo/kernel': ((24, 16), ('mlp', 'embed')),
      'encoder/encoder_norm/scale': norm,
      'decoder/relpos_bias/rel_embedding': relative,
      'decoder/layers_0/pre_self_attention_layer_norm/scale': norm,
      'decoder/layers_0/self_attention/query/kernel': read,
      'decoder/layers_0/self_attention/key/kernel': read,
      'decoder/layers_0/self_attention/value/kernel': read,
      'decoder/layers_0/self_attention/out/kernel': out,
      'decoder/layers_0/pre_cross_attention_layer_norm/scale': norm,
      'decoder/layers_0/encoder_decoder_attention/query/kernel': read,
      'decoder/layers_0/encoder_decoder_attention/key/kernel': read,
      'decoder/layers_0/encoder_decoder_attention/value/kernel': read,
      'decoder/layers_0/encoder_decoder_attention/out/kernel': out,
      'decoder/layers_0/pre_mlp_layer_norm/scale': norm,
      'decoder/layers_0/mlp/wi_0/kernel': ((16, 24), ('embed', 'mlp')),
      'decoder/layers_0/mlp/wi_1/kernel': ((16, 24), ('embed', 'mlp')),
      'decoder/layers_0/mlp/wo/kernel': ((24, 16), ('mlp', 'embed')),
      'decoder/decoder_norm/scale': norm,
      'decoder/logits_dense/kernel': ((16, 31), ('embed', 'vocab'))}
  token = jnp.ones((1, 1), jnp.int32)
  assert tiny.layout(t5.T5(config), token, token) == want


def test_tied_relu_model_has_one_wi_and_no_head():
  token = jnp.ones((1, 1), jnp.int32)
  names = tiny.layout(tiny.LMS['t5_1_0'], token, token)
  assert names['decoder/layers_1/mlp/wi/kernel'][1] == ('embed', 'mlp')
  assert not any('logits_dense' in name or 'wi_' in name for name in names)


def test_relative_buckets():
  bucket = lambda x, both: positions.relative_bucket(
      jnp.asarray(x), bidirectional=both, buckets=8, max_distance=16).tolist()
  # Four exact distances, then a logarithm up to 16; the future shares bucket 0.
  assert bucket([-3, 0, 1, 3, 4, 5, 6, 8, 11, 12, 99], False) == [
      0, 0, 1, 3, 4, 4, 5, 6, 6, 7, 7]
  # Two exact distances each way; keys that follow take the upper half.
  assert bucket([-99, -2, -1, 0, 1, 2, 99], True) == [7, 6, 5, 0, 1, 2, 3]


def test_encoder_padding_changes_no_logits():
  lm = tiny.LMS['t5_1_1']
  params, shifted = tiny.params_of(lm), jnp.asarray(SHIFTED[:1, :6])
  short = jnp.asarray(INPUTS[:1, :5])
  padded = jnp.pad(short, ((0, 0), (0, 4)))
  tiny.assert_near(tiny.forward(lm, params, padded, shifted),
                   tiny.forward(lm, params, short, shifted))


def test_dropout_acts_in_training_only():
  lm = t5.T5(t5.T5Config(vocab_size=31, emb_dim=16, num_encoder_layers=1,
                         num_decoder_layers=1, dropout_rate=.5))
  params = tiny.params_of(lm)
  run = jax.jit(lambda key: lm.module.apply(
      {'params': params}, jnp.asarray(INPUTS), jnp.asarray(SHIFTED),
      deterministic=False, rngs={'dropout': key}))
  a, b = run(jax.random.key(0)), run(jax.random.key(1))
  assert np.abs(a - b).max() > .1
  np.testing.assert_array_equal(a, run(jax.random.key(0)))


def test_misuse_is_refused():
  with pytest.raises(ValueError, match="'tanh' in mlp_activations"):
    t5.T5Config(mlp_activations=('tanh',))
  with pytest.raises(ValueError, match='needs Prompt.inputs'):
    prompt = types.Prompt(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    tiny.LMS['t5_1_1'].init({}, prompt, 4)
  with pytest.raises(ValueError, match="'gated-silu' is not supported"):
    huggingface.t5_config(dict(feed_forward_proj='gated-silu'))
