"""What the benchmarks compute; what they measure is not tested here."""
import dataclasses

import jax
import numpy as np
import pytest

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import lossless
from spec_cascades.evaluation import pairs
from spec_cascades.models import t5

TINY = t5.T5Config(vocab_size=128, emb_dim=16, num_heads=2, head_dim=8,
                   num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16)


def test_forced_decodes_emit_what_was_asked_at_the_rate():
  models = [benchmarks.Loaded.random(TINY, seed) for seed in (0, 1)]
  state = benchmarks.decode_program(*models, 3, rate=1.0, new_tokens=16)()
  assert int(state.stats.emitted[0]) == 16 and int(state.stats.rounds[0]) == 4
  state = benchmarks.decode_program(*models, 3, rate=0.0, new_tokens=16)()
  assert int(state.stats.rounds[0]) == 16


def test_lossless_outputs_are_the_verifiers(pair_dir):
  pair = pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'))
  short = lossless.measured(2, 2, pair=pair, limit=3)
  assert short.alone == short.speculative and len(short.alone) == 3
  assert all(x['accepted'] <= x['drafted'] for x in short.stats)
  np.testing.assert_allclose(
      short.speedup, np.mean([short.low, short.high]), rtol=1e-6)


@pytest.mark.parametrize('limit', [
    20, pytest.param(None, marks=pytest.mark.slow)])
def test_the_shipped_pair_gives_its_verifiers_tokens(limit):
  """At temperature 0, on the embedded sentences: all 200, or some."""
  found = lossless.measured(4, 1, limit=limit)
  assert len(found.alone) == (limit or 200)
  assert found.alone == found.speculative and min(map(len, found.alone)) > 2
  assert sum(x['accepted'] for x in found.stats) > 2 * len(found.alone)


def test_texts_of_broken_weights_are_equal_to_nothing(pair_dir):
  pair = pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'))
  broken = jax.tree.map(lambda x: x * np.nan, pair.verifier.unpacked())
  pair = dataclasses.replace(
      pair, verifier=dataclasses.replace(pair.verifier, checkpoint=broken))
  with pytest.raises(ValueError, match='stopped in round 1: the logits are'):
    lossless.measured(2, 1, pair=pair, limit=1)
