"""A tiny training run and a layer alone, for tests of the trainer."""
import jax
import jax.numpy as jnp
import numpy as np

import tinypair
from spec_cascades.models import t5
from spec_cascades.training import loop
from spec_cascades.training import train_step

SIZES = dict(vocab_size=tinypair.PIECES, emb_dim=16, num_heads=2, head_dim=8,
             num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16,
             logits_via_embedding=True, dropout_rate=0.1)


def recipe(**changes):
  return loop.Recipe(**{**dict(
      steps=12, warmup=4, cooldown=4, log_every=3, save_every=4, eval_every=12,
      eval_sentences=4, eval_batch=2, max_length=8, gamma=0), **changes})


def run_of(corpus, directory, **changes):
  return loop.Run(t5.T5(t5.T5Config(**SIZES)), corpus, str(directory),
                  recipe(**changes))


def diverge(monkeypatch, *, loss):
  """From now on parameters are NaN after a step, and maybe its loss."""
  update = train_step.Update.__call__

  def broken(self, state, *rest):
    state, metrics = update(self, state, *rest)
    nan = lambda x: x * jnp.float32(jnp.nan)
    return (state.replace(params=jax.tree.map(nan, state.params)),
            dict(metrics, loss=nan(metrics['loss'])) if loss else metrics)

  monkeypatch.setattr(train_step.Update, '__call__', broken)


def layer_of(lm):
  """The layer beside a verifier over one text: no round, no cache."""
  @jax.jit
  def read(params, before, tokens, inputs):
    i, encoded = np.arange(tokens.shape[1]), None
    if lm.crosses:
      memory = lm.lm.apply(params['model'], inputs, method='memory')
      encoded = memory[-1], inputs
    return lm.follow(params, before, tokens, jnp.array(i[:, None] - i)[None],
                     jnp.array(i[:, None] >= i)[None], encoded)[0]
  return read
