"""Expected tokens, factors, break-even: published constants and identities."""
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades import theory

many = hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
RATES = st.floats(0, 1)
LISTS = st.lists(RATES, min_size=1, max_size=6)
GAMMAS = st.integers(1, 6)
TIMES = theory.StepTimes({1: 10., 2: 11., 4: 12., 9: 20.}, drafter=1.)


# Expected tokens and factors.

@pytest.mark.parametrize('rate', [0.0, 0.3, 0.75, 1.0])
def test_expected_tokens_sum_the_geometric_law(rate):
  """One token, and one more for every run of acceptances that reaches it."""
  want = sum(rate**k for k in range(5 + 1))
  assert theory.expected_tokens(rate, 5) == pytest.approx(want)
  if rate < 1:
    assert want == pytest.approx((1 - rate**6) / (1 - rate))
  assert theory.expected_tokens(rate, 0) == 1


def test_tokens_of_rates_on_an_example():
  assert theory.tokens_of_rates([.5, .2, 1.]) == pytest.approx(1 + .5 + .1 + .1)


@many
@hypothesis.given(LISTS)
def test_tokens_of_rates_equal_the_mean_over_outcomes(rates):
  want = 0
  for k in range(len(rates) + 1):
    stop = 1 - rates[k] if k < len(rates) else 1
    want += (k + 1) * np.prod(rates[:k]) * stop
  assert theory.tokens_of_rates(rates) == pytest.approx(want)


@many
@hypothesis.given(RATES, RATES, GAMMAS)
def test_tokens_are_bounded_and_grow_with_rate_and_gamma(a, b, gamma):
  low, high = (theory.expected_tokens(x, gamma) for x in sorted((a, b)))
  assert 1 <= low <= high <= gamma + 1
  assert high <= theory.expected_tokens(max(a, b), gamma + 1)


@pytest.mark.parametrize('rate, gamma, operations, speed', [
    (.6, 2, 1.53, 1.96), (.7, 3, 1.58, 2.53), (.8, 2, 1.23, 2.44),
    (.8, 5, 1.63, 3.69), (.9, 2, 1.11, 2.71), (.9, 10, 1.60, 6.86)])
def test_published_constants(rate, gamma, operations, speed):
  """Leviathan et al. (2023), table 1: a drafter that costs nothing."""
  assert theory.operations_factor(rate, gamma, 0) == pytest.approx(
      operations, abs=.006)
  assert theory.walltime_factor(rate, gamma, 0) == pytest.approx(
      speed, abs=.006)


def test_factors_with_a_cost_on_an_example():
  tokens = 1 + .5 + .25
  assert theory.walltime_factor(.5, 2, .1) == pytest.approx(tokens / 1.2)
  assert theory.walltime_factor(.5, 2, .1, uses_q=True) == pytest.approx(
      tokens / 1.3)
  assert theory.operations_factor(.5, 2, .1) == pytest.approx(3.2 / tokens)
  assert theory.operations_factor(.5, 2, .1, uses_q=True) == pytest.approx(
      3.3 / tokens)
  by_position = 1 + .9 + .9 * .5
  for uses_q, steps in ((False, 2), (True, 3)):
    assert theory.walltime_factor(
        [.9, .5], 2, .1, uses_q=uses_q) == pytest.approx(
            by_position / (1 + .1 * steps))
    assert theory.operations_factor(
        [.9, .5], 2, .1, uses_q=uses_q) == pytest.approx(
            (3 + .1 * steps) / by_position)
  for uses_q in (False, True):
    assert theory.walltime_factor(.5, 0, .1, uses_q=uses_q) == 1


def test_the_analytic_speedup_counts_each_part_once():
  got = theory.analytic_speedup(3.0, verifier_one=10.0, verifier_block=12.0,
                                drafter_steps=4, drafter_one=0.75)
  assert got == 3 * 10 / (12 + 4 * 0.75)


def test_blocks_between_measured_widths_are_interpolated():
  want = [10, 11, 11.5, 12, 13.6, 15.2, 16.8, 18.4, 20]
  np.testing.assert_allclose([TIMES.block(w) for w in range(1, 10)], want)
  shuffled = theory.StepTimes({9: 20., 2: 11., 1: 10., 4: 12.}, drafter=1.)
  assert shuffled.block(3) == 11.5


@pytest.mark.parametrize('width', [0, 10])
def test_blocks_outside_the_measured_widths_are_refused(width):
  with pytest.raises(ValueError, match=f'{width} tokens; .* from 1 to 9'):
    TIMES.block(width)


def test_the_general_form_counts_drafter_steps_by_rule():
  assert theory.speedup(2.5, 3, TIMES, uses_q=False) == 25 / (3 + 12)
  assert theory.speedup(2.5, 3, TIMES, uses_q=True) == 25 / (4 + 12)
  assert theory.speedup(1., 0, TIMES, uses_q=True) == 1
  with pytest.raises(ValueError, match='10 tokens'):
    theory.speedup(2.5, 9, TIMES, uses_q=False)


@many
@hypothesis.given(RATES, GAMMAS, st.floats(0, 2), st.booleans())
def test_the_general_form_contains_the_simple_one(rate, gamma, cost, uses_q):
  flat = theory.StepTimes({1: 3., gamma + 1: 3.}, drafter=3 * cost)
  got = theory.speedup(theory.expected_tokens(rate, gamma), gamma, flat,
                       uses_q=uses_q)
  assert got == pytest.approx(
      theory.walltime_factor(rate, gamma, cost, uses_q=uses_q))


# Break-even and the best gamma.

@many
@hypothesis.given(RATES, st.floats(.01, 1), st.floats(1, 2), st.booleans())
def test_one_draft_pays_above_the_break_even(rate, cost, block, uses_q):
  times = theory.StepTimes({1: 1., 2: block}, drafter=cost)
  bar = theory.break_even(times, uses_q=uses_q)
  assert bar == pytest.approx(cost * (1 + uses_q) + block - 1)
  hypothesis.assume(abs(rate - bar) > 1e-9)
  got = theory.speedup(1 + rate, 1, times, uses_q=uses_q)
  assert (got > 1) == (rate > bar)


@many
@hypothesis.given(RATES, st.floats(.01, 1))
def test_flat_verification_pays_iff_the_rate_exceeds_the_cost(rate, cost):
  hypothesis.assume(abs(rate - cost) > 1e-9)
  gamma, speed = theory.best_gamma(
      lambda g: theory.walltime_factor(rate, g, cost), 12)
  assert (gamma > 0) == (speed > 1) == (rate > cost)


def test_a_longer_draft_may_pay_where_one_token_does_not():
  """A rule that uses q, at c = .4: 1.75 / 1.8, but 2.734 / 2.6."""
  times = theory.StepTimes({1: 1., 9: 1.}, drafter=.4)
  assert theory.break_even(times, uses_q=True) == pytest.approx(.8)
  gamma, speed = theory.best_gamma(
      lambda g: theory.walltime_factor(.75, g, .4, uses_q=True), 8)
  assert gamma == 3 and speed == pytest.approx(2.734375 / 2.6)


def test_the_best_gamma_is_the_shortest_of_the_best():
  assert theory.best_gamma([9., 1.5, 3., 2., 3.].__getitem__, 4) == (2, 3.)
  assert theory.best_gamma([9., .9, 1.].__getitem__, 2) == (0, 1.)
  gamma, speed = theory.best_gamma(
      lambda g: theory.walltime_factor(.8, g, .05), 16)
  assert gamma == 8 and speed == pytest.approx(3.09, abs=.005)
