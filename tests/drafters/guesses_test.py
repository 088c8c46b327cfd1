"""Jacobi's guesses, Lookahead's pool, and chains that share beginnings."""
from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import jacobi, lookahead, null, phrases
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, ROWS, joint, keys, p_value, prompt, select, tally)
from tests.toys import BIG, PB

LOSSLESS = targets.Lossless()
PROMPT = types.Prompt(jnp.array([[3, 1, 4, 1], [2, 0, 0, 0], [0, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
CHAINS = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1,
                  max_size=4)
# A model that counts 0 1 2 3 4 0 ..., whatever came before.
COUNT = jnp.full((5, 5, 5), -9.).at[
    :, jnp.arange(5), (jnp.arange(5) + 1) % 5].set(9.)


def branches(chains, nodes=None):
  tokens = np.zeros((1, len(chains), 3), np.int32)
  for row, chain in zip(tokens[0], chains):
    row[:len(chain)] = chain
  lengths = jnp.array([[len(chain) for chain in chains]])
  return select(jax.jit(types.branches, static_argnums=3)(
      jnp.array([7]), jnp.asarray(tokens), lengths,
      nodes or 1 + 3 * len(chains)), 0)


def paths(nodes):
  """Tokens from the root down to each candidate, in order."""
  found = {0: ()}
  for node, parent in enumerate(np.asarray(nodes.parents).tolist()):
    if parent >= 0:
      found[node] = (*found[parent], int(nodes.tokens[node]))
      line = [n for n in np.flatnonzero(nodes.mask[node]) if n]
      assert tuple(nodes.tokens[np.array(line)].tolist()) == found[node]
      assert nodes.depth[node] == len(line) and line[-1] == node
  return list(found.values())[1:]


@given(CHAINS)
@settings(max_examples=60, deadline=None)
def test_branches_are_the_beginnings_of_the_chains_each_once(chains):
  found = paths(branches(chains))
  want = {tuple(chain[:n]) for chain in chains
          for n in range(1, len(chain) + 1)}
  assert len(found) == len(want) and set(found) == want


def test_what_most_chains_begin_with_is_kept():
  chains = [[2, 2, 2], [0, 1, 2], [0, 1, 0], [1, 0, 0], [0, 2]]
  assert paths(branches(chains, 6)) == [(0,), (0, 1), (2,), (1,), (2, 2)]
  assert paths(branches([[], [1]], 7)) == [(1,)]


@pytest.mark.parametrize('drafter', [
    jacobi.Jacobi(4), lookahead.Lookahead(5, 3, 3, 2, 12)],
                         ids=lambda x: type(x).__name__)
class TestBoth:

  def test_greedy_tokens_are_those_without_drafts(self, drafter):
    run = lambda drafter: decode.GenSpecSample(BIG, drafter, 40, eos=-1)(
        PB, None, PROMPT, keys(3), LOSSLESS, Warp(0.))
    got, want = run(drafter), run(null.Null())
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert (got.stats.accepted > 0).all()
    assert (got.stats.rounds < want.stats.rounds).all()

  def test_a_row_does_not_notice_its_mates(self, drafter):
    spec = decode.GenSpecSample(LM, drafter, 20, eos=1)
    together = spec(P, None, PROMPT, keys(3), LOSSLESS, Warp())
    for row in range(3):
      one = jax.tree.map(lambda x, row=row: x[row:row + 1], (PROMPT, keys(3)))
      alone = spec(P, None, *one, LOSSLESS, Warp())
      np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])

  @pytest.mark.parametrize('target,warp', [
      (LOSSLESS, Warp()),
      pytest.param(targets.TruncatedTopP(.1), Warp(.7, top_k=4),
                   marks=pytest.mark.slow)],
                           ids=['lossless', 'truncated'])
  def test_sampled_rows_follow_the_exact_joint(self, drafter, target, warp):
    """Guesses depend on what was drawn before; the law must not."""
    spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
    state = spec(P, None, prompt(ROWS), keys(ROWS), target, warp)
    assert p_value(tally(state), joint(target, warp)) > LEVEL
    assert p_value(tally(state), joint(target, Warp(.9))) < LEVEL


def test_jacobi_moves_its_guesses_up():
  """Guesses 1 3 3 behind the root 0: one is right, the answers are 1 2 4 4."""
  best = jax.nn.one_hot(jnp.array([[1, 2, 4, 4]]), 5)
  verdict = types.Verdict(jnp.arange(4)[None], jnp.array([1]), jnp.array([2]))
  feedback = types.Feedback(None, None, best, verdict, jnp.array([True]))
  after = jacobi.Jacobi(3).observe(None, jnp.array([[1, 3, 3]]), feedback)
  assert after.tolist() == [[4, 4, 4]]


def test_what_repeats_is_looked_up_and_not_iterated():
  """Counting: each Jacobi guess is one behind; n-grams come back for good."""
  run = lambda drafter: decode.GenSpecSample(LM, drafter, 40, eos=-1)(
      COUNT, None, PROMPT, keys(3), LOSSLESS, Warp(0.))
  slow, fast = run(jacobi.Jacobi(3)), run(lookahead.Lookahead(5, 3, 3, 2, 12))
  np.testing.assert_array_equal(slow.tokens, fast.tokens)
  assert (slow.stats.accepted == 0).all()
  assert (2 * fast.stats.rounds < slow.stats.rounds).all()


def pool(grams, filled):
  slots = jnp.zeros((6, 3), jnp.int32).at[:len(grams)].set(jnp.array(grams))
  return phrases.Ring(slots[None], jnp.array([filled]))


@pytest.mark.parametrize('grams,filled,want', [
    ([[4, 1, 2]], 1, [[1, 2]]),
    ([[4, 1, 2], [4, 3, 0]], 2, [[3, 0], [1, 2]]),         # the newest first
    ([[4, 1, 2], [4, 3, 0], [4, 1, 2]], 3, [[1, 2], [3, 0]]),   # twice the same
    ([[4, 1, 2], [0, 3, 0]], 2, [[1, 2]]),                 # begins with another
    ([[4, 1, 2]], 0, []),                                  # not written yet
    ([[4, 1, 2], [4, 2, 2], [4, 3, 3], [0, 0, 0], [0, 0, 0], [4, 0, 0]], 7,
     [[1, 2], [0, 0]])])                                   # the ring came round
def test_the_pool_gives_what_followed_the_root(grams, filled, want):
  tokens, lengths = pool(grams, filled).after(jnp.array([4]), 2)
  assert set(lengths[0].tolist()) <= {0, 2}
  assert tokens[np.asarray(lengths, bool)].tolist() == want


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=3, max_size=3),
    st.booleans()), min_size=1, max_size=6), st.integers(0, 2))
