"""Curves against each other, and the paper's claims, on lines by hand."""
import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades.evaluation import contests
from spec_cascades.evaluation import findings
from spec_cascades.evaluation import frontier

COUNT = 50
NUMBERS = st.floats(.05, 2)


def line(method, points, *, rule='', heat=1., gamma=5, noise=0., seed=0):
  """A curve; noise moves all its latencies together, by a factor."""
  rng = np.random.default_rng(seed)
  factor = np.append(1, np.exp(noise * rng.standard_normal(COUNT)))
  x, y = np.array(points, float).T
  return contests.Line(
      method, rule or method, heat, gamma, 'chain', len(points),
      frontier.Frontier.of(factor[:, None] * x, np.tile(y, (1 + COUNT, 1))))


def of(claim, *lines):
  """The findings of one claim; all claims must be there."""
  found = findings.check(lines)
  assert len({x.claim for x in found}) == 8
  return [x for x in found if x.claim.startswith(claim)]


def verdicts(claim, *lines):
  return [x.verdict for x in of(claim, *lines)]


def test_twice_as_fast_and_ten_points_better():
  one = line('a', [(.2, 10), (.6, 30)]).frontier
  np.testing.assert_allclose(
      contests.faster(one, line('b', [(.4, 10), (1.2, 30)]).frontier), 2)
  np.testing.assert_allclose(
      contests.better(one, line('b', [(.2, 0), (.6, 20)]).frontier), 10)


def test_curves_that_span_nothing_together_meet_at_the_worse_one():
  good = line('a', [(.5, 30), (.8, 40)]).frontier
  poor = line('b', [(1., 20)]).frontier
  np.testing.assert_allclose(contests.faster(good, poor), 2)     # 1 / .5
  np.testing.assert_allclose(contests.better(good, poor), 20)    # 40 - 20
  assert not contests.meet(good, poor) and not contests.meet(poor, good)


@pytest.mark.parametrize('lossy, want', [
    ([(.4, 20), (.7, 35)], True), ([(.4, 30)], True), ([(.4, 29)], False),
    ([(.4, 41)], False), ([(.4, 20), (.7, 41)], True)])
def test_a_finding_says_whether_curves_meet(lossy, want):
  token = line('TokenV1', [(.5, 30), (.8, 40)])
  found, = of('token rules are no slower', token, line('Lossy', lossy))
  assert found.meet is want
  assert {c.meet for c in contests.contests([token, line('Lossy', lossy)])
          } == {want}


def test_a_lead_meets_where_it_does_at_both_temperatures():
  for low, want in ((10, True), (11, False)):
    found, = of('OPT\'s lead', line('OPT', [(.3, 10)]),
                line('Diff', [(.6, 10)]), line('OPT', [(.5, low)], heat=0.),
                line('Diff', [(.6, 10)], heat=0.))
    assert found.meet is want


def test_what_is_not_at_equal_quality_needs_no_meeting():
  short, long = (line(f'Chow, gamma {g}', [(.5, 10), (.8, 30)], rule='Chow',
                      gamma=g) for g in (3, 7))
  assert [x.meet for x in of('a larger gamma', short, long)] == [None, True]


@hypothesis.given(*[st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1,
                             max_size=6)] * 2)
def test_what_one_wins_the_other_loses(a, b):
  one, other = (frontier.Frontier.of(*np.array(x).T) for x in (a, b))
  speed, quality = contests.faster(one, other), contests.better(one, other)
  assert np.isfinite(speed) and np.isfinite(quality)
  np.testing.assert_allclose(speed * contests.faster(other, one), 1)
  np.testing.assert_allclose(quality, -contests.better(other, one))
  assert contests.faster(one, one) == 1 and contests.better(one, one) == 0


def test_area_by_hand():
  area = lambda *xy: float(frontier.Frontier.of(*np.array(xy).T).area())
  np.testing.assert_allclose(area((.5, 10)), 5)
  np.testing.assert_allclose(area((0, 0), (1, 10)), 5)
  np.testing.assert_allclose(area((.2, 10), (.6, 30)), .4 * 20 + .4 * 30)
  np.testing.assert_allclose(area((.5, 10), (1.5, 20)), .5 * 12.5)
  assert area((1.5, 20)) == 0


@hypothesis.given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1,
                           max_size=6))
def test_area_is_the_integral_of_the_frontier(points):
  found = frontier.Frontier.of(*np.array(points).T)
  x = (np.arange(20_000) + .5) / 20_000
  y = found.quality_at(x)
  np.testing.assert_allclose(found.area(), np.where(y > 0, y, 0).mean(),
                             atol=2e-4)


def test_every_pair_of_a_temperature_meets_in_both_orders():
  lines = [line('a', [(.5, 10)]), line('b', [(.25, 10)]),
           line('c', [(.5, 10)]), line('d', [(.5, 10)], heat=0.)]
  found = {(c.one.method, c.other.method): c
           for c in contests.contests(lines)}
  assert set(found) == set(itertools.permutations('abc', 2))
  outcome = lambda one, other: contests.outcome(found[one, other].speed, 1.)
  assert outcome('b', 'a') == contests.WIN
  assert outcome('a', 'b') == contests.LOSS
  assert outcome('a', 'c') == outcome('c', 'a') == contests.EQUAL
  noisy = contests.contests([lines[0], line('e', [(.5, 10)], noise=.3)])
  assert {contests.outcome(c.speed, 1.) for c in noisy} == {
      contests.UNDECIDED}


