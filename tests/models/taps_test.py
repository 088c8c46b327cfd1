"""What layers leave, handed out beside what the head reads."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import types
from spec_cascades.models import gemma, skip
from tests.models import tiny

TAPS = (0, 1)


def normed(lm, params, left):
  """RMSNorm before the head, in float64."""
  scale = np.asarray(params['decoder']['decoder_norm']['scale'], np.float64)
  epsilon = 1e-6
  if isinstance(lm, gemma.Gemma):
    scale, epsilon = scale + lm.config.norm_offset, lm.config.norm_epsilon
  left = np.asarray(left, np.float64)
  return left / np.sqrt((left**2).mean(-1, keepdims=True) + epsilon) * scale


@pytest.mark.parametrize('name', [
    't5_1_0', 'gemma3', pytest.param('t5_1_1', marks=pytest.mark.slow),
    pytest.param('llama3', marks=pytest.mark.slow)])
def test_a_tapped_layer_leaves_what_a_model_of_so_many_layers_reads_out(name):
  """From a block, and from texts as they are trained on."""
  lm, rng = tiny.LMS[name], np.random.default_rng(0)
  params, inputs = tiny.params_of(lm), tiny.inputs_of(lm)
  tokens = jnp.asarray(rng.integers(1, tiny.VOCAB, (3, 6)))
  lengths = jnp.full(3, 7)
  tapped = dataclasses.replace(lm, taps=TAPS)
  batch = dict(inputs=tokens if inputs is None else inputs, targets=tokens,
               input_lengths=jnp.full(3, 6) if inputs is None else lengths)

  def read(lm, params):
    asked = types.Prompt(tokens, jnp.full(3, 6), inputs)
    block = lm.extend(params, lm.init(params, asked, 6), types.chain(tokens))[0]
    return block, lm.states(params, batch), lm.head(params, block)

  read = jax.jit(read, static_argnums=0)
  *found, logits = read(tapped, params)
  *plain, want = read(lm, params)
  np.testing.assert_array_equal(logits, want)
  shorter = [read(*skip.shallow(lm, params, range(i + 1)))[:2] for i in TAPS]
  for i, (wide, whole) in enumerate(zip(found, plain)):
    own, *left = jnp.split(wide, 3, -1)
    np.testing.assert_array_equal(own, whole)
    for x, less in zip(left, shorter):
      np.testing.assert_allclose(normed(lm, params, x), less[i], atol=1e-5)
