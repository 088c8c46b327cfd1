"""Formulas against published constants, enumeration, simulation and decodes."""
import itertools
import json

import hypothesis
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, theory
from spec_cascades.drafters import chain
from spec_cascades.warp import Warp
from tests.common import LM, keys, prompt

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
  got = theory.rates_by_position(histogram, corrected)
  np.testing.assert_allclose(got, rates, rtol=1e-6)


def test_rates_without_cuts_on_an_example():
  histogram = [10, 6, 4, 20]
  np.testing.assert_allclose(theory.rates_by_position(histogram),
                             [30 / 40, 24 / 30, 20 / 24])
  assert theory.iid_rate(histogram) == (6 + 8 + 60) / (6 + 8 + 60 + 20)
  rows = [[10, 0, 4, 0], [0, 6, 0, 20]]
  np.testing.assert_array_equal(
      theory.rates_by_position(rows, [14, 6]),
      theory.rates_by_position(histogram))


def test_cuts_leave_the_bins_in_proportion_up_to_what_these_hold():
  """30 rounds emitted one draft or more, 20 emitted two or more."""
  got = theory.rates_by_position([10, 10, 10, 10], 10 + 20 - 5)
  np.testing.assert_allclose(got, [30 / 40, 20 / 27, 10 / 18])
  # Of 4 cuts the bin of one draft can give but 1.
  got = theory.rates_by_position([10, 1, 9, 20], 10 + 10 - 4)
  np.testing.assert_allclose(got, [30 / 40, 1, 20 / 26])


@many
@hypothesis.given(st.lists(st.integers(0, 50), min_size=2, max_size=7),
                  st.data())
def test_the_iid_rate_maximises_the_likelihood(histogram, data):
  hypothesis.assume(sum(histogram) > 0)
  corrected = data.draw(st.integers(histogram[0], sum(histogram[:-1])))
  accepted = sum(j * count for j, count in enumerate(histogram))
  rate = theory.iid_rate(histogram, corrected)
  assert rate == pytest.approx(accepted / (accepted + corrected))
  grid = np.linspace(1e-6, 1 - 1e-6, 501)
  likelihood = lambda a: accepted * np.log(a) + corrected * np.log1p(-a)
  inside = np.clip(rate, 1e-6, 1 - 1e-6)
  assert likelihood(inside) >= likelihood(grid).max() - 1e-9


def test_positions_that_nobody_reached_have_no_rate():
  got = theory.rates_by_position([3, 2, 0, 0])
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
    got = theory.rates_by_position(histogram, corrected)
    errors.append(np.abs(got - rates).max())
    blind = theory.rates_by_position(histogram)
    assert theory.iid_rate(histogram, corrected) > theory.iid_rate(histogram)
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
  stats = decoded[2].stats
  sums = np.asarray(stats.histogram), np.asarray(stats.corrected)
  assert theory.iid_rate(*sums) == pytest.approx(RATE, abs=.015)
  np.testing.assert_allclose(theory.rates_by_position(*sums), RATE, atol=.03)
  blind = theory.rates_by_position(sums[0])
  assert (blind[1:] < RATE - .05).all()


# Plans.

COSTS = {'verifier': {'1': 10., '2': 11., '4': 12., '9': 20.}, 'drafter': 1.}


def test_a_plan_is_the_best_of_all_gammas_sorted():
  rules = {'slow': {'uses_q': True, 'rate': .5},
           'fast': {'uses_q': False, 'rate': .9},
           'never': {'uses_q': True, 'rate': 0.}}
  got = theory.plan(json.loads(json.dumps(rules)), COSTS)
  assert [x.rule for x in got] == ['fast', 'slow', 'never']
  for x in got[:2]:
    rule = rules[x.rule]
    tokens = [theory.expected_tokens(rule['rate'], g) for g in range(9)]
    speed = [theory.speedup(tokens[g], g, TIMES, uses_q=rule['uses_q'])
             for g in range(9)]
    assert x == theory.Plan(x.rule, int(np.argmax(speed)),
                            tokens[x.gamma], max(speed), 8)
  assert 0 < got[1].gamma < got[0].gamma
  assert got[2] == theory.Plan('never', 0, 1., 1., 8)
  assert theory.plan({}, COSTS) == []


