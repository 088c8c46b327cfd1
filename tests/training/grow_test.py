"""Growing models: copies of layers, wider MLPs, nearly the same function."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.models import gemma
from spec_cascades.models import t5
from spec_cascades.training import grow
from tests.models import tiny

SIZES = dict(vocab_size=8, emb_dim=4, num_heads=1, head_dim=4, mlp_dim=4,
             mlp_activations=('gelu', 'linear'), num_encoder_layers=1)


def model(layers, **changes):
  lm = t5.T5(t5.T5Config(num_decoder_layers=layers, **{**SIZES, **changes}))
  return lm, lm.init_params(jax.random.key(layers))


def logits(lm, params):
  ids = jnp.arange(1, 7)[None]
  return lm.module.apply({'params': params}, ids, ids, deterministic=True)


def test_each_layer_is_copied_to_its_neighbours():
  shallow, deep = model(2)[1], model(5)[1]
  grown = grow.stack(shallow, deep, damping=0.5)
  assert jax.tree.structure(grown) == jax.tree.structure(deep)
  for i, (source, scale) in enumerate(
      ((0, 1), (0, .5), (0, .5), (1, 1), (1, .5))):
    got = grown['decoder'][f'layers_{i}']
    want = shallow['decoder'][f'layers_{source}']
    np.testing.assert_array_equal(got['mlp']['wi_0']['kernel'],
                                  want['mlp']['wi_0']['kernel'])
    for block in ('self_attention', 'encoder_decoder_attention'):
      np.testing.assert_array_equal(got[block]['query']['kernel'],
                                    want[block]['query']['kernel'])
      np.testing.assert_array_equal(got[block]['out']['kernel'],
                                    scale * want[block]['out']['kernel'])
    np.testing.assert_array_equal(got['mlp']['wo']['kernel'],
                                  scale * want['mlp']['wo']['kernel'])
  np.testing.assert_array_equal(grown['token_embedder']['embedding'],
                                shallow['token_embedder']['embedding'])


def test_silent_copies_and_wider_mlps_keep_the_function():
  small, shallow = model(2)
  large, fresh = model(5, mlp_dim=6)
  grown = grow.stack(shallow, fresh, damping=0.0)
  np.testing.assert_allclose(logits(large, grown), logits(small, shallow),
                             atol=1e-6)
  new_units = grown['decoder']['layers_0']['mlp']['wi_0']['kernel'][:, 4:]
  assert np.abs(new_units).min() > 0           # and they can learn


def test_copies_behind_norms_are_damped_too():
  """Gemma 2 and 3 norm what is added: damping before that does nothing."""
  small, large = (gemma.Gemma(dataclasses.replace(
      tiny.LMS['gemma2'].config, num_layers=layers, windows=(0,)))
                  for layers in (2, 4))
  shallow, fresh = tiny.params_of(small, 0), tiny.params_of(large, 1)
  tokens = jnp.arange(8)[None] % tiny.VOCAB
  want = tiny.forward(small, shallow, None, tokens)
  away = [np.abs(tiny.forward(large, grow.stack(
      shallow, fresh, damping=damping, norm_offset=small.config.norm_offset),
                              None, tokens) - want).max()
          for damping in (1., .2, 0.)]
  assert away[0] > 2 * away[1] > 0 and away[2] < 1e-4


def test_what_has_no_place_is_refused():
  untied, tied = (model(2, logits_via_embedding=x)[1] for x in (False, True))
  with pytest.raises(ValueError, match="no place for 'logits_dense'"):
    grow.stack(untied, tied)


def test_fewer_layers_are_every_so_many_of_the_deep_model():
  deep, fresh = model(5)[1], model(2)[1]
  shrunk = grow.stack(deep, fresh)
  for i, source in enumerate((0, 2)):
    jax.tree.map(np.testing.assert_array_equal,
                 shrunk['decoder'][f'layers_{i}'],
                 deep['decoder'][f'layers_{source}'])
  assert jax.tree.structure(shrunk) == jax.tree.structure(fresh)


def test_narrower_mlps_lose_what_weighs_least():
  """Units that write nothing, or read nothing, are not missed."""
  large, params = model(2, mlp_dim=6)
  for layer in params['decoder'].values():
    if 'mlp' in layer:
      mlp = layer['mlp']
      mlp['wo']['kernel'] = mlp['wo']['kernel'].at[2].set(0.)
      mlp['wi_1']['kernel'] = mlp['wi_1']['kernel'].at[:, 4].set(0.)
  small, fresh = model(2)
  encoder = dict(params['encoder'])
  for layer in encoder.values():
    if 'mlp' in layer:
      layer['mlp']['wo']['kernel'] *= jnp.float32(jnp.arange(6)[:, None] > 1)
  narrow = grow.stack(params, fresh)
  assert jax.tree.map(np.shape, narrow) == jax.tree.map(np.shape, fresh)
  np.testing.assert_allclose(logits(small, narrow), logits(large, params),
                             atol=1e-6)


def test_other_widths_are_refused():
  with pytest.raises(ValueError, match='shape'):
    grow.stack(model(2)[1], model(4, emb_dim=8)[1])
