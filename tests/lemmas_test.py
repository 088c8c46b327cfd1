"""Lemmas of Narasimhan et al. (2025) and other facts that rules must keep.

In float64, from the probabilities that the code computed in float32.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from spec_cascades import targets
from spec_cascades.warp import Warp

LOGITS_Q = jax.random.normal(jax.random.key(0), (7, 3, 8)) * 2
LOGITS_P = LOGITS_Q + jax.random.normal(jax.random.key(1), (7, 3, 8))
DEFERRAL = (targets.Chow(.4), targets.Diff(.1), targets.OPT(.3),
            targets.ChowLog(1.), targets.DiffLog(.1), targets.OPTLog(.3),
            targets.BiLD(1.), targets.Lenience(.3))
TOKEN = (targets.TokenV1(.3), targets.TokenV2(.1), targets.TokenV3(.4))
OTHERS = (targets.Lossless(), targets.Lossy(.3), targets.LossyBeta(.3),
          targets.LossyBudget(.1), targets.Ensemble(.4),
          targets.TruncatedTopP(.2), targets.TruncatedMinP(.2),
          targets.TruncatedEta(.05))
ALPHAS = (.05, .2, .4, .7, .95)
TEMPERATURES = pytest.mark.parametrize('temperature', [1., .5, 0.])
name = lambda rule: type(rule).__name__


RUN = jax.jit(lambda rule, q, p: rule(q, p))


@functools.cache
def pair(temperature, top_p=.95):
  return jax.jit(lambda warp: (warp(LOGITS_Q), warp(LOGITS_P)))(
      Warp(temperature, top_p=top_p))


def wide(x):
  return np.asarray(x, np.float64)


def rejects(q, pi):
  """The chance to reject a draw from q: sum (q - pi)+."""
  return np.maximum(q - pi, 0).sum(-1)


def kl(p, pi):
  """KL(p || pi) of one law."""
  with np.errstate(divide='ignore'):
    return (p[p > 0] * np.log(p[p > 0] / pi[p > 0])).sum()


# Lemmas.


@TEMPERATURES
@pytest.mark.parametrize('rule', DEFERRAL + TOKEN + OTHERS, ids=name)
def test_lemma_2_drafts_judged_against_pi_follow_pi(rule, temperature):
  """Our notes have the number of this lemma, not its words.

  What is tested is what every rule rests on: x ~ q~, kept with probability
  min(1, pi(x) / q~(x)), else replaced by a draw from norm((pi - q~)+), follows
  pi, for every rule's pi.
  """
  q, p = pair(temperature)
  pi, q = wide(RUN(rule, q, p).pi), wide(q.probs)
  accept = np.where(q > 0, np.minimum(1, pi / np.where(q > 0, q, 1)), 0)
  rest = np.maximum(pi - q, 0)
  total = rest.sum(-1, keepdims=True)
  rejected = (q * (1 - accept)).sum(-1, keepdims=True)
  law = q * accept + rejected * rest / np.where(total > 0, total, 1)
  np.testing.assert_allclose(law, pi, atol=1e-6, rtol=0)


LOSSES = dict(error=lambda x: 1 - wide(x.raw).max(-1),
              entropy=lambda x: -(wide(x.raw) * np.log(wide(x.raw))).sum(-1))


@TEMPERATURES
@pytest.mark.parametrize('rule, loss, price', [
    (targets.Diff(.1), 'error', lambda tv: .1),
    (targets.OPT(.3), 'error', lambda tv: .3 * tv),
    (targets.DiffLog(.1), 'entropy', lambda tv: .1),
    (targets.OPTLog(.3), 'entropy', lambda tv: .3 * tv)],
                         ids=['Diff', 'OPT', 'DiffLog', 'OPTLog'])
def test_optimal_deferral_has_the_least_loss_and_price(
    rule, loss, price, temperature):
  """(1 - r) loss(q) + r (loss(p) + price) is least, over r in [0, 1].

  The price of a deferral is constant (a cascade's), or alpha TV(p~, q~), alpha
  a rejection (a speculative cascade's); each model is its own estimate of what
  it loses: its chance to be wrong, or its entropy.
  """
  q, p = pair(temperature)
  own, other = LOSSES[loss](q), LOSSES[loss](p)
  cost = price(rejects(wide(q.probs), wide(p.probs)))
  total = lambda r: (1 - r) * own + r * (other + cost)
  chosen = wide(RUN(rule, q, p).deferral)
  assert 0 < chosen.mean() < 1
  for r in (0, .3, 1, 1 - chosen):
    assert (total(chosen) <= total(r) + 1e-6).all()
  assert (total(1 - chosen) > total(chosen) + .01).any()


@TEMPERATURES
@pytest.mark.parametrize('rule', DEFERRAL, ids=name)
def test_lemma_3_deferral_rejects_with_probability_r_tv(rule, temperature):
  """r TV(p~, q~), where pi = (1 - r) q~ + r p~ and r is 0 or 1."""
  q, p = pair(temperature)
  fused = RUN(rule, q, p)
  r, tv = wide(fused.deferral), rejects(wide(q.probs), wide(p.probs))
  assert set(r.ravel()) <= {0., 1.}
  np.testing.assert_allclose(rejects(wide(q.probs), wide(fused.pi)), r * tv,
                             atol=1e-6, rtol=0)


@pytest.mark.parametrize('alpha', ALPHAS)
def test_lemma_7_greedy_token_v3_is_the_lenience_of_leviathan(alpha):
  """Temperature 0: the draft stands iff p(x) >= (1 - alpha) max p."""
  q, p = pair(0.)
  pi = np.asarray(targets.TokenV3(alpha)(q, p).pi)
  raw, best = np.asarray(p.raw), np.asarray(LOGITS_Q).argmax(-1)[..., None]
  stands = np.take_along_axis(raw, best, -1) >= (1 - alpha) * raw.max(
      -1, keepdims=True)
  np.testing.assert_array_equal(np.take_along_axis(pi, best, -1), stands)
  np.testing.assert_array_equal(pi, np.where(stands, q.probs, p.probs))
  np.testing.assert_array_equal(pi, targets.Lenience(alpha)(q, p).pi)


@pytest.mark.parametrize('alpha', ALPHAS)
def test_lemma_10_greedy_opt_is_diff(alpha):
  """At temperature 0 TV(p~, q~) is 1 where the two rules matter."""
  q, p = pair(0.)
  np.testing.assert_array_equal(targets.OPT(alpha)(q, p).pi,
                                targets.Diff(alpha)(q, p).pi)


# Rejection.


@TEMPERATURES
def test_lossless_decoding_rejects_with_probability_tv(temperature):
  q, p = pair(temperature)
  tv = np.abs(wide(q.probs) - wide(p.probs)).sum(-1) / 2
  pi = wide(targets.Lossless()(q, p).pi)
  np.testing.assert_allclose(rejects(wide(q.probs), pi), tv, atol=1e-6, rtol=0)


@TEMPERATURES
@pytest.mark.parametrize('rule', [targets.Lossy, targets.LossyBeta])
def test_lossy_rules_reject_what_exceeds_their_lenience(rule, temperature):
  """sum (q~ - p~ / (1 - alpha))+, whatever beta."""
  q, p = pair(temperature)
  want = rejects(wide(q.probs), wide(p.probs) / (1 - .3))
  fused = RUN(rule(.3), q, p)
  np.testing.assert_allclose(rejects(wide(q.probs), wide(fused.pi)), want,
                             atol=1e-6, rtol=0)
  np.testing.assert_allclose(fused.deferral, want, atol=1e-6, rtol=0)


@TEMPERATURES
@pytest.mark.parametrize('rule', TOKEN, ids=name)
def test_token_rules_reject_distrusted_mass_that_p_does_not_give_back(
    rule, temperature):
  """sum_v (r(v) q~(v) - eta p~(v))+, eta = sum_v r(v) q~(v)."""
  q, p = pair(temperature)
  r = np.asarray(rule.distrusts(q, p.raw, rule.alpha))
  left = wide(q.probs) * r
  eta = left.sum(-1, keepdims=True)
  fused = RUN(rule, q, p)
  np.testing.assert_allclose(
      rejects(wide(q.probs), wide(fused.pi)),
      rejects(left, eta * wide(p.probs)), atol=1e-6, rtol=0)
  np.testing.assert_allclose(fused.deferral, eta[..., 0], atol=1e-6, rtol=0)


# What is lossless, and where.


def test_greedy_lossy_is_lossless():
  q, p = pair(0.)
  for rule in (targets.Lossy, targets.LossyBeta, targets.LossyBudget):
    np.testing.assert_allclose(RUN(rule(.3), q, p).pi, p.probs, atol=1e-6)


def test_token_rules_at_zero_are_not_lossless():
  """The argmax of p is trusted whatever q gives it; V1 distrusts more."""
  q, p = pair(1.)
  for rule in (targets.TokenV2, targets.TokenV3):
    assert np.abs(rule(0.)(q, p).pi - p.probs).max() > .01
    np.testing.assert_allclose(rule(-.1 if rule is targets.TokenV3 else -1.)(
        q, p).pi, p.probs, atol=1e-6)


def test_chow_at_zero_keeps_a_certain_drafter():
  """In float32 max q is 1.0 long before q is one-hot."""
  sure = jnp.zeros((1, 8)).at[:, 2].set(30.)
  q, p = Warp()(sure), Warp()(LOGITS_P[0, :1])
  assert 0 < wide(jax.nn.softmax(sure)).min() and q.confidence == 1
  np.testing.assert_array_equal(targets.Chow(0.)(q, p).pi, q.probs)
  np.testing.assert_array_equal(targets.Chow(-1e-6)(q, p).pi, p.probs)


def test_entropy_rules_at_the_ends_of_their_range():
  """H is at most log V: uniform drafters are kept at log V, not under it."""
  flat, sure = Warp()(jnp.zeros((1, 8))), Warp()(40 * jnp.eye(8)[:1])
  end = float(np.log(8))
  for rule, kept, lost in (
      (targets.ChowLog, end + 1e-6, end - 1e-5),
      (targets.DiffLog, end + 1e-6, end - 1e-5),
      (targets.ChowLog, end + 1e-6, -1e-6)):
    np.testing.assert_array_equal(rule(kept)(flat, sure).pi, flat.probs)
    np.testing.assert_array_equal(rule(lost)(flat, sure).pi, sure.probs)
  np.testing.assert_array_equal(
      targets.DiffLog(-end - 1e-5)(sure, flat).pi, flat.probs)


@pytest.mark.parametrize('rule', [
    x for x in DEFERRAL if not isinstance(x, (targets.OPT, targets.OPTLog))],
                         ids=name)
def test_deferral_is_decided_before_the_warp_and_mixes_after(rule):
  """r is the same at all temperatures; OPT's TV is of what is sampled."""
  one, *others = (RUN(rule, *pair(t)).deferral for t in (1., .5, 2., 0.))
  for r in others:
    np.testing.assert_array_equal(r, one)
  assert 0 < one.mean() < 1
  for rule in (targets.OPT(.3), targets.OPTLog(.3)):
    q, p = pair(.5)
    tv = rejects(wide(q.probs), wide(p.probs))
    score = (lambda x: -wide(x.confidence)) if isinstance(
        rule, targets.OPT) else lambda x: -(
            wide(x.raw) * np.log(wide(x.raw))).sum(-1)
    np.testing.assert_array_equal(rule(q, p).deferral,
                                  score(q) > score(p) + .3 * tv)


# Lossy sampling.


def test_published_lossy_formula_does_not_sum_to_one():
  """Hence ours, which is the law of its acceptance and residual."""
  q, p = (wide(x.probs) for x in pair(1.))
  sums = [np.maximum(np.minimum(q, p / (1 - alpha)), p).sum(-1).max()
          for alpha in (0., .3, .5, .9)]                      # beta = 1
  assert abs(sums[0] - 1) < 1e-6 and (np.diff(sums) > .01).all()
  for alpha in (.3, .5, .9):
    pi = RUN(targets.Lossy(alpha), *pair(1.)).pi
    np.testing.assert_allclose(pi.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize('alpha', ALPHAS)
def test_beta_solves_its_equation_between_1_and_1_over_r(alpha):
  """sum (p~/beta - q~)+ = R falls with beta; R = 0 gives q~."""
  q, p = pair(1.)
  pi = RUN(targets.LossyBeta(alpha), q, p).pi
  pi, q, p = (wide(x) for x in (pi, q.probs, p.probs))
  zeros = 0
  for at in np.ndindex(7, 3):
    lost = rejects(q[at], p[at] / (1 - alpha))
    if lost < 1e-9:
      np.testing.assert_allclose(pi[at], q[at], atol=1e-6, rtol=0)
      zeros += 1
      continue
    over = lambda beta, at=at, lost=lost: rejects(p[at] / beta, q[at]) - lost
    grid = [over(beta) for beta in np.linspace(1, 1 / lost, 50)]
    assert (np.diff(grid) <= 0).all() and grid[0] >= -1e-6 and grid[-1] <= 1e-6
    beta = optimize.brentq(over, 1 - 1e-6, 1 / lost + 1e-6)
    law = np.maximum(np.minimum(q[at], p[at] / (1 - alpha)), p[at] / beta)
    np.testing.assert_allclose(law.sum(), 1, atol=1e-6)
    np.testing.assert_allclose(pi[at], law, atol=1e-6, rtol=0)
  assert zeros == 0 or alpha > .1


def test_tuned_lossy_accepts_most_of_all_laws_within_its_budget():
  """KL(p~ || pi) <= D; laws near pi that fit too accept no more.

  Nothing is truncated: where p~ is 0 and q~ is not, no lenience keeps the
  draft, and the budget may be left unspent.
  """
  draw, compared = np.random.default_rng(0), 0
  q, p = pair(1., 1.)
  pi = RUN(targets.LossyBudget(.05), q, p).pi
  pi, q, p = (wide(x) for x in (pi, q.probs, p.probs))
  for at in np.ndindex(7, 3):
    spent, accepted = kl(p[at], pi[at]), np.minimum(q[at], pi[at]).sum()
    assert spent <= .05 + 1e-5
    if accepted > 1 - 1e-6:
      continue
    assert spent > .05 - 1e-4                    # nothing is left unspent
    others = np.concatenate([draw.dirichlet(np.full(8, .3), 300), np.eye(8),
                             [p[at], q[at]]])
    for share in (.5, .1, .02, .004):
      for other in (1 - share) * pi[at] + share * others:
        if kl(p[at], other) <= spent:
          compared += 1
          assert np.minimum(q[at], other).sum() <= accepted + 1e-5
  assert compared > 1000
