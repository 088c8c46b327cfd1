"""Verifiers with something beside them, as files: whole, and the part alone."""
import functools

import jax
import jax.numpy as jnp
import numpy as np

import tinypair
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import pairs
from spec_cascades.models import features
from spec_cascades.models import heads
from spec_cascades.models import layered
from spec_cascades.models import masks
from spec_cascades.models import t5

TREE, LINE = ((0,), (1,), (0, 0), (1, 0)), ((0,), (0, 0))
CONFIGS = {
    'heads': heads.HeadsConfig(2, paths=TREE),
    'shared': heads.HeadsConfig(2, own=False, sequential=True, paths=LINE),
    'prefix': heads.HeadsConfig(2, own=False, sequential=True, paths=LINE,
                                prefix=layered.Sizes(2, 8, 16)),
    'features': features.FeatureConfig(2, 8, 16),
    'fused': features.FeatureConfig(2, 8, 16, (0, 1)),
    'masks': masks.MasksConfig(4)}
NAMES = {'heads': ('medusa',), 'shared': ('medusa',), 'prefix': ('hydra++',),
         'features': ('eagle', 'eagle_static', 'eagle_tree'),
         'fused': ('eagle3', 'eagle3_tree'), 'masks': ('pass', 'space')}
LM = t5.T5(tinypair.config(16, 2))


def rounded(tree):
  """Values that bfloat16 has, so that a file of it holds them as they are."""
  return jax.tree.map(
      lambda x: jnp.asarray(x, jnp.bfloat16).astype(jnp.float32), tree)


@functools.cache
def model(seed=0):
  """Parameters of a verifier that is not sure of much."""
  params = jax.jit(LM.init_params)(jax.random.key(seed))
  params['decoder']['decoder_norm']['scale'] *= 1.5
  return rounded(params)


def made(name, seed=0):
  """The model of `CONFIGS[name]`, and its parameters, away from the start."""
  lm, rng = features.beside(LM, CONFIGS[name]), np.random.default_rng(seed)
  part = lm.fresh(model(), jax.random.key(seed))
  noise = lambda x: x + .05 * jnp.asarray(rng.normal(size=x.shape), x.dtype)
  return lm, dict(model=model(), heads=rounded(jax.tree.map(noise, part)))


def write_verifier(directory, vocabulary, seed=0):
  native.save(directory, LM, model(seed), vocabulary)
  return str(directory)


def write_whole(directory, vocabulary, name, seed=0):
  lm, params = made(name, seed)
  native.save(directory, lm, params, vocabulary)
  return str(directory)


def write_part(directory, verifier, name, seed=0, **kwargs):
  lm, params = made(name, seed)
  beside.write(directory, lm, params['heads'],
               extras.Owner('a/verifier', pairs.digest(verifier)), **kwargs)
  return str(directory)
