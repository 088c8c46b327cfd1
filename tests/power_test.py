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
from tests.common import LEVEL, LM, P, PREFIX, Q, ROWS, joint, law_test

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


def lenient(judge, draft):
  """What `exact` enumerates of token-wise rejection, 2 % too kind; a chain."""
  del judge
  path, chance, node = [], 1., 0
  while children := list(draft.children(node)):
    child, = children
    pi, q = draft.laws[node].pi, draft.laws[node].q
    token = draft.tokens[child]
    accepted = min(1., 1.02 * pi[token] / q[token])
    yield path, chance * (1 - accepted), exact._residual(pi, q)
    path, chance, node = [*path, child], chance * accepted, child
  yield path, chance, draft.laws[node].pi


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


def test_a_lenience_of_two_percent_is_seen_almost_surely(monkeypatch):
  """In the case that `test_biased_verifiers_fail` runs: a million rows."""
  tables = [np.asarray(x) for x in (P, Q)]
  p, q = (lambda context, x=x: x[context[-2], context[-1]] for x in tables)
  law = lambda: exact.law(q, p, targets.Lossless(), WARP, context=PREFIX,
                          drafts=exact.Drafts.chain(2)).joint
  true = law()
  monkeypatch.setitem(exact.JUDGES, Rejection, lenient)
  biased = law()
  np.testing.assert_allclose([true.sum(), biased.sum()], 1, atol=1e-6)
  # A token is 2 % too likely where q is above p; three tokens at most 6 %.
  assert 1e-3 < exact.total_variation(true, biased) < .03
  assert power(true, biased, 8 * ROWS) > .999
  assert power(true, true, 8 * ROWS) < 2 * LEVEL
  assert power(true, biased, ROWS // 64) < .5      # few rows would not do


def test_control_passes():
  assert law_test(Chain(LM, 2), Chainwise(), TOKEN, WARP) > LEVEL


@pytest.mark.parametrize('mutant,target,runs', [
    (Chainwise(lenience=1.02), targets.Lossless(), 8),
    # Not with Chow: it rejects only where pi = p~, and the mutant is no mutant.
    (Chainwise(residual_of='p'), TOKEN, 1),
    # gamma = 2 of three tokens: at gamma = 3 the bonus would be cut off unseen.
    (Chainwise(bonus_of='p'), TOKEN, 1)],
    ids=['lenience', 'residual_from_p', 'bonus_from_p'])
def test_biased_verifiers_fail(mutant, target, runs):
  assert law_test(Chain(LM, 2), mutant, target, WARP, runs=runs) < LEVEL


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
