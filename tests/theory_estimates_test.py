"""Estimates against enumeration, simulation and decodes of the engine."""
import itertools

import hypothesis
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, stats, targets, theory
from spec_cascades.drafters import chain
from spec_cascades.warp import Warp
from tests.common import LM, keys, prompt

many = hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
RATES = st.floats(0, 1)
LISTS = st.lists(RATES, min_size=1, max_size=6)
GAMMAS = st.integers(1, 6)


# Estimates from histograms.

def counts_of(rates, hazard, rounds):
  """Expected histogram and corrections: each emitted draft ends its sequence
  with probability `hazard`, which cuts the round."""
  histogram, corrected, live = np.zeros(len(rates) + 1), 0, rounds
  for i, rate in enumerate(rates):
    rejected, emitted = live * (1 - rate), live * rate
    histogram[i] += rejected
    histogram[i + 1] += emitted * hazard
    corrected, live = corrected + rejected, emitted * (1 - hazard)
  histogram[-1] += live
  return histogram, min(corrected, histogram[:-1].sum())


@many
@hypothesis.given(st.lists(st.floats(.05, 1), min_size=1, max_size=6),
                  st.floats(0, .5))
def test_rates_are_exact_on_expected_counts(rates, hazard):
  histogram, corrected = counts_of(rates, hazard, 1e4)
  got = stats.rates_by_position(histogram, corrected)
  np.testing.assert_allclose(got, rates, rtol=1e-6)


def test_rates_without_cuts_on_an_example():
  histogram = [10, 6, 4, 20]
  np.testing.assert_allclose(stats.rates_by_position(histogram),
                             [30 / 40, 24 / 30, 20 / 24])
  assert stats.iid_rate(histogram) == (6 + 8 + 60) / (6 + 8 + 60 + 20)
  rows = [[10, 0, 4, 0], [0, 6, 0, 20]]
  np.testing.assert_array_equal(
      stats.rates_by_position(rows, [14, 6]),
      stats.rates_by_position(histogram))


def test_cuts_leave_the_bins_in_proportion_up_to_what_these_hold():
  """30 rounds emitted one draft or more, 20 emitted two or more."""
  got = stats.rates_by_position([10, 10, 10, 10], 10 + 20 - 5)
  np.testing.assert_allclose(got, [30 / 40, 20 / 27, 10 / 18])
  # Of 4 cuts the bin of one draft can give but 1.
  got = stats.rates_by_position([10, 1, 9, 20], 10 + 10 - 4)
  np.testing.assert_allclose(got, [30 / 40, 1, 20 / 26])


@many
@hypothesis.given(st.lists(st.integers(0, 50), min_size=2, max_size=7),
                  st.data())
def test_the_iid_rate_maximises_the_likelihood(histogram, data):
  hypothesis.assume(sum(histogram) > 0)
  corrected = data.draw(st.integers(histogram[0], sum(histogram[:-1])))
  accepted = sum(j * count for j, count in enumerate(histogram))
  rate = stats.iid_rate(histogram, corrected)
  assert rate == pytest.approx(accepted / (accepted + corrected))
  grid = np.linspace(1e-6, 1 - 1e-6, 501)
  likelihood = lambda a: accepted * np.log(a) + corrected * np.log1p(-a)
  inside = np.clip(rate, 1e-6, 1 - 1e-6)
  assert likelihood(inside) >= likelihood(grid).max() - 1e-9


def test_positions_that_nobody_reached_have_no_rate():
  got = stats.rates_by_position([3, 2, 0, 0])
  np.testing.assert_array_equal(got, [.4, 0, np.nan])


def test_estimates_from_simulated_rounds_converge():
  """And are biased where cuts count as rejections."""
  rng = np.random.default_rng(0)
  rates, hazard = np.array([.9, .6, .8, .7]), .1
  errors = []
  for rounds in (1_000, 1_000_000):
    run = np.cumprod(rng.random((rounds, 4)) < rates, 1).sum(1)
    end = rng.geometric(hazard, rounds)        # the draft that is a last token
    histogram = np.bincount(np.minimum(run, end), minlength=5)
    corrected = ((run < end) & (run < 4)).sum()
    got = stats.rates_by_position(histogram, corrected)
    errors.append(np.abs(got - rates).max())
    blind = stats.rates_by_position(histogram)
    assert stats.iid_rate(histogram, corrected) > stats.iid_rate(histogram)
  assert errors[1] < .005 and errors[1] < errors[0] < .1
  assert (rates[1:] - blind[1:] > .03).all() and blind[0] == got[0]


# The renewal recursion.

def rounds_of(accepted, gamma):
  """Round starts of one text whose drafts would be accepted or not."""
  starts, t = [], 0
  while t < len(accepted):
    starts.append(t)
    k = 0
    while k < gamma and t + k < len(accepted) and accepted[t + k]:
      k += 1
    t += k + 1
  return starts


def test_round_starts_on_an_example():
  """Token 2 starts a round if 1 was a bonus (.5) or was rejected (.25)."""
  np.testing.assert_allclose(theory.round_starts([.5] * 3, 1), [1, .5, .75])
  np.testing.assert_allclose(theory.round_starts([1.] * 5, 2), [1, 0, 0, 1, 0])
  np.testing.assert_allclose(theory.round_starts([.3] * 3, 0), 1)


@many
@hypothesis.given(LISTS, st.integers(0, 7))
def test_round_starts_equal_enumeration(accept, gamma):
  want = np.zeros(len(accept))
  for outcome in itertools.product([False, True], repeat=len(accept)):
    chance = np.prod([a if x else 1 - a for a, x in zip(accept, outcome)])
    want[rounds_of(outcome, gamma)] += chance
  np.testing.assert_allclose(theory.round_starts(accept, gamma), want,
                             atol=1e-12)
  np.testing.assert_allclose(
      theory.expected_rounds(accept, gamma), [want.sum()])
  np.testing.assert_allclose(
      theory.tokens_per_call(accept, gamma), len(accept) / want.sum())


