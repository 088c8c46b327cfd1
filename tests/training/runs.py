"""A tiny training run, for tests of the trainer."""
import tinypair
from spec_cascades.models import t5
from spec_cascades.training import loop

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
