"""Plans for a set of rules, and what the theory refuses."""
import json

import numpy as np
import pytest

from spec_cascades import stats
from spec_cascades import theory

COSTS = {'verifier': {'1': 10., '2': 11., '4': 12., '9': 20.}, 'drafter': 1.}
TIMES = theory.StepTimes({1: 10., 2: 11., 4: 12., 9: 20.}, drafter=1.)


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
  cut = stats.rates_by_position([10, 10, 10, 10], 25)
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
    (lambda: theory.operations_factor([.5, .5], 3, .1), '2 acceptance rates'),
    (lambda: theory.walltime_factor([.5, 1.5], 2, .1), 'rate is 1.5'),
    (lambda: theory.speedup(2., -1, TIMES, uses_q=True), 'gamma.* of -1'),
    (lambda: theory.best_gamma(float, 0), 'up to gamma 0'),
    (lambda: theory.StepTimes({2: 1.}, 1.), r'widths \[2\]'),
    (lambda: theory.StepTimes({}, 1.), r'widths \[\]'),
    (lambda: theory.StepTimes({0: 1., 1: 1.}, 1.), 'Width of a block is 0'),
    (lambda: theory.StepTimes({1: 0.}, 1.), 'Time of a block is 0.*above'),
    (lambda: theory.StepTimes({1: 1.}, -1.), 'drafter step is -1'),
    (lambda: theory.break_even(theory.StepTimes({1: 1.}, 1.), uses_q=False),
     '2 tokens'),
    (lambda: stats.iid_rate([0, 0]), '0 rounds in 2 bins'),
    (lambda: stats.rates_by_position([7]), '7 rounds in 1 bins'),
    (lambda: stats.rates_by_position([]), '0 rounds in 0 bins'),
    (lambda: stats.rates_by_position([3, -1]), 'bin is -1'),
    (lambda: stats.rates_by_position([3, 1, 2], 5), 'corrected is 5.*3 to 4'),
    (lambda: stats.iid_rate([3, 1, 2], 2), 'corrected is 2.*3 to 4'),
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
