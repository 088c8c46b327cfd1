"""Tiny transformers with logits of a few units, for tests of the models."""
import dataclasses
import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades.models import gemma, positions, t5

# Heads of 32 are for attention in C, others for XLA's; both in `LMS`.
VOCAB = 31
_t5 = t5.T5Config(
    vocab_size=VOCAB, emb_dim=16, num_heads=3, num_encoder_layers=2,
    num_decoder_layers=2, head_dim=6, mlp_dim=24, relative_buckets=8,
    relative_max_distance=12)
_gemma = gemma.GemmaConfig(
    vocab_size=VOCAB, emb_dim=16, num_layers=2, num_heads=4, num_kv_heads=1,
    head_dim=6, mlp_dim=24)
_llama = dataclasses.replace(
    _gemma, num_kv_heads=2, mlp_activation='silu', norm_epsilon=1e-5,
    norm_offset=0., scale_embedding=False, logits_via_embedding=False)
LMS = dict(
    t5_1_0=t5.T5(dataclasses.replace(
        _t5, mlp_activations=('relu',), logits_via_embedding=True)),
    t5_1_1=t5.T5(dataclasses.replace(_t5, head_dim=32)),
    t5_lent=t5.T5(dataclasses.replace(_t5, encoder=dataclasses.replace(
        _t5, emb_dim=20, num_heads=2, head_dim=8, mlp_dim=12,
        mlp_activations=('relu',)))),
    gemma1=gemma.Gemma(_gemma),
    gemma2=gemma.Gemma(dataclasses.replace(
        _gemma, num_kv_heads=2, post_norms=True, windows=(4, 0),
        attention_soft_cap=3., logit_soft_cap=8., query_scale=.5)),
    gemma3=gemma.Gemma(dataclasses.replace(
        _gemma, head_dim=32, num_layers=3, post_norms=True, qk_norm=True,
        windows=(3, 3, 0),
        rope=positions.Rope(1e6, 8.))),
    llama3=gemma.Gemma(dataclasses.replace(
        _llama, rope=positions.Rope(5e5, 8., 16))),
    qwen2=gemma.Gemma(dataclasses.replace(_llama, qkv_bias=True)))


def in_bfloat16(lm):
  """The same model with bfloat16 activations and caches."""
  config = dataclasses.replace(lm.config, dtype='bfloat16')
  return dataclasses.replace(lm, config=config)


def params_of(lm, seed=0):
  """Random parameters, norms and biases included."""
  rng = np.random.default_rng(seed)
  offset = 1 - lm.config.norm_offset if isinstance(lm, gemma.Gemma) else 1.

  def draw(path, like):
    kind, noise = path[-1].key, rng.normal(size=like.shape)
    if kind == 'scale':
      noise = offset + .3 * noise
    elif kind == 'kernel':
      noise = noise / np.sqrt(like.shape[0])
    return jnp.asarray(noise, like.dtype)

  shapes = jax.eval_shape(lm.init_params, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(draw, shapes)


def inputs_of(lm, rows=3, width=7):
  """Encoder inputs with padding on the right, if the model has an encoder."""
  if not isinstance(lm, t5.T5):
    return None
  tokens = np.random.default_rng(5).integers(1, VOCAB, (rows, width))
  lengths = width - 2 * np.arange(rows)
  return jnp.asarray(np.where(np.arange(width) < lengths[:, None], tokens, 0))


@functools.partial(jax.jit, static_argnums=0)
def forward(lm, params, inputs, tokens):
  """Teacher-forced logits, without any cache."""
  given = (tokens,) if inputs is None else (inputs, tokens)
  return lm.module.apply({'params': params}, *given)


def assert_near(got, want, tolerance=1e-5):
  """The largest difference is small beside the largest logit."""
  want = np.asarray(want)
  scale = np.abs(want).max()
  assert .5 < scale < 30, scale
  np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


def layout(lm, *args):
  """Shape and logical axes of every parameter, by its path."""
  made = jax.eval_shape(lm.module.init, jax.random.key(0), *args)
  shapes = traverse_util.flatten_dict(made['params'], sep='/')
  axes = traverse_util.flatten_dict(made['params_axes'], sep='/')
  return {name: (x.shape, axes[name + '_axes'].names)
          for name, x in shapes.items()}
