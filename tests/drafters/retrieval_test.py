"""REST against a search through the whole text."""
import collections

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import null, retrieval, suffixes
from spec_cascades.models import toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, RAGGED, ROWS, joint, keys, p_value, prompt, tally)
from tests.drafters.guesses_test import paths

LOSSLESS = targets.Lossless()
TEXT = np.random.default_rng(5).integers(0, 5, 200)
STORE = suffixes.index(TEXT)
DRAFTER = retrieval.Retrieval(3, 8, 4, 8)
FOLLOWS = jax.jit(lambda store, text, length: jax.vmap(
    DRAFTER._follows, (None, 0, 0))(store, text[None], length[None]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_the_order_is_that_of_the_suffixes(text):
  want = sorted(range(len(text)), key=lambda i: text[i:])
  assert suffixes.index(np.array(text)).order.tolist() == want


def behind(text, seen):
  """What follows the longest suffix of `seen` that is in a text; its length."""
  for size in range(min(4, len(seen)), 0, -1):
    last = seen[-size:]
    found = [tuple(text[i + size:i + size + 3]) for i in range(len(text))
             if text[i:i + size] == last]
    if found:
      return found, size
  return [], 0


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9))
@settings(max_examples=150, deadline=None)
def test_what_follows_is_what_a_search_finds(seen):
  row = jnp.zeros(10, jnp.int32).at[:len(seen)].set(jnp.array(seen))
  tokens, lengths = FOLLOWS(STORE, row, jnp.int32(len(seen)))
  got = [tuple(t[:n]) for t, n in zip(tokens[0].tolist(), lengths[0].tolist())]
  want, _ = behind(TEXT.tolist(), seen)
  counted = collections.Counter(got)
  filled = sum(counted[x] for x in set(want) if x)
  if len(want) <= 8:
    assert filled == len([x for x in want if x])
    assert all(counted[x] == want.count(x) for x in want if x)
  else:                                             # some of them
    assert filled >= 7 and set(got) - {()} <= set(want)


def test_the_commonest_beginnings_are_drafted():
  """Behind 1 2: 3 3 3 thrice, 3 4 0 once, 0 0 0 twice."""
  lines = [[3, 3, 3]] * 3 + [[3, 4, 0]] + [[0, 0, 0]] * 2
  text = np.concatenate([[1, 2, *line, 6] for line in lines])
  tokens = jnp.zeros((1, 8), jnp.int32).at[0, :3].set(jnp.array([9, 1, 2]))
  ctx = types.Context(tokens, jnp.array([3]), None, Warp(), False)
  drafter = retrieval.Retrieval(3, 6, 4, 8)
  draft, _ = drafter.propose(suffixes.index(text), (), ctx, keys(1))
  assert draft.tree.tokens[0, 0] == 2 and draft.calls.tolist() == [0]
  assert paths(jax.tree.map(lambda x: x[0], draft.tree)) == [
      (3,), (3, 3), (3, 3, 3), (0,), (0, 0)]


def test_nothing_is_drafted_from_the_end_of_a_text_on():
  """Texts 1 2 3, 1 2 and 1 2 4 4, each with its end, 9."""
  text = np.array([1, 2, 3, 9, 1, 2, 9, 1, 2, 4, 4, 9])
  for end, want in ((9, [(3,), (4,), (4, 4)]), (-1, [
      (3,), (3, 9), (3, 9, 1), (4,), (4, 4), (4, 4, 9), (9,), (9, 1),
      (9, 1, 2)])):
    tokens, lengths = FOLLOWS(suffixes.index(text, end),
                              jnp.array([1, 2, 0]), jnp.int32(2))
    got = {tuple(row[:n]) for row, most in zip(tokens[0].tolist(), lengths[0])
           for n in range(1, most + 1)}
    assert sorted(got) == want


def test_nothing_known_drafts_nothing():
  ctx = types.Context(jnp.full((1, 4), 9), jnp.array([3]), None, Warp(), False)
  draft, _ = DRAFTER.propose(STORE, (), ctx, keys(1))
  assert (draft.tree.parents == -1).all()


def test_greedy_tokens_are_those_without_drafts():
  """A datastore of the verifier's own text is accepted."""
  run = lambda drafter, store: decode.GenSpecSample(LM, drafter, 40, eos=-1)(
      P, store, RAGGED, keys(3), LOSSLESS, Warp(0.))
  want = run(null.Null(), None)
  store = suffixes.index(np.asarray(want.tokens).ravel())
  got = run(DRAFTER, store)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  assert (5 * got.stats.rounds < 3 * want.stats.rounds).all()


@pytest.mark.parametrize('length,nodes', [(6, 2), (4, 5)])
def test_few_nodes_behind_many_levels_decode_to_the_cap(length, nodes):
  """A path is no longer than the tree, for which the caches have room."""
  lm = toy.ToyLM(layers=1, width=8)
  params = lm.pack(lm.init_params(jax.random.key(4)))
  run = lambda drafter, store: decode.GenSpecSample(lm, drafter, 40, eos=-1)(
      params, store, RAGGED, keys(3), LOSSLESS, Warp(0.))
  want = run(null.Null(), None).tokens
  got = run(retrieval.Retrieval(length, nodes, 2, 8), STORE)
  np.testing.assert_array_equal(got.tokens, want)


def test_as_many_nodes_as_levels_are_no_chain():
  """Behind 1 2: 3 3 twice, 4 4 once."""
  lines = [[3, 3], [3, 3], [4, 4]]
  store = suffixes.index(
      np.concatenate([[1, 2, *line, 6] for line in lines]), 6)
  tokens = jnp.zeros((1, 8), jnp.int32).at[0, :3].set(jnp.array([9, 1, 2]))
  ctx = types.Context(tokens, jnp.array([3]), None, Warp(), False)
  drafter = retrieval.Retrieval(4, 5, 4, 8)
  draft, _ = drafter.propose(store, (), ctx, keys(1))
  assert not draft.is_chain and (draft.tree.parents[0] == 0).sum() == 2


@pytest.mark.parametrize('target,warp', [
    (LOSSLESS, Warp()),
      pytest.param(targets.TruncatedTopP(.1), Warp(.7, top_k=4),
                   marks=pytest.mark.slow)],
                         ids=['lossless', 'truncated'])
def test_sampled_rows_follow_the_exact_joint(target, warp):
  spec = decode.GenSpecSample(LM, DRAFTER, 6, eos=-1)
  state = spec(P, STORE, prompt(ROWS), keys(ROWS), target, warp)
  assert p_value(tally(state), joint(target, warp)) > LEVEL
  assert p_value(tally(state), joint(target, Warp(.9))) < LEVEL


@pytest.mark.parametrize('call,match', [
    (lambda: suffixes.index(np.zeros(0, int)), r'datastore of shape \(0,\)'),
    (lambda: suffixes.index(np.zeros(3)), 'float64; allowed: one row'),
    (lambda: retrieval.Retrieval(3, 99, 4, 8), 'nodes of Retrieval is 99'),
    (lambda: retrieval.Retrieval(order=0), 'order of Retrieval is 0'),
    (lambda: DRAFTER.init(None, RAGGED, None, 0), 'draft_params is None')])
def test_what_makes_no_draft_is_refused(call, match):
  with pytest.raises(ValueError, match=match):
    call()
