"""Lengths and thresholds that follow what was accepted."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, theory, types
from spec_cascades.drafters import adaptive, chain, tracking
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, joint, keys, p_value, prompt, tally)

LOSSLESS, GAMMA = targets.Lossless(), 4
CHAIN = chain.Chain(LM, GAMMA)


@functools.lru_cache
def length_of(rate, cost, leaf_q):
  """By trying every length."""
  worth = lambda g: theory.expected_tokens(rate, g) / (1 + cost * (g + leaf_q))
  return max(range(1, GAMMA + 1), key=worth)


@pytest.mark.parametrize('leaf_q', [False, True])
def test_the_length_is_the_best_of_all(leaf_q):
  rng = np.random.default_rng(0)
  rates, costs = rng.uniform(0, 1, 200), rng.uniform(0, 1, 200) ** 2
  drafter = adaptive.Adaptive(CHAIN, jnp.asarray(costs, jnp.float32))
  state = adaptive.Record(None, jnp.asarray(5 * rates, jnp.float32),
                          jnp.full(200, 5.))
  got = drafter._length(state, leaf_q).tolist()
  want = [length_of(*x, leaf_q) for x in zip(rates.tolist(), costs.tolist())]
  assert np.mean(np.array(got) == want) > .98 and len(set(want)) == GAMMA


def drafts(drafted):
  """Feedback of chains, of which `drafted` tokens were candidates."""
  nodes = types.chain(jnp.zeros((len(drafted), GAMMA + 1), jnp.int32),
                      jnp.asarray(drafted))
  return types.Draft(nodes, None, jnp.zeros(len(drafted), jnp.int32),
                     max_depth=GAMMA)


def observed(drafter, state, drafted, count, live):
  b = len(drafted)
  verdict = types.Verdict(jnp.zeros((b, GAMMA + 1), jnp.int32),
                          jnp.asarray(count), jnp.zeros(b, jnp.int32))
  return drafter.observe(Q, state, types.Feedback(
      drafts(drafted), None, None, verdict, jnp.asarray(live)))


def start(drafter, rows):
  state = drafter.init(Q, prompt(rows), None, 20)
  return state.replace(cache=jax.tree.map(jnp.asarray, state.cache))


def test_accepted_and_judged_drafts_are_counted():
  drafter = adaptive.Adaptive(CHAIN, .1, rate=.5, weight=4., memory=.5)
  state = observed(drafter, start(drafter, 4), [3, 3, 3, 3], [0, 2, 3, 3],
                   [True, True, True, False])
  np.testing.assert_allclose(state.accepted, [1, 3, 4, 2])
  np.testing.assert_allclose(state.judged, [3, 5, 5, 4])


def test_thresholds_move_by_the_formula():
  drafter = tracking.Tracking(CHAIN, goal=.6, threshold=.5, slow=.5, step=.2,
                              keep=.75)
  state = observed(drafter, start(drafter, 5), [4, 4, 4, 0, 4],
                   [0, 2, 4, 0, 0], [True, True, True, True, False])
  np.testing.assert_allclose(state.rate, [.3, .55, .8, .6, .6], rtol=1e-6)
  np.testing.assert_allclose(state.threshold, [.55, .55, .45, .45, .5],
                             rtol=1e-6)


MADE = dict(adaptive=adaptive.Adaptive(CHAIN, .15, memory=.8),
            tracking=tracking.Tracking(CHAIN, threshold=.4, step=.5))


@pytest.mark.parametrize('name', MADE)
def test_lengths_differ_between_rows_and_rounds(name):
  drafter, rows = MADE[name], 16
  spec = decode.GenSpecSample(LM, drafter, 40, eos=-1)
  step = jax.jit(spec.step)
  state, seen = spec.init(P, Q, prompt(rows), keys(rows)), []
  for _ in range(8):
    state, report = step(P, Q, LOSSLESS, Warp(), state)
    seen.append(np.asarray(report.draft.tree.parents >= 0).sum(1))
  seen = np.array(seen)
  assert len(np.unique(seen)) > 2 and (seen.std(0) > 0).any()
  assert len(np.unique(seen[-1])) > 1


@pytest.mark.parametrize('rule', [LOSSLESS, targets.Chow(.4)],
                         ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize('name', MADE)
def test_lengths_that_follow_acceptance_keep_the_law(name, rule):
  """A second round's length depends on the first one's tokens."""
  spec = decode.GenSpecSample(LM, MADE[name], 6, eos=-1)
  state = spec(P, Q, prompt(ROWS), keys(ROWS), rule, Warp())
  assert len(np.unique(np.asarray(state.stats.rounds))) > 1
  assert p_value(tally(state), joint(rule, Warp())) > LEVEL
  assert p_value(tally(state), joint(rule, Warp(.9))) < LEVEL
