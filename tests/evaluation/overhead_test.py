"""Costs of rules: comparable programs and sound estimates, not the figures."""
import time

import benchmarks_test
import numpy as np
import pytest

from spec_cascades import targets
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import overhead


@pytest.fixture(scope='module')
def models():
  return [benchmarks.Loaded.random(benchmarks_test.TINY, s) for s in (0, 1)]


def test_the_interval_of_a_median_is_that_of_order_statistics():
  found = overhead.Estimate.of(np.arange(20.)[::-1])
  # P(Binomial(20, 1/2) <= 5) = .0207, <= 6 .0577: the 6th and the 15th.
  assert found == overhead.Estimate(9.5, 5., 14.)
  assert overhead.Estimate.of([3., 1., 2.]) == overhead.Estimate(2., 1., 3.)


def test_the_interval_holds_the_median_as_often_as_it_says():
  draws = np.random.default_rng(0).exponential(size=(2000, 15))
  found = [overhead.Estimate.of(row) for row in draws]
  inside = np.mean([x.low <= np.log(2) <= x.high for x in found])
  assert .95 <= inside <= .98               # exactly .965


def test_a_program_is_compared_with_its_neighbours():
  """A machine that slows down all the time favours nobody."""
  began = time.perf_counter()
  nap = lambda base: lambda: time.sleep(
      base * (1 + 4 * (time.perf_counter() - began)))
  found = overhead.paired(nap(.002), dict(same=nap(.002), twice=nap(.004)), 15)
  ratio = {name: np.median(x[:, 0] / x[:, 1]) for name, x in found.items()}
  assert ratio['same'] == pytest.approx(1, abs=.25)
  assert ratio['twice'] == pytest.approx(2, abs=.5)


def test_all_rules_and_warps_have_the_same_rounds(models):
  make = overhead.rounds_of(*models, 3, 4, rate=.5)
  cases = [(overhead.rule('Chow'), overhead.warp()),
           (overhead.WithLeaf(targets.Lossless()), overhead.warp(top_p=.9)),
           (targets.Lossless(), overhead.warp(temperature=0.))]
  lengths = [int(make(*case)()[1][0]) for case in cases]
  assert len(set(lengths)) == 1 and 5 <= lengths[0] <= 17


def test_a_report_has_every_case(models):
  found = overhead.measure(*models, 2, 2, rounds=1, steps=2,
                           names=('Lossless', 'TokenV3'))
  assert set(found.costs) == {'TokenV3', *overhead.WARPS}
  assert found.round_seconds.median > 0
  for x in found.costs.values():
    assert x.whole.low <= x.whole.median <= x.whole.high
    assert x.part.median == pytest.approx(
        x.seconds.median / found.round_seconds.median)
