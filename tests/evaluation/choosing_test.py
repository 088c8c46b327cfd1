"""Settings are picked on one half of the texts and reported on the other."""
import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import measured as measured_lib
from spec_cascades.evaluation import points
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import work
from spec_cascades import targets

COUNT = 40
TEXTS = [f'text {i}' for i in range(COUNT)]
HALF = choosing.validates(TEXTS, .5, 0)


def make(scores, seconds, **changes):
  """Two thresholds beside the verifier; scores and seconds: [3, texts]."""
  grid = points.expand([points.Curve(targets.Chow, (.2, .6), (1.,))], gamma=3,
                       alone=(points.VERIFIER,))
  keys = 'verifier', 'strict', 'loose'
  parts = {key: np.stack([100. * np.array(x), np.ones(COUNT)], 1)
           for key, x in zip(keys, scores)}
  return dataclasses.replace(measured_lib.Measured(
      dict(zip(keys, grid)), work.Plan(COUNT, COUNT, 1, 1), TEXTS,
      qualities.make('EM'), parts,
      {key: np.array(x, float) for key, x in zip(keys, seconds)}, {}, 0, .5),
                             **changes)


def flat(*values):
  return np.repeat(np.array(values, float)[:, None], COUNT, 1)


def told(found):
  return {choice.goal: choice.point and choice.point.alpha
          for choice in found.choices}


@hypothesis.given(st.lists(st.text(max_size=3), max_size=20),
                  st.floats(.01, .99), st.integers(0, 3))
def test_a_text_is_on_one_side_whatever_is_beside_it(texts, share, seed):
  """Its copies too."""
  found = choosing.validates(texts, share, seed)
  assert found.shape == (len(texts),) and found.dtype == bool
  for text, ours in zip(texts, found):
    assert choosing.validates([text], share, seed)[0] == ours


def test_the_share_and_the_seed_count():
  many = [str(i) for i in range(4000)]
  thirds, other = (choosing.validates(many, .3, seed) for seed in (0, 1))
  assert abs(thirds.mean() - .3) < .03 and (thirds != other).any()
  assert (thirds <= choosing.validates(many, .5, 0)).all()
  for bad in (0, 1, -1, float('nan'), 'half', None):
    with pytest.raises(ValueError, match='validation=.* allowed: a share'):
      choosing.validates(many, bad, 0)


def test_picks_by_hand():
  sample = lambda latency, quality: frontier.Samples(
      latency, quality, np.zeros(0), np.zeros(0))
  seen = dict(v=sample(1, 20), a=sample(.5, 20), b=sample(.4, 19),
              c=sample(.9, 25), d=sample(1.2, 30), e=sample(.8, 25))
  assert choosing.picked(seen, 'abcde', 'v') == {
      choosing.FAST: 'a', choosing.GOOD: 'e'}
  assert choosing.picked(seen, 'bd', 'v') == {
      choosing.FAST: 'd', choosing.GOOD: 'b'}
  assert choosing.picked(seen, 'b', 'v')[choosing.FAST] is None


def test_the_validation_half_picks_and_the_test_half_reports():
  """The loose setting is good where it is picked, and bad elsewhere."""
  scores = flat(.5, .6, 0.)
  scores[2, HALF] = 1.
  found = choosing.choose(make(scores, flat(1., .8, .5)))
  assert (found.validation, found.test) == (HALF.sum(), (~HALF).sum())
  assert told(found) == {choosing.FAST: .6, choosing.GOOD: .6}
  for choice in found.choices:
    assert choice.quality == 0 and choice.gain.value == -50
    assert choice.speedup.value == 2 and not choice.gain.illustrative


def test_the_test_half_has_no_say():
  rng = np.random.default_rng(0)
  scores, seconds = rng.random((3, COUNT)), 1 + rng.random((3, COUNT))
  before = choosing.choose(make(scores, seconds))
  scores[:, ~HALF], seconds[:, ~HALF] = rng.random((2, 3, (~HALF).sum()))
  after = choosing.choose(make(scores, seconds))
  assert told(before) == told(after)
  assert [c.gain for c in before.choices] != [c.gain for c in after.choices]


def test_only_timed_texts_have_latencies():
  """Of the first 20; quality counts all."""
  timed = 20
  plan = work.Plan(COUNT, timed, 1, 10)
  seconds = flat(1., .8, .5)[:, :timed]
  scores = flat(.5, .6, .6)
  seconds[2, ~HALF[:timed]] = 4.               # slow where it is reported
  found = choosing.choose(make(scores, seconds, plan=plan))
  assert told(found)[choosing.FAST] == .6
  assert (found.validation, found.test) == (HALF.sum(), (~HALF).sum())
  assert (found.timed, found.test_timed) == (
      HALF[:timed].sum(), (~HALF[:timed]).sum())
  fast = found.choices[0]
  assert fast.speedup.value == .25
  np.testing.assert_allclose(fast.quality, 60)


def test_too_few_timed_texts_choose_nothing():
  plan = work.Plan(COUNT, 2, 1, 1)
  found = choosing.choose(make(flat(.5, .6, .6), flat(1, 1, 1)[:, :2],
                               plan=plan))
  assert found.choices == [] and found.validation + found.test == COUNT
