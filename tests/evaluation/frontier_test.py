"""Interpolation on curves small enough to do by hand."""
import numpy as np

from spec_cascades.evaluation import frontier

INF = np.inf


def samples(latency, quality, noise=0., seed=0):
  rng = np.random.default_rng(seed)
  return frontier.Samples(latency, quality, np.full(200, latency),
                          quality + noise * rng.standard_normal(200))


def latency_at(quality, x, y):
  return frontier.Frontier.of(x, y).latency_at(np.array([quality]))[0]


def quality_at(latency, x, y):
  return frontier.Frontier.of(x, y).quality_at(np.array([latency]))[0]


def test_a_frontier_keeps_what_nothing_beats():
  found = frontier.Frontier.of([.5, .3, .4, .9, .3], [20, 10, 9, 20, 11])
  assert sorted({*zip(found.latencies, found.qualities)}) == [
      (.3, 11), (.5, 20)]
  assert (np.diff(found.latencies) >= 0).all()


def test_latency_at_a_quality():
  x, y = [.2, .6, 1.], [10, 30, 40]
  np.testing.assert_allclose(latency_at(20, x, y), .4)
  np.testing.assert_allclose(latency_at(35, x, y), .8)
  assert latency_at(5, x, y) == .2                   # not extrapolated
  assert latency_at(40, x, y) == 1.
  assert latency_at(41, x, y) == INF


def test_quality_at_a_latency():
  x, y = [.2, .6, 1.2], [10, 30, 60]
  assert quality_at(.4, x, y) == 20
  np.testing.assert_allclose(quality_at(1., x, y), 50)
  assert quality_at(2., x, y) == 60
  assert quality_at(.1, x, y) == -INF


def test_a_dominated_point_changes_nothing():
  x, y = [.2, .6], [10, 30]
  for level in (5, 15, 30):
    assert latency_at(level, x + [.5], y + [9]) == latency_at(level, x, y)
  area = lambda x, y: frontier.Frontier.of(x, y).area()
  assert area(x + [.5], y + [9]) == area(x, y)


def test_a_curve_that_is_clearly_faster():
  curve = [samples(.25, 10.), samples(.5, 30.)]
  found = frontier.compare('m', 1., curve, samples(1., 20.))
  np.testing.assert_allclose(found.speedup.value, 1 / .375)
  assert found.speedup.low == found.speedup.high == found.speedup.value
  assert found.gain.value == 10 and found.best == 30
  assert not found.speedup.illustrative and not found.gain.illustrative
  assert found.speedup.reached == 1


def test_a_curve_that_never_gets_there():
  found = frontier.compare('m', 1., [samples(.5, 10.)], samples(1., 20.))
  assert found.speedup.value is None and found.speedup.reached == 0
  assert found.gain.value == -10 and not found.gain.illustrative


def test_a_curve_slower_than_the_verifier_has_no_gain():
  found = frontier.compare('m', 1., [samples(1.5, 25.)], samples(1., 20.))
  assert found.best is None and found.gain.value is None
  np.testing.assert_allclose(found.speedup.value, 1 / 1.5)


def test_noise_makes_it_illustrative():
  verifier = samples(1., 20., noise=2., seed=1)
  found = frontier.compare('m', 1., [samples(.5, 20.2, 2., 2)], verifier)
  assert found.gain.illustrative and found.speedup.illustrative
  assert found.speedup.low is None and 0 < found.speedup.reached < 1


def test_equality_is_not_a_matter_of_chance():
  verifier = samples(1., 20., noise=2.)
  found = frontier.compare('m', 0., [samples(.5, 20., 2.)], verifier)
  assert found.gain.value == found.gain.low == found.gain.high == 0
  assert not found.gain.illustrative
  assert found.speedup.value == 2 and not found.speedup.illustrative