@pytest.mark.parametrize('latency, noise, want', [
    (.4, 0, 'confirmed'), (.5, 0, 'confirmed'), (.7, 0, 'refuted'),
    (.5, .5, 'undecided')])
def test_token_rules_against_lossy(latency, noise, want):
  token = line('TokenV3', [(latency, 10)], noise=noise)
  assert verdicts('token rules are no slower', token,
                  line('Lossy', [(.5, 10)])) == [want]


@pytest.mark.parametrize('latency, want', [
    (.5, 'confirmed'), (.51, 'confirmed'), (.6, 'refuted')])
def test_as_good_as_tuned_allows_five_per_cent(latency, want):
  assert verdicts('Lossy with beta', line('Lossy', [(latency, 10)]),
                  line('LossyBeta', [(.5, 10)])) == [want]


def test_the_rival_that_speaks_most_against_a_claim_counts():
  token = line('TokenV1', [(.5, 10)])
  slow, quick = (line(name, [(x, 10)]) for name, x in (
      ('TruncatedMinP', .9), ('TruncatedEta', .4)))
  claim = 'token rules are faster'
  assert verdicts(claim, token, slow) == ['confirmed']
  found, = of(claim, token, slow, quick)
  assert found.verdict == 'refuted' and 'TruncatedEta' in found.figure
  np.testing.assert_allclose(found.estimate.value, .8)
  assert verdicts(claim, token, line('TruncatedEta', [(.5, 10)])) == [
      'refuted']                                 # no faster is not faster


def rivals(latencies, noise):
  """Of one claim, each with noise of its own."""
  return [line(f'TruncatedEta, {i}', [(x, 10)], rule='TruncatedEta',
               noise=noise, seed=i) for i, x in enumerate(latencies, 1)]


def test_rivals_that_are_all_as_fast_refute_nothing():
  """The least of nine ratios is below 1 in nearly every resample."""
  token, equal = line('TokenV1', [(.5, 10)], noise=.03), rivals([.5] * 9, .1)
  least = np.min([contests.faster(token.frontier, x.frontier)
                  for x in equal], 0)
  assert np.quantile(least[1:], .975) < 1
  found, = of('token rules are faster', token, *equal)
  assert found.verdict == 'undecided'
  assert found.estimate.low < 1 < found.estimate.high


@pytest.mark.parametrize('latencies, want', [
    ([.9] * 9, 'confirmed'), ([.9] * 8 + [.2], 'refuted'),
    ([.9] * 8 + [.5], 'undecided')])
def test_each_rival_has_to_be_beaten_and_one_is_enough_to_lose(latencies, want):
  found, = of('token rules are faster', line('TokenV1', [(.5, 10)], noise=.1),
              *rivals(latencies, .1))
  assert found.verdict == want
  if want != 'confirmed':
    assert found.figure == 'times as fast as TruncatedEta, 9'


def test_one_of_many_rivals_needs_a_wider_interval():
  """In one resample of 50 it is slower: its 95 % are below 1, not all are."""
  token, slow = line('TokenV1', [(.5, 10)]), line('TruncatedEta', [(.4, 10)])
  slow.frontier.latencies[-1] *= 2
  others = [line(f'TruncatedMinP, {i}', [(9., 10)], rule='TruncatedMinP')
            for i in range(8)]
  claim = 'token rules are faster'
  assert verdicts(claim, token, slow) == ['refuted']
  found, = of(claim, token, slow, *others)
  assert found.estimate.high < 1 and found.verdict == 'undecided'


def test_sequential_cascades_are_slowest_if_every_other_one_is_faster():
  options = dict(rule='SeqCascade', gamma=40)
  sequential = line('SeqCascade(normalised=False)', [(.8, 10)], **options)
  chow, diff = line('Chow', [(.5, 10)]), line('Diff', [(.9, 10)])
  claim = 'sequential cascades'
  assert verdicts(claim, sequential, chow) == ['confirmed']
  assert verdicts(claim, sequential, chow, diff) == ['refuted']


def test_drafts_of_other_lengths_are_not_compared():
  lines = line('TokenV3', [(.5, 10)], gamma=3), line('Lossy', [(.5, 10)])
  assert verdicts('token rules are no slower', *lines) == ['not in this sweep']


def test_the_lead_of_opt_shrinks():
  def sweep(warm, cold):
    return [line('OPT', [(warm, 10)]), line('Diff', [(.6, 10)]),
            line('OPT', [(cold, 10)], heat=0.),
            line('Diff', [(.6, 10)], heat=0.)]
  claim = 'OPT\'s lead'
  assert verdicts(claim, *sweep(.3, .6)) == ['confirmed']
  assert verdicts(claim, *sweep(.6, .3)) == ['refuted']
  assert verdicts(claim, *sweep(.3, .6)[:2]) == ['not in this sweep']


def test_longer_drafts():
  short = line('Chow, gamma 3', [(.5, 10), (.8, 30)], rule='Chow', gamma=3)
  long = line('Chow, gamma 7', [(.3, 10), (.9, 30)], rule='Chow', gamma=7)
  assert verdicts('a larger gamma', short, long) == ['confirmed'] * 2
  swapped = [line(x.method, points, rule='Chow', gamma=x.gamma)
             for x, points in ((short, [(.3, 10), (.9, 30)]),
                               (long, [(.5, 10), (.8, 30)]))]
  assert verdicts('a larger gamma', *swapped) == ['refuted'] * 2
  assert verdicts('a larger gamma', short) == ['not in this sweep'] * 2


def test_a_sweep_without_curves_says_so():
  assert set(verdicts('')) == {'not in this sweep'}