def test_round_starts_by_depth():
  """An example by hand; as without depths where they don't matter; simulated.
  """
  by_depth = theory.round_starts_by_depth
  np.testing.assert_allclose(by_depth([[.5, 0], [1, .5], [1, 1]]), [1, .5, .25])
  rng = np.random.default_rng(5)
  flat = rng.random((2, 12))
  for gamma in (1, 2, 5):
    np.testing.assert_allclose(by_depth(np.repeat(flat[..., None], gamma, -1)),
                               theory.round_starts(flat, gamma))
  accept = rng.random((20000, 3)) ** [1, 2, 3]           # deeper, less often
  rounds = drafts = 0
  for row in accept:
    rounds += drafts == 0
    kept = drafts < 3 and rng.random() < row[drafts]
    drafts = drafts + 1 if kept else 0
  assert by_depth(accept).sum() == pytest.approx(rounds, rel=.02)
  with pytest.raises(ValueError, match='acceptance is 1.5'):
    by_depth([[1.5]])


def test_round_starts_equal_simulation_on_a_long_text():
  rng = np.random.default_rng(1)
  accept = np.repeat(rng.beta(1, .5, 50), 20)         # easy and hard stretches
  runs, gamma = 300, 4
  rounds = np.array([len(rounds_of(rng.random(1000) < accept, gamma))
                     for _ in range(runs)])
  error = rounds.std() / runs**.5
  want, = theory.expected_rounds(accept, gamma)
  assert abs(rounds.mean() - want) < 4 * error < .01 * want
  iid = 1000 / theory.expected_tokens(accept.mean(), gamma)
  assert abs(iid - want) > 10 * error          # what the formula leaves out


@pytest.mark.parametrize('rate', [0., .6, .95, 1.])
def test_long_texts_of_one_rate_meet_the_iid_formula(rate):
  got = theory.tokens_per_call(np.full(20_000, rate), 5)
  assert got == pytest.approx(theory.expected_tokens(rate, 5), rel=1e-3)


@many
@hypothesis.given(LISTS, LISTS, GAMMAS)
def test_calls_are_bounded_and_fall_with_acceptance_and_gamma(a, b, gamma):
  a, b = (np.array(x[:min(len(a), len(b))]) for x in (a, b))
  high, = theory.expected_rounds(np.minimum(a, b), gamma)
  low, = theory.expected_rounds(np.maximum(a, b), gamma)
  longer, = theory.expected_rounds(np.maximum(a, b), gamma + 1)
  assert longer <= low + 1e-12 and low <= high + 1e-12
  assert -(-len(a) // (gamma + 1)) - 1e-12 <= low and high <= len(a) + 1e-12


def test_texts_of_different_lengths_are_each_their_own():
  texts = [[.2, .9, .4, .7, .1], [], [.8], [.5, .5, 1.]]
  want = [theory.expected_rounds(x, 2)[0] if x else 0 for x in texts]
  np.testing.assert_allclose(theory.expected_rounds(texts, 2), want)
  assert theory.tokens_per_call(texts, 2) == pytest.approx(9 / sum(want))
  rows = np.array([texts[3], texts[3][::-1]])
  np.testing.assert_allclose(
      theory.round_starts(rows, 2)[1], theory.round_starts(rows[1], 2))


# A decode of the engine.

SHORT = np.array([.4, .1, .3, .15, .05]), np.array([.3, .12, .2, .15, .23])
RATE = np.minimum(*SHORT).sum()           # the same after any two tokens


@pytest.fixture(scope='module')
def decoded():
  """Laws p, q [V, V, V] and short rows, many of which end in a cut round."""
  p, q = (np.array([[np.roll(law, i + 2 * j) for j in range(5)]
                    for i in range(5)]) for law in SHORT)
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3), 19, eos=1)
  rows = 2048
  state = spec(*(jnp.log(jnp.float32(x)) for x in (p, q)), prompt(rows),
               keys(rows), targets.Lossless(), Warp())
  return p, q, state


def test_a_teacher_forced_pass_predicts_the_calls_of_a_decode(decoded):
  """Token y of a text was accepted with probability min(1, q(y) / pi(y))."""
  p, q, state = decoded
  tokens, lengths = np.asarray(state.tokens), np.asarray(state.lengths)
  accept = np.minimum(1, q / p)[tokens[:, 1:-2], tokens[:, 2:-1], tokens[:, 3:]]
  texts = [row[:n - 3] for row, n in zip(accept, lengths)]
  assert (lengths < 19).any() and (lengths == 19).any()
  rounds = np.asarray(state.stats.rounds)

  def score(gamma):
    error = rounds - theory.expected_rounds(texts, gamma)
    return error.mean() / (error.std() / len(error)**.5)
  assert abs(score(3)) < 4 and abs(score(2)) > 10
  assert theory.tokens_per_call(texts, 3) == pytest.approx(
      float(state.stats.emitted.sum() / state.stats.rounds.sum()), rel=.02)


def test_counters_of_a_decode_give_its_acceptance_rate(decoded):
  counted = decoded[2].stats
  sums = np.asarray(counted.histogram), np.asarray(counted.corrected)
  assert stats.iid_rate(*sums) == pytest.approx(RATE, abs=.015)
  np.testing.assert_allclose(stats.rates_by_position(*sums), RATE, atol=.03)
  blind = stats.rates_by_position(sums[0])
  assert (blind[1:] < RATE - .05).all()
