"""Phrases: how the small model, its drafts and the verifier use one pool."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import (
    lookahead, null, ouroboros, phrases, vertical)
from spec_cascades.models import prefill
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, assert_same_slots, joint, keys, p_value, prompt,
    select, tally)
from tests.drafters.guesses_test import paths
from tests.toys import BIG, PB, PS, SMALL

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
PROMPT = types.Prompt(jnp.array([[3, 2, 3, 4], [3, 0, 0, 0], [2, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
POOL = lookahead.Lookahead(5, 2, 3, 2, 12)
TOYS = ouroboros.Ouroboros(SMALL, POOL, 3)
TABLES = ouroboros.Ouroboros(LM, POOL, 2)
READ = jax.jit(prefill.prefill, static_argnums=(0, 3))


@pytest.fixture(scope='module')
def rounds():
  """States and what was seen, of toy transformers whose drafts fit."""
  spec = decode.GenSpecSample(BIG, ouroboros.Ouroboros(BIG, POOL, 3), 30,
                              eos=-1)
  step, both = jax.jit(spec.step), (PB, None)
  state, out = jax.jit(spec.init)(PB, both, PROMPT, keys(3)), []
  for _ in range(6):
    before = state
    state, seen = step(PB, both, LOSSLESS, Warp(.7), state)
    out.append((before, seen, state))
  return out


def test_phrases_that_begin_with_the_last_draft_follow_it(rounds):
  """By looking at the whole pool, and q by reading everything anew."""
  tails, extend = 0, jax.jit(BIG.extend)
  for before, seen, _ in rounds:
    nodes, q = seen.draft.tree, seen.draft.prediction
    read = types.Prompt(before.tokens, before.lengths)
    cache = READ(BIG, PB, read, 60)[1]
    want = BIG.head(PB, extend(PB, cache, nodes)[0])
    seen_at = np.array(nodes.parents >= 0)
    seen_at[:, 0] = True
    seen_at &= np.asarray(seen.live)[:, None]    # rows that are done rest
    np.testing.assert_allclose(np.asarray(q.logits)[seen_at],
                               np.asarray(want)[seen_at], atol=2e-4)
    for row in np.flatnonzero(seen.live):
      line, *_ = [x for x in paths(select(nodes, row)) if len(x) == 3]
      behind = {x[3:] for x in paths(select(nodes, row)) if len(x) > 3}
      assert all(x[:3] == line[:len(x)] for x in paths(select(nodes, row)))
      tails += len(behind)
      laws = np.asarray(seen.draft.laws[row])
      for node, (up, token) in enumerate(zip(nodes.parents[row].tolist(),
                                             nodes.tokens[row].tolist())):
        if 0 <= up < 3:
          np.testing.assert_array_equal(laws[node], q.probs[row, up])
        elif up >= 3:
          np.testing.assert_array_equal(laws[node], np.eye(5)[token])
  assert tails > 5


def test_the_model_has_read_what_was_accepted(rounds):
  depth = 0
  for _, seen, state in rounds:
    read = types.Prompt(state.tokens, state.lengths)
    fresh = READ(BIG, PB, read, 60)[1]
    cache = state.drafter.cache
    np.testing.assert_array_equal(cache.length, fresh.length)
    assert_same_slots(cache, fresh)
    depth = max(depth, int(seen.verdict.count.max()))
  assert depth > 3                 # phrases were accepted


def test_what_p_says_behind_each_draft_becomes_a_phrase():
  """Drafts 1 3 3 behind the root 0; p says 1 2 4 4; phrases of 3 tokens."""
  best = jax.nn.one_hot(jnp.array([[1, 2, 4, 4]]), 5)
  nodes = types.chain(jnp.array([[0, 1, 3, 3]]))
  draft = types.Draft(nodes, None, jnp.zeros(1, jnp.int32), 'given', 5)
  verdict = types.Verdict(jnp.arange(4)[None], jnp.array([1]), jnp.array([2]))
  cache = LM.init(None, prompt(1), 9)
  for live, want in ((True, [[0, 1, 2], [1, 2, 4], [3, 4, 4]]), (False, [])):
    state = vertical.Levels(cache, POOL.init(None, prompt(1), None, 9))
    after = TOYS.observe(None, state, types.Feedback(
        draft, None, best, verdict, jnp.array([live])))
    ring = after.inner.ring
    assert ring.grams[0, :ring.filled[0]].tolist() == want


def test_a_pool_begins_with_the_commonest_phrases():
  text = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 4])
  warm = phrases.commonest(text, 3, 2)
  assert warm.tolist() == [[2, 0, 1], [0, 1, 2]]
  state = TABLES.init((Q, warm), prompt(2), None, 9)
  tokens, lengths = state.inner.ring.after(jnp.array([0, 0]), 2)
  assert lengths[1].tolist() == [2, 0] and tokens[1, 0].tolist() == [1, 2]
  with pytest.raises(ValueError, match='up to 12 of 3 tokens'):
    TABLES.init((Q, warm[:, :2]), prompt(2), None, 9)
  kept = phrases.commonest(text, 3, 9, end=1)         # of 0, 2 0 and 2 4
  assert kept.shape == (0, 3)
  texts = np.array([0, 3, 2, 1, 0, 3, 2, 4, 1])
  assert phrases.commonest(texts, 3, 9, 1).tolist() == [[3, 2, 4], [0, 3, 2]]
  empty = TABLES.init((Q, kept), prompt(2), None, 9)
  assert empty.inner.ring.filled.tolist() == [0, 0]
  with pytest.raises(ValueError, match='at least 3'):
    phrases.commonest(text[:2], 3, 2)


def test_trajectories_of_rows_that_are_done_stay_as_they_are():
  state = POOL.init(None, prompt(2), None, 9)
  best = jax.nn.one_hot(jnp.tile(jnp.array([[2, 3]]), (2, 1)), 5)
  after = POOL.observe(None, state, types.Feedback(
      None, None, best, None, jnp.array([True, False])))
  assert after.ring.filled.tolist() == [2, 0]
  assert after.levels[0].tolist() == [state.levels[0, 1].tolist(), [2, 3]]
  for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state)):
    np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.slow
def test_a_text_that_repeats_takes_fewer_calls_of_both_models():
  """A model that counts 0 1 2 3 4 0 ...: phrases are always right."""
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  warm = phrases.commonest(np.arange(30) % 5, 3, 5)
  drafter = ouroboros.Ouroboros(LM, lookahead.Lookahead(5, 2, 3, 4, 64), 2)
  spec = decode.GenSpecSample(LM, drafter, 43, eos=-1)
  stats = spec(count, (count, warm), prompt(1), keys(1), LOSSLESS,
               Warp(0.)).stats
  assert stats.rounds[0] == 8               # 2 + 2 drafts and a token, each
  assert stats.drafter_calls[0] == 2 * 8    # one for the chain, one behind it


@pytest.mark.slow
def test_greedy_tokens_are_those_without_drafts():
  run = lambda drafter, params, *some: decode.GenSpecSample(
      BIG, drafter, 26, eos=-1)(PB, params, *some, LOSSLESS, Warp(0.))
  got = run(TOYS, (PS, None), PROMPT, keys(3))
  want = run(null.Null(), None, PROMPT, keys(3))
  np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.slow
def test_a_row_does_not_notice_its_mates():
  """Though their inner rounds are more, or fewer, than its own."""
  spec = decode.GenSpecSample(LM, TABLES, 20, eos=1)
  together = spec(P, (Q, None), PROMPT, keys(3), LOSSLESS, Warp())
  one = jax.tree.map(lambda x: x[:1], (PROMPT, keys(3)))
  alone = spec(P, (Q, None), *one, LOSSLESS, Warp())
  np.testing.assert_array_equal(alone.tokens[0], together.tokens[0])
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]),
               alone.stats, together.stats)


@pytest.mark.slow
@pytest.mark.parametrize('rule', [LOSSLESS, CHOW],
                         ids=lambda rule: type(rule).__name__)
def test_rows_follow_the_exact_joint(rule):
  spec = decode.GenSpecSample(LM, ouroboros.Ouroboros(LM, POOL, 1), 6, eos=-1)
  warm = phrases.commonest(np.arange(60) ** 2 % 5, 3, 9)
  state = spec(P, (Q, warm), prompt(ROWS), keys(ROWS), rule, Warp())
  assert p_value(tally(state), joint(rule, Warp())) > LEVEL
  assert p_value(tally(state), joint(rule, Warp(.9))) < LEVEL


@pytest.mark.parametrize('length', [0, 11])
def test_lengths_that_make_no_phrase_are_refused(length):
  pool = lookahead.Lookahead(5, 2, 3, 2, 10)
  with pytest.raises(ValueError, match='gamma|length of Ouroboros is 11'):
    ouroboros.Ouroboros(LM, pool, length)
