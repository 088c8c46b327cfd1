"""Medusa's and Hydra's heads: what they draft, their trees, and their law."""
import itertools

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import medusa, null, paths
from spec_cascades.models import heads, toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, ROWS, joint, keys, p_value, prompt, select, tally)

LOSSLESS = targets.Lossless()
PROMPT = types.Prompt(jnp.array([[3, 1, 4, 1], [2, 0, 0, 0], [0, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
TREE = ((0,), (1,), (3,), (0, 0), (0, 2), (1, 1), (0, 2, 0))
TOY = toy.ToyLM(layers=1, width=8)
HEADS = dict(
    medusa=heads.HeadsConfig(3, blocks=2),
    hydra=heads.HeadsConfig(3, own=False, sequential=True))


def made(config, lm=TOY, seed=3):
  """Random heads, which are unlike each other."""
  lm = heads.Headed(lm, config)
  params = jax.jit(lm.init_params)(jax.random.key(seed))
  rng = np.random.default_rng(seed)
  noise = lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype)
  return lm, dict(params, heads=jax.tree.map(noise, params['heads']))


STEP, INIT = map(jax.jit, (decode.GenSpecSample.step,
                           decode.GenSpecSample.init))
READ = jax.jit(lambda model, tokens: TOY.extend(model, TOY.init(
    model, PROMPT, 16), types.chain(tokens))[0])


def decoded(lm, params, drafter, warp=Warp(0.), length=24, **kwargs):
  spec = decode.GenSpecSample(lm.lm, drafter, length, eos=-1, **kwargs)
  given = None if isinstance(drafter, null.Null) else lm.pack(params)
  return spec(lm.lm.pack(params['model']), given, PROMPT, keys(3), LOSSLESS,
              warp)


def silu(x):
  return x / (1 + np.exp(-x))


def ahead(lm, params, k, hidden, tokens):
  """Logits of a head in float64, as the papers have them."""
  own = jax.tree.map(lambda x: np.asarray(x, np.float64),
                     params['heads'][f'head_{k}'])
  x = np.asarray(hidden, np.float64)
  more = [np.asarray(params['model']['emb'], np.float64)[t] for t in tokens]
  for i in range(lm.heads.blocks):
    wide = np.concatenate([x, *(more if lm.heads.sequential and not i else [])])
    block = own[f'block_{i}']
    x = x + silu(wide @ block['linear']['kernel'] + block['bias'])
  if lm.heads.own:
    return x @ own['logits_dense']['kernel']
  return x @ np.asarray(params['model']['head'], np.float64)


@pytest.mark.parametrize('name', HEADS)
def test_drafts_are_the_heads_best_and_greedy_tokens_the_verifiers(name):
  """By states that are computed anew, of all committed tokens."""
  lm, params = made(HEADS[name])
  model, packed, checked = params['model'], lm.pack(params), 0
  spec = decode.GenSpecSample(TOY, medusa.Medusa(lm, TREE), 16, eos=-1)
  state = INIT(spec, model, packed, PROMPT, keys(3))
  while not state.done.all():
    texts, lengths = np.asarray(state.tokens), np.asarray(state.lengths)
    states = np.asarray(READ(model, state.tokens))
    state, feedback = STEP(spec, model, packed, LOSSLESS, Warp(0.), state)
    nodes = np.asarray(feedback.draft.tree.tokens)
    for row in np.flatnonzero(feedback.live):
      n, root = lengths[row], texts[row, lengths[row] - 1]
      hidden = states[row, n - 2] if n > 1 else np.zeros(8)
      for i, path in enumerate(TREE, 1):
        line = [root] + [nodes[row, 1 + TREE.index(path[:d])]
                         for d in range(1, len(path))]
        logits = ahead(lm, params, len(path), hidden, line)
        assert nodes[row, i] == np.argsort(-logits)[path[-1]]
        checked += 1
  assert checked > 60 and (state.stats.accepted > 0).all()
  best = np.asarray(READ(model, state.tokens) @ model['head']).argmax(-1)
  for row, n in enumerate(PROMPT.prefix_lengths.tolist()):
    np.testing.assert_array_equal(state.tokens[row, n:], best[row, n - 1:-1])


def test_q_at_a_node_is_what_the_next_head_says():
  lm, params = made(HEADS['hydra'])
  tokens, hidden = PROMPT.prefix, np.random.default_rng(0).normal(size=(3, 8))
  ctx = types.Context(tokens, PROMPT.prefix_lengths, None, Warp(), True)
  propose = jax.jit(lambda drafter: drafter.propose(
      lm.pack(params), jnp.float32(hidden), ctx, keys(3))[0])
  assert propose(medusa.Medusa(lm, TREE)).prediction is None   # 3 deep, 3 heads
  draft = propose(medusa.Medusa(lm, TREE[:-1]))
  nodes, logits = draft.tree.tokens, draft.prediction.logits
  for row in range(3):
    for i, path in enumerate(((),) + TREE[:-1]):
      line = [nodes[row, 0]] + [nodes[row, 1 + TREE.index(path[:d])]
                                for d in range(1, len(path) + 1)]
      want = ahead(lm, params, len(path) + 1, hidden[row], line)
      np.testing.assert_allclose(logits[row, i], want, rtol=1e-4, atol=1e-4)


def test_fresh_heads_say_what_the_verifier_says():
  for config in HEADS.values():
    lm = heads.Headed(TOY, config)
    params = lm.init_params(jax.random.key(0))
    places = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)]
    assert len(set(places)) == len(places)              # or none can be donated
    hidden = jax.random.normal(jax.random.key(1), (4, 8))
    for layout in (params, lm.pack(params)):
      got = lm.ahead(layout, 2, hidden, jnp.zeros((4, 2), jnp.int32))
      np.testing.assert_allclose(got, lm.head(layout, hidden), rtol=1e-6)


def test_heads_that_are_right_draft_all_the_way_down():
  """A model that counts; head k is k ahead of the next token."""
  count = jnp.full((5, 5, 5), -9.).at[
      :, jnp.arange(5), (jnp.arange(5) + 1) % 5].set(9.)
  lm = heads.Headed(LM, heads.HeadsConfig(3))
  params = dict(model=count, heads=lm.fresh(count, jax.random.key(0)))
  for k in range(1, 4):
    params['heads'][f'head_{k}']['logits_dense']['kernel'] = jnp.roll(
        jnp.eye(5), k, 1)
  chain = ((0,), (0, 0), (0, 0, 0))
  state = decoded(lm, params, medusa.Medusa(lm, chain), length=25)
  # The prompts do not count, so the first draft is wrong: of 21, 24 and 22 new
  # tokens one, and then four a round.
  assert state.stats.rounds.tolist() == [6, 7, 7]
  assert state.tokens[1].tolist() == [(2 + i) % 5 for i in range(25)]


@pytest.mark.slow
def test_typical_acceptance_keeps_what_is_plausible():
  lm, params = made(HEADS['medusa'])
  drafter = medusa.Medusa(lm, TREE)
  kept = lambda bar: decoded(lm, params, drafter, Warp(), verify=verify.Typical(
      bar, 1.)).stats.accepted.sum()
  assert kept(1.) < decoded(lm, params, drafter, Warp()).stats.accepted.sum()
  assert kept(0.) > 30 and kept(.3) < kept(.1) < kept(0.)


@pytest.mark.slow
def test_sampled_rows_follow_the_exact_joint():
  target, warp = targets.TruncatedTopP(.1), Warp(.7, top_k=4)
  lm = heads.Headed(LM, heads.HeadsConfig(2, sequential=True))
  params = dict(model=P, heads=made(lm.heads, LM)[1]['heads'])
  drafter = medusa.Medusa(lm, ((0,), (2,), (0, 1), (2, 0)))
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  state = spec(P, lm.pack(params), prompt(ROWS), keys(ROWS), target, warp)
  assert p_value(tally(state), joint(target, warp)) > LEVEL
  assert p_value(tally(state), joint(target, Warp(.9))) < LEVEL


@pytest.mark.slow
def test_a_round_follows_pi_of_the_spare_heads_q():
  """q at the root is that of head 1, and at drafts of depth 1 of head 2."""
  target, warp = targets.TokenV3(.9), Warp(.8)
  lm = heads.Headed(LM, heads.HeadsConfig(2, sequential=True))
  fresh = lm.fresh(P, jax.random.key(0))
  params = dict(model=P, heads=jax.tree.map(
      lambda a, b: .8 * a + .2 * b, fresh, made(lm.heads, LM)[1]['heads']))
  spec = decode.GenSpecSample(LM, medusa.Medusa(lm, ((0,), (2,))), 6, eos=-1)
  state = INIT(spec, P, lm.pack(params), prompt(ROWS), keys(ROWS))
  state, seen = STEP(spec, P, lm.pack(params), target, warp, state)
  pi = np.asarray(target(select(seen.draft.prediction, 0),
                         warp(seen.logits[0])).pi)
  law, counts = np.zeros((5, 6)), np.zeros((5, 6))      # second: 5 is none yet
  law[:, 5] = pi[0]
  for node, token in enumerate(seen.draft.tree.tokens[0, 1:].tolist(), 1):
    law[token] = [*pi[0, token] * pi[node], 0]
  first, second = np.asarray(state.tokens[:, 3:5]).T
  np.add.at(counts, (first, np.where(state.lengths > 4, second, 5)), 1)
  assert p_value(counts, law) > LEVEL
  plain = np.asarray(warp(seen.logits[0]).probs[0])     # as without q
  assert p_value(counts, law * (plain / pi[0])[:, None]) < LEVEL


ACCURACIES = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3),
                      min_size=1, max_size=3)


