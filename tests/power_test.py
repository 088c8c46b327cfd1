"""The law test has power: deliberately biased mutants fail it."""
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from spec_cascades import decode, exact, targets, types, verify
from spec_cascades import struct
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.chain import Chain
from spec_cascades.verify import Rejection
from tests.common import LEVEL, LM, PREFIX, ROWS, SHARP, joint, law_test
from tests.lawcases import FAST, SLOW, drafts_of
from tests.lenient import LENIENT

WARP = warp_lib.Warp()
TOKEN = targets.TokenV1(.3)


@struct.dataclass
class Chainwise(verify.Fixed):
  """Algorithm 4 on chains, with places to break it."""
  lenience: float = 1.0
  residual_of: str = struct.field(pytree_node=False, default='pi')
  bonus_of: str = struct.field(pytree_node=False, default='pi')
  supports = Rejection.supports

  def __call__(self, key, draft, p, pi):
    q, x, n = draft.prediction.probs, draft.tree.tokens[1:], len(pi)
    of, i = dict(pi=pi, p=p.probs), jnp.arange(n)
    key_accept, key_next = jax.random.split(key)
    at, uniform = i[:-1], jax.random.uniform(key_accept, (n,))[1:]
    accept = uniform * q[at, x] < self.lenience * pi[at, x]
    count = jnp.argmin(jnp.append(accept, False)).astype(jnp.int32)
    law = jnp.where(count == n - 1, of[self.bonus_of][count],
                    warp_lib.residual(of[self.residual_of][count], q[count]))
    return types.Verdict(i, count, warp_lib.sample(law, key_next))


@struct.dataclass
class Wrapped:
  """A target that is given something else."""
  target: Any
  uses_q = True

  def validate(self, batch=None):
    del batch


@struct.dataclass
class Swapped(Wrapped):
  """Confuses the two models."""

  def __call__(self, q, p):
    return self.target(p, q)


@struct.dataclass
class Heated(Wrapped):
  """Decides on the warped distributions instead of the raw ones."""

  def __call__(self, q, p):
    warped = lambda x: types.Prediction(jnp.log(x.probs), x.probs)
    return self.target(warped(q), warped(p))


@struct.dataclass
class LateTemperature(warp_lib.Warp):
  """Truncates first, then applies the temperature."""

  def __call__(self, logits):
    cut = warp_lib.Warp(1., self.top_k, self.top_p, self.min_p)(logits).probs
    hot = cut ** (1 / self.temperature)
    return types.Prediction(logits, hot / hot.sum(-1, keepdims=True))


def power(law, biased, rows):
  """Probability that `p_value` falls below LEVEL: a noncentral chi-square."""
  law, biased = law.ravel(), biased.ravel()
  big = law * rows >= 5
  pool = lambda x: np.append(x[big], x[~big].sum()) * rows
  due, found = pool(law), pool(biased)
  due, found = due[due > 1e-6], found[due > 1e-6]
  freedom = max(len(due) - 1, 1)
  return stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom,
                       ((found - due)**2 / due).sum())


def true_and_lenient(case, monkeypatch):
  """Joint laws of a case's three tokens, with its verifier and a kind one."""
  p, q = (lambda context, x=np.asarray(x): x[context[-2], context[-1]]
          for x in SHARP)
  law = lambda: exact.law(
      q if case.target.uses_q or hasattr(case.drafter, 'lm') else None, p,
      case.target, case.warp, context=PREFIX, judge=case.verifier,
      drafts=drafts_of(case.drafter)).joint
  true = law()
  kind = type(case.verifier)
  monkeypatch.setitem(exact.JUDGES, kind, LENIENT[kind])
  return true, law()


def caught(case, monkeypatch):
  true, biased = true_and_lenient(case, monkeypatch)
  np.testing.assert_allclose([true.sum(), biased.sum()], 1, atol=1e-6)
  # A token is 2 % too likely where q is above p; three tokens at most 6 %.
  assert 1e-4 < exact.total_variation(true, biased) < .03
  assert power(true, biased, case.runs * ROWS) > .999
  assert power(true, true, case.runs * ROWS) < 2 * LEVEL
  return true, biased


@pytest.mark.parametrize('case', [
    case for case in FAST if hasattr(case.drafter, 'length')
    or hasattr(case.drafter, 'lm')], ids=str)
def test_fast_cases_see_a_lenience_of_two_percent(case, monkeypatch):
  """As `law_test` runs them: with as many rows."""
  true, biased = caught(case, monkeypatch)
  assert power(true, biased, ROWS // 32) < .5      # few rows would not do


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=str)
def test_slow_cases_see_a_lenience_of_two_percent(case, monkeypatch):
  caught(case, monkeypatch)


def test_control_passes():
  assert law_test(Chain(LM, 2), Chainwise(), TOKEN, WARP) > LEVEL


@pytest.mark.parametrize('rule', [
    targets.Lossless(), targets.Chow(.3), targets.TokenV3(.05)],
    ids=lambda rule: type(rule).__name__)
def test_two_percent_of_lenience_is_seen(rule):
  """Rows of the biased verifier itself, as many as the cases have."""
  assert law_test(Chain(LM, 2), Chainwise(lenience=1.02), rule, WARP,
                  tables=SHARP, runs=2) < LEVEL


@pytest.mark.parametrize('mutant,target', [
    # Not with Chow: it rejects only where pi = p~, and the mutant is no mutant.
    (Chainwise(residual_of='p'), TOKEN),
    # gamma = 2 of three tokens: at gamma = 3 the bonus would be cut off unseen.
    (Chainwise(bonus_of='p'), TOKEN)],
    ids=['residual_from_p', 'bonus_from_p'])
def test_biased_verifiers_fail(mutant, target):
  assert law_test(Chain(LM, 2), mutant, target, WARP) < LEVEL


@pytest.mark.parametrize('mutant,warp', [
    (Swapped, WARP), (Heated, warp_lib.Warp(.5))], ids=['swapped', 'heated'])
def test_biased_targets_fail(mutant, warp):
  target = targets.Chow(.4)
  assert law_test(Chain(LM, 2), Rejection(), mutant(target), warp,
                  want=joint(target, warp)) < LEVEL


def test_temperature_after_top_p_fails():
  want = joint(targets.Lossless(), warp_lib.Warp(.5, top_p=.8))
  assert law_test(Chain(LM, 2), Rejection(), targets.Lossless(),
                  LateTemperature(.5, top_p=.8), want=want) < LEVEL


def test_forced_acceptance_is_no_sample_of_pi():
  assert law_test(Chain(LM, 2), verify.Forced(.8), targets.Lossless(),
                  WARP) < LEVEL


def test_one_key_for_propose_and_verify_fails(monkeypatch):
  fold = jax.vmap(jax.random.fold_in)
  monkeypatch.setattr(decode, 'round_keys', lambda k, r: (fold(k, r),) * 2)
  jax.clear_caches()                          # round_keys is not a cache key
  p = law_test(Chain(LM, 2), Rejection(), targets.Lossless(), WARP)
  jax.clear_caches()
  assert p < LEVEL
