"""Growing models: copies of layers, wider MLPs, nearly the same function."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.models import t5
from spec_cascades.training import grow

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


@pytest.mark.parametrize('changes', [dict(mlp_dim=2), dict(emb_dim=8)])
def test_other_widths_are_refused(changes):
  with pytest.raises(ValueError, match='shape'):
    grow.stack(model(2)[1], model(4, **changes)[1])