def test_a_plan_knows_every_kind_of_estimate():
  rates, texts = [.75, .8, .5], [[.9, .8, .9, .7], [1., .2]]
  histogram = [10, 6, 12, 0, 0]               # nobody got past two drafts
  rules = {
      'rates': dict(rates=rates), 'histogram': dict(histogram=histogram),
      'cut': dict(histogram=[10, 10, 10, 10], corrected=25),
      'texts': dict(texts=texts)}
  got = {x.rule: x for x in theory.plan(
      {name: dict(rule, uses_q=False) for name, rule in rules.items()},
      dict(COSTS, drafter=.01))}
  limits = {name: x.max_gamma for name, x in got.items()}
  assert limits == dict(rates=3, histogram=3, cut=3, texts=8)
  tokens = {name: x.tokens for name, x in got.items()}
  cut = theory.rates_by_position([10, 10, 10, 10], 25)
  assert tokens == pytest.approx(dict(
      rates=1 + .75 + .6 + .3, histogram=1 + 18 / 28 + 12 / 28,
      cut=theory.tokens_of_rates(cut),
      texts=theory.tokens_per_call(texts, got['texts'].gamma)))
  assert got['texts'].speedup == max(
      theory.speedup(theory.tokens_per_call(texts, g), g,
                     theory.StepTimes(TIMES.verifier, .01), uses_q=False)
      for g in range(1, 9))


def test_a_rule_may_have_its_own_costs_and_a_plan_its_own_limit():
  rules = {'shared': {'uses_q': False, 'rate': .9},
           'own': {'uses_q': False, 'rate': .9, 'drafter': 0.},
           'table': {'uses_q': False, 'rate': .9, 'verifier': {1: 1, 3: 1},
                     'drafter': 0}}
  got = theory.plan(rules, COSTS, 4)
  assert [(x.rule, x.max_gamma) for x in got] == [
      ('own', 4), ('table', 2), ('shared', 4)]
  assert got[1].gamma == 2 and got[1].speedup == pytest.approx(1 + .9 + .81)


# Misuse.

@pytest.mark.parametrize('call, match', [
    (lambda: theory.expected_tokens(1.1, 3), 'rate is 1.1.*0 to 1'),
    (lambda: theory.expected_tokens(np.nan, 3), 'rate is nan'),
    (lambda: theory.expected_tokens(.5, -1), 'gamma.* of -1'),
    (lambda: theory.tokens_of_rates([.5, -.1]), 'rate is -0.1'),
    (lambda: theory.walltime_factor(.5, 2, -.1), 'cost is -0.1'),
    (lambda: theory.operations_factor(.5, 2, -.1), 'cost is -0.1'),
    (lambda: theory.operations_factor(.5, -1, .1), 'gamma.* of -1'),
    (lambda: theory.speedup(2., -1, TIMES, uses_q=True), 'gamma.* of -1'),
    (lambda: theory.best_gamma(float, 0), 'up to gamma 0'),
    (lambda: theory.StepTimes({2: 1.}, 1.), r'widths \[2\]'),
    (lambda: theory.StepTimes({}, 1.), r'widths \[\]'),
    (lambda: theory.StepTimes({0: 1., 1: 1.}, 1.), 'Width of a block is 0'),
    (lambda: theory.StepTimes({1: 0.}, 1.), 'Time of a block is 0.*above'),
    (lambda: theory.StepTimes({1: 1.}, -1.), 'drafter step is -1'),
    (lambda: theory.break_even(theory.StepTimes({1: 1.}, 1.), uses_q=False),
     '2 tokens'),
    (lambda: theory.iid_rate([0, 0]), '0 rounds in 2 bins'),
    (lambda: theory.rates_by_position([7]), '7 rounds in 1 bins'),
    (lambda: theory.rates_by_position([]), '0 rounds in 0 bins'),
    (lambda: theory.rates_by_position([3, -1]), 'bin is -1'),
    (lambda: theory.rates_by_position([3, 1, 2], 5), 'corrected is 5.*3 to 4'),
    (lambda: theory.iid_rate([3, 1, 2], 2), 'corrected is 2.*3 to 4'),
    (lambda: theory.round_starts([.5, 1.5], 2), 'acceptance is 1.5'),
    (lambda: theory.round_starts([.5], -1), 'gamma.* of -1'),
    (lambda: theory.tokens_per_call([], 2), '0 texts without a token'),
    (lambda: theory.expected_rounds([[], []], 2), '2 texts without a token')])
def test_misuse_is_one_clear_line(call, match):
  with pytest.raises(ValueError, match=match) as error:
    call()
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('rule, match', [
    (dict(rate=.5), 'Got drafter, rate, verifier; allowed'),
    (dict(uses_q=True), 'allowed: .* one of rate, rates'),
    (dict(uses_q=True, rate=.5, rates=[.5]), 'one of rate, rates'),
    (dict(uses_q=True, rate=.5, corrected=3), 'next to histogram'),
    (dict(uses_q=True, rate=.5, gamma=3), 'Got drafter, gamma'),
    (dict(uses_q=True, rate=1.5), 'rate is 1.5'),
    (dict(uses_q=True, rate=.5, verifier={'1': 1.}), 'up to gamma 0'),
    (dict(uses_q=True, rates=[]), 'up to gamma 0')])
def test_plans_name_the_rule_that_is_wrong(rule, match):
  rules = {'fine': {'uses_q': False, 'rate': .5}, 'wrong': rule}
  with pytest.raises(ValueError, match="^Rule 'wrong': .*" + match):
    theory.plan(rules, COSTS)
