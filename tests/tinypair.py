"""Two random T5s on disk, with a vocabulary of 512 pieces: made in a second."""
import pathlib

import jax

from spec_cascades.checkpoints import native
from spec_cascades.data import vocabulary
from spec_cascades.evaluation import examples
from spec_cascades.models import t5

PIECES = 512


def config(width, layers, **changes):
  sizes = dict(vocab_size=PIECES, emb_dim=width, num_heads=2, head_dim=8,
               num_encoder_layers=1, num_decoder_layers=layers, mlp_dim=width,
               logits_via_embedding=True)
  return t5.T5Config(**{**sizes, **changes})


def make_vocabulary(directory, pieces=PIECES):
  texts = [side for x in examples.read() for side in (x.source, x.reference)]
  return vocabulary.train(texts, pathlib.Path(directory) / f'{pieces}.model',
                          vocab_size=pieces)


def write(directory, path, seed, *, width=16, layers=1, scale=1.0, **kwargs):
  """Saves a random model; `scale` sharpens its predictions."""
  lm = t5.T5(config(width, layers))
  params = lm.init_params(jax.random.key(seed))
  params['decoder']['decoder_norm']['scale'] *= scale
  native.save(directory, lm, params, path, 'float32', **kwargs)
  return directory


def make(root):
  """Directories `verifier` and `drafter` under root."""
  root = pathlib.Path(root)
  path = make_vocabulary(root)
  write(root / 'verifier', path, 0, layers=2, scale=4.0)
  write(root / 'drafter', path, 1, scale=4.0)
  return root
