"""Stacking layers."""
import jax
import numpy as np
import pytest

from spec_cascades.models import t5
from spec_cascades.training import grow

SIZES = dict(vocab_size=8, emb_dim=4, num_heads=1, head_dim=4, mlp_dim=4,
             num_encoder_layers=1)


def params(layers, **changes):
  lm = t5.T5(t5.T5Config(num_decoder_layers=layers, **{**SIZES, **changes}))
  return lm.init_params(jax.random.key(layers))


def test_each_layer_is_copied_to_its_neighbours():
  shallow, deep = params(2), params(5)
  grown = grow.stack(shallow, deep)
  assert jax.tree.structure(grown) == jax.tree.structure(deep)
  for i, source in enumerate((0, 0, 0, 1, 1)):
    for got, want in zip(jax.tree.leaves(grown['decoder'][f'layers_{i}']),
                         jax.tree.leaves(shallow['decoder'][f'layers_{source}'])):
      np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(grown['token_embedder']['embedding'],
                                shallow['token_embedder']['embedding'])


def test_other_widths_are_refused():
  with pytest.raises(ValueError, match='shape'):
    grow.stack(params(2), params(4, mlp_dim=8))
