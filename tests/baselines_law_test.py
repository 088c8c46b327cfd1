"""Laws of the sequential baselines, against their enumeration."""
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import baselines, targets
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, P, Q, ROWS, assert_sums, joint, keys, p_value, prompt, tally)
from tests.sequential import Oracle, PLAIN, SPEC, Seq, Token, name


def fits(rule, warp, law, spec=SPEC):
  state = spec(P, Q, prompt(ROWS), keys(ROWS, 4), rule, warp)
  assert_sums(state, 3)
  return p_value(tally(state), law)


def law_of_seq(rule, warp):
  """Exact: q's responses that stand, and p's where they don't."""
  (q, p), raw = (np.asarray(warp(x).probs) for x in (Q, P)), np.asarray(
      jax.nn.log_softmax(Q))
  path = lambda x, a, b, c: (x[2, 3, a], x[3, a, b], x[a, b, c])
  law, again, standing = np.zeros((5,) * 3), np.zeros((5,) * 3), 0.
  for x in itertools.product(range(5), repeat=3):
    again[x] = np.prod(path(p, *x))
    logs = np.sum(path(raw, *x)) / (3 if rule.normalised else 1)
    if np.exp(logs) >= 1 - rule.alpha:
      law[x] = np.prod(path(q, *x))
      standing += law[x]
  assert .2 < standing < .8, standing
  return law + (1 - standing) * again


@pytest.mark.parametrize('alpha,warp', [
    (.4, PLAIN), (.6, Warp(.7, top_p=.9))])
def test_token_cascade_has_the_law_of_chow(alpha, warp):
  assert ROWS >= 131072
  assert fits(Token(alpha), warp, joint(targets.Chow(alpha), warp)) > LEVEL


@pytest.mark.parametrize('rule', [Token(-.1), Seq(-.1)], ids=name)
def test_at_the_strict_end_the_law_is_that_of_p(rule):
  assert fits(rule, Warp(.8), joint(targets.Lossless(), Warp(.8))) > LEVEL


@pytest.mark.parametrize('target,warp', [
    (targets.Diff(.1), PLAIN), (targets.TokenV1(.3), Warp(.7, top_k=4))],
    ids=str)
def test_oracle_cascade_has_the_law_of_its_target(target, warp):
  rule = Oracle(target.alpha, rule=type(target))
  assert fits(rule, warp, joint(target, warp)) > LEVEL


@pytest.mark.parametrize('rule,warp', [
    (Seq(.6), PLAIN), (Seq(.95, normalised=False), Warp(.8))], ids=str)
def test_seq_cascade_has_the_law_of_its_definition(rule, warp):
  assert fits(rule, warp, law_of_seq(rule, warp)) > LEVEL


def test_alpha_and_temperature_per_row():
  half = jnp.arange(ROWS) < ROWS // 2
  either = lambda a, b: jnp.where(half, a, b)
  warp = Warp(either(1., .5), top_p=either(.9, 1.))
  parts = ((slice(None, ROWS // 2), Warp(1., top_p=.9)),
           (slice(ROWS // 2, None), Warp(.5)))
  for rule, alphas, law in (
      (Token, (.2, .6), lambda a, w: joint(targets.Chow(a), w)),
      (Oracle, (.05, .3), lambda a, w: joint(targets.Diff(a), w)),
      (Seq, (.6, .55), lambda a, w: law_of_seq(Seq(a), w))):
    state = SPEC(P, Q, prompt(ROWS), keys(ROWS), rule(either(*alphas)), warp)
    for alpha, (rows, own) in zip(alphas, parts):
      assert p_value(tally(state, rows), law(alpha, own)) > LEVEL


def test_one_key_for_both_models_fails(monkeypatch):
  """p's text would be drawn with the luck that made q unsure."""
  monkeypatch.setattr(baselines, 'renewed', lambda keys: keys)
  jax.clear_caches()                           # it is not a cache key
  found = fits(Seq(.6), PLAIN, law_of_seq(Seq(.6), PLAIN))
  jax.clear_caches()
  assert found < LEVEL


def test_deferral_on_the_warped_distribution_fails(monkeypatch):
  """Chow decides at temperature 1, whatever the warp."""
  want = joint(targets.Chow(.4), Warp(.5))
  monkeypatch.setattr(targets.Chow, 'defers', lambda self, q, p, alpha: (
      jax.nn.softmax(q.logits / .5).max(-1) < 1 - alpha))
  jax.clear_caches()
  found = fits(Token(.4), Warp(.5), want)
  jax.clear_caches()
  assert found < LEVEL
