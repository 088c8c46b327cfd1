"""SpecTr's chains, and trees in which equal paths are one."""
from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import spectr, tree
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, SHARP, joint, keys, law_test, p_value, prompt,
    tally)

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.3)
KSEQ, REJECT = verify.KSeq(), verify.Rejection()
DRAFTER = spectr.SpecTr(LM, 2, 2)
NODES = 7
MERGED = jax.jit(types.merged)


def path_of(nodes, node):
  """Tokens from the root's child down to a node; None for no candidate."""
  tokens, parent = [], int(nodes.parents[node])
  if parent < 0:
    return None if node else ()
  while parent >= 0:
    tokens.append(int(nodes.tokens[node]))
    node, parent = parent, int(nodes.parents[parent])
  return tuple(tokens[::-1])


@given(st.lists(st.integers(0, 1), min_size=NODES, max_size=NODES),
       st.lists(st.integers(-1, NODES), min_size=NODES, max_size=NODES))
@settings(max_examples=40, deadline=None)
def test_equal_paths_are_one_and_none_changes(tokens, picks):
  """Whatever the tree; -1 is no candidate, nor is what is below."""
  parents = [-1]
  for node, pick in enumerate(picks[1:], 1):
    up = pick % node if pick >= 0 else -1
    parents.append(up if up <= 0 or parents[up] >= 0 else -1)
  depth = np.zeros(NODES, int)
  for node, up in enumerate(parents):
    depth[node] = depth[up] + 1 if up >= 0 else 0
  given_tree = types.TokenTree(*(jnp.asarray(x, jnp.int32)[None] for x in (
      tokens, parents, depth)), jnp.eye(NODES, dtype=bool)[None])
  before, after = (jax.tree.map(lambda x: np.asarray(x)[0], x)
                   for x in (given_tree, MERGED(given_tree)))
  first = {}
  for node in range(NODES):
    path = path_of(before, node)
    assert path_of(after, node) == path
    if path is not None:
      first.setdefault(path, node)
      line = [n for n in np.flatnonzero(after.mask[node]) if n]
      assert [int(after.tokens[n]) for n in line] == list(path)
      assert not path or after.parents[node] == first[path[:-1]]


def test_chains_are_listed_by_level():
  assert spectr.SpecTr(LM, 2, 3).parents == (-1, 0, 0, 1, 2, 3, 4)
  assert spectr.SpecTr(LM, 1, 2).parents == (-1, 0, 1)
  assert spectr.SpecTr(LM, 3, 1).num_nodes == 4


@pytest.mark.parametrize('tokens,ways', [
    ((0, 3, 3, 1, 2), {(0, 1, 3), (0, 1, 4)}),      # 2 is 1's twin
    ((0, 3, 4, 1, 2), {(0, 1, 3), (0, 2, 4)})])
def test_a_twin_goes_on_where_its_chains_do(tokens, ways):
  """Nothing ends at the second child, whose own chain hangs on the first."""
  nodes = types.merged(types.tree(jnp.array([tokens]), (-1, 0, 0, 1, 2)))
  q = jnp.full((1, 5, 5), .2)
  q = types.Prediction(q, q)
  draft = types.Draft(nodes, q, jnp.ones(1), 'sampled', 2)
  pi = q.probs.at[0, :2].set(jnp.array(
      [[.2, .2, .2, .15, .25], [.3, .1, .2, .2, .2]]))
  judge = lambda key: jax.vmap(KSEQ, (None, 0, 0, 0))(key, draft, q, pi)
  keys = jax.random.split(jax.random.key(0), 500)
  found = jax.jit(jax.vmap(judge))(keys)
  paths = np.asarray(found.path)[:, 0][np.asarray(found.count)[:, 0] > 0]
  assert set(paths[:, 1].tolist()) == {way[1] for way in ways}
  both = np.asarray(found.path)[:, 0][np.asarray(found.count)[:, 0] == 2]
  assert set(map(tuple, both.tolist())) == ways