def brute(accuracies, nodes):
  """The most that any tree of `nodes` drafts is expected to give."""
  heads, ranks = accuracies.shape
  every = [path for depth in range(1, heads + 1)
           for path in itertools.product(range(ranks), repeat=depth)]
  closed = (tree for tree in itertools.combinations(every, nodes) if all(
      len(path) == 1 or path[:-1] in tree for path in tree))
  return max(paths.expected(tree, accuracies) for tree in closed)


@given(ACCURACIES, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_sparse_tree_is_the_best_of_all(counts, nodes):
  accuracies = np.array(counts, float)
  accuracies /= np.maximum(accuracies.sum(1, keepdims=True), 1)
  tree = paths.sparse(accuracies, nodes)
  assert len(tree) == nodes and len(paths.parents(tree)) == nodes + 1
  assert paths.expected(tree, accuracies) == pytest.approx(
      brute(accuracies, nodes))


def test_a_large_sparse_tree_is_the_best_of_all():
  accuracies = np.array([[.5, .3], [.45, .1], [.4, .2]])
  for nodes in (4, 6):
    assert paths.expected(paths.sparse(accuracies, nodes), accuracies
                          ) == pytest.approx(brute(accuracies, nodes))
  assert paths.sparse(accuracies, 4) == ((0,), (1,), (0, 0), (1, 0))


def test_cartesian_trees_have_every_combination():
  tree = paths.cartesian((2, 3))
  assert tree == ((0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
  assert paths.parents(tree) == (-1, 0, 0, 1, 1, 1, 2, 2, 2)


@pytest.mark.parametrize('make,match', [
    (lambda lm: medusa.Medusa(lm, ()), 'A tree of the paths'),
    (lambda lm: medusa.Medusa(lm, ((0, 0), (0,))), 'allowed: ranks from 0'),
    (lambda lm: medusa.Medusa(lm, ((0,), (0,))), 'each path once'),
    (lambda lm: medusa.Medusa(lm, ((0,), (1, 0))), 'A tree of the paths'),
    (lambda lm: medusa.Medusa(lm, paths.cartesian((1,) * 4)), '3 heads'),
    (lambda lm: medusa.Medusa(lm, ((5,),)), '6 choices of a head'),
    (lambda lm: medusa.Medusa(lm, TREE).init(None, PROMPT, None, 9),
     'draft_params is None'),
    (lambda lm: heads.HeadsConfig(0), 'count of HeadsConfig is 0'),
    (lambda lm: paths.sparse(np.ones((2, 2)), 2), 'at most 1 in a row'),
    (lambda lm: paths.sparse(np.eye(2), 7), 'allowed: 1 to 6')])
def test_what_makes_no_draft_is_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make(heads.Headed(TOY, HEADS['medusa']))


def test_rules_that_read_q_need_one_more_head_and_block_needs_chains():
  lm, params = made(HEADS['medusa'])
  def run(tree, alpha):
    spec = decode.GenSpecSample(TOY, medusa.Medusa(lm, tree), 24, eos=-1)
    return spec(params['model'], lm.pack(params), PROMPT, keys(3),
                targets.Chow(alpha), Warp(0.))

  with pytest.raises(ValueError, match='needs q'):
    run(TREE, .3)
  want = decoded(lm, params, null.Null())               # which defers always
  np.testing.assert_array_equal(run(TREE[:-1], -1.).tokens, want.tokens)
  with pytest.raises(ValueError, match='Block does not support'):
    decoded(lm, params, medusa.Medusa(lm, TREE), verify=verify.Block())