def test_a_pool_is_the_newest_of_what_was_filed_each_once(filed, known):
  """Against a list: of the last 5 n-grams those of a root, none twice."""
  start = [(1, 1), (0, 1)][:known]
  ring = phrases.ring(jnp.array(start) if known else None, 2, 5, 2)
  written = list(start)
  for grams, live in filed:
    ring = FILED(ring, jnp.array([grams] * 2), jnp.array([live, False]))
    written += grams if live else []
  for row, last in enumerate((written[-5:], start)):
    for root in (0, 1):
      want = list(dict.fromkeys(
          gram[1] for gram in last[::-1] if gram[0] == root))[:3]
      tokens, lengths = AFTER(ring, jnp.array([root] * 2))
      got = tokens[row][np.asarray(lengths[row], bool)]
      assert got[:, 0].tolist() == want


FILED = jax.jit(phrases.Ring.filed)
AFTER = jax.jit(lambda ring, first: ring.after(first, 3))


def test_the_window_sees_one_guess_of_each_later_trajectory():
  """W 3, N 3: level 0 at 1 2 3, level 1 at 2 3 4; no candidate sees them."""
  drafter = lookahead.Lookahead(5, 3, 3, 1, 8)
  spec = decode.GenSpecSample(LM, drafter, 20, eos=-1)
  state = spec.init(P, None, PROMPT, keys(3))
  ctx = types.Context(state.tokens, state.lengths, None, Warp(), False)
  draft, _ = drafter.propose(None, state.drafter, ctx, keys(3))
  window = draft.tree.mask[0, 3:, 3:].astype(int).tolist()
  assert window == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0],
                    [1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1]]
  assert draft.tree.depth[0, 3:].tolist() == [1, 2, 3, 2, 3, 4]
  np.testing.assert_array_equal(draft.tree.mask[0, 3:, :3], [[1, 0, 0]] * 6)
  assert not draft.tree.mask[:, :3, 3:].any() and draft.scratch == 6


@pytest.mark.parametrize('make,match', [
    (lambda: jacobi.Jacobi(0), 'draft length'),
    (lambda: lookahead.Lookahead(5, window=0), 'window of Lookahead is 0'),
    (lambda: lookahead.Lookahead(5, order=1), 'order of Lookahead is 1'),
    (lambda: lookahead.Lookahead(5, 9, pool=8), 'pool of Lookahead is 8')])
def test_what_makes_no_draft_is_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make()