def test_a_twin_behind_the_children_of_its_first_keeps_its_own():
  """They were looked at before it: none of them is left to judge."""
  nodes = types.tree(jnp.array([[0, 3, 1, 3, 2]]), (-1, 0, 1, 0, 3))
  q = jnp.full((1, 5, 5), .2)
  q = types.Prediction(q, q)
  draft = types.Draft(nodes, q, jnp.ones(1), 'sampled', 2)
  pi = q.probs.at[0, 0].set(jnp.array([.2, .2, .2, .15, .25]))
  judge = lambda key: jax.vmap(KSEQ, (None, 0, 0, 0))(key, draft, q, pi)
  found = jax.jit(jax.vmap(judge))(jax.random.split(jax.random.key(0), 500))
  both = np.asarray(found.path)[:, 0][np.asarray(found.count)[:, 0] == 2]
  assert set(map(tuple, both.tolist())) == {(0, 1, 2), (0, 3, 4)}


def test_rows_follow_the_exact_joint():
  assert law_test(DRAFTER, KSEQ, CHOW, Warp(.7), rows=2**15) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize('target,warp', [
    (LOSSLESS, Warp()), (targets.TokenV1(0.), Warp(.7, top_p=.9))])
@pytest.mark.parametrize('judge', [KSEQ, REJECT],
                         ids=lambda x: type(x).__name__)
def test_more_rows_follow_the_exact_joint(judge, target, warp):
  three = spectr.SpecTr(LM, 3, 2)
  assert law_test(three, judge, target, warp, tables=SHARP, runs=2) > LEVEL


class Forgetful:
  """k-SEQ that leaves out twins, as a trie of the chains would."""
  supports = verify.KSeq.supports

  def __call__(self, key, draft, p, pi):
    nodes, i = draft.tree, jnp.arange(len(pi))
    same = (nodes.parents[:, None] == nodes.parents[None]) & (
        nodes.tokens[:, None] == nodes.tokens[None])
    earlier = (same & (i[None] < i[:, None])).any(1)
    left = nodes.replace(parents=jnp.where(earlier, -1, nodes.parents))
    return KSEQ(key, draft.replace(tree=left), p, pi)


@pytest.mark.slow
def test_a_trie_without_twins_would_be_biased():
  """The law test sees it."""
  three = spectr.SpecTr(LM, 3, 2)        # of two, ROWS are too few
  spec = decode.GenSpecSample(LM, three, 6, eos=-1)
  object.__setattr__(spec, 'verify', Forgetful())
  step = jax.jit(lambda s: spec.step(P, Q, LOSSLESS, Warp(), s)[0])
  state = spec.init(P, Q, prompt(ROWS), keys(ROWS))
  for _ in range(3):
    state = step(state)
  assert p_value(tally(state), joint(LOSSLESS, Warp())) < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize('judge', [KSEQ, REJECT],
                         ids=lambda x: type(x).__name__)
def test_shared_beginnings_are_accepted_more_often(judge):
  """Beside the same chains without, by five standard errors."""
  merged = spectr.SpecTr(LM, 4, 3)
  apart = tree.Tree(LM, merged.parents, 'sampled')

  def tokens_a_call(drafter):
    state = decode.GenSpecSample(LM, drafter, 40, judge, eos=-1)(
        P, Q, prompt(2048), keys(2048), LOSSLESS, Warp(.5))
    found = np.asarray(state.stats.emitted / state.stats.rounds)
    return found.mean(), found.var() / len(found)

  (more, noise), (fewer, other) = map(tokens_a_call, (merged, apart))
  assert more - fewer > 5 * np.sqrt(noise + other)


def test_a_draft_of_no_chain_is_refused():
  with pytest.raises(ValueError, match='chains of SpecTr is 0'):
    spectr.SpecTr(LM, 0, 2)
  with pytest.raises(ValueError, match='draft length'):
    spectr.SpecTr(LM, 2, 0)
