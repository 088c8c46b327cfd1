"""Tokens a call of a layer that follows its verifier, predicted and decoded."""
import dataclasses

import pytest

from spec_cascades import checkpoints
from spec_cascades.models import features
from spec_cascades.training import follow
from spec_cascades.training import following
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from training.ahead_run_test import verifier  # noqa: F401, a fixture
from training.runs import run_of

pytestmark = pytest.mark.usefixtures('promotion')


def run_with(corpus, directory, verifier, taps=()):  # noqa: F811
  """Of a layer beside the verifier."""
  lm = features.Featured(checkpoints.load(verifier).lm,
                         features.FeatureConfig(2, 8, 16, taps))
  numbers = dict(steps=60, peak=.02, warmup=2, cooldown=0, log_every=60,
                 save_every=60, eval_every=90, eval_sentences=1, max_length=24)
  return dataclasses.replace(
      run_of(corpus, directory, **numbers), lm=lm, init_from=verifier,
      objective=follow.Follow(noise=0., classification=1.),
      optimizer=optimizers.adamw)


@pytest.mark.slow
@pytest.mark.parametrize('taps', [(), (0,)], ids=['states', 'taps'])
def test_what_is_predicted_is_what_rounds_give(
    corpus, verifier, taps, tmp_path):  # noqa: F811
  """Greedily to the round; of what is drawn, on average."""
  run = run_with(corpus, tmp_path, verifier, taps)
  params = loop.train(run, log=lambda line: None).params
  sources = [line['en'] for line in corpus.lines('train')
             if len(corpus.encode(line['en'])) <= max(corpus.buckets)][:16]
  measure = lambda heat: following.measure(
      run.lm, params, corpus, sources, gamma=3, temperature=heat, max_length=24,
      batch=8)
  greedy, drawn = measure(0.), measure(1.)
  assert greedy.decoded > 1.01 and drawn.decoded > 1.01
  assert abs(greedy.off) < 1e-3 and abs(drawn.off) < .08


def test_what_has_no_such_layer_is_refused(
    corpus, verifier, tmp_path):  # noqa: F811
  run = run_with(corpus, tmp_path, verifier)
  with pytest.raises(ValueError, match='is a whole run and no part'):
    following.report(run, 3, 4, part=verifier)
  with pytest.raises(ValueError, match='without init_from'):
    following.report(dataclasses.replace(run, init_from=None), 3, 4,
                     part=verifier)
  with pytest.raises(ValueError, match='gamma'):
    following.report(run, 0, 4)
  assert following.follows(run.lm) and not following.follows(run.lm.lm)
