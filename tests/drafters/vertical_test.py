"""A chain that was itself drafted is a chain of the small model."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import (
    adaptive, chain, eagle, eagle_tree, lookahead, medusa, ngram, null,
    ouroboros, space, specinfer, spectr, tree, triforce, vertical)
from spec_cascades.models import features, heads, masks, prefill, toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, assert_same_slots, joint, keys, p_value, prompt,
    tally)
from tests.toys import BIG, PB, PS, SMALL

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
RULES = pytest.mark.parametrize('rule', [LOSSLESS, CHOW],
                                ids=lambda rule: type(rule).__name__)
PROMPT = types.Prompt(jnp.array([[3, 2, 3, 4], [3, 0, 0, 0], [2, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
TINY = toy.ToyLM(layers=1, scale=3.)
PT = TINY.init_params(jax.random.key(2))
PT2 = TINY.init_params(jax.random.key(3))
CHAIN = chain.Chain(TINY, 2)
# name: what drafts for the small model, and its parameters
INNER = dict(
    ngram=(ngram.NGram(3, 1), None), chain=(CHAIN, PT),
    tree=(tree.Tree(TINY, (-1, 0, 0, 0, 1, 2, 3)), PT),
    spectr=(spectr.SpecTr(TINY, 2, 2), PT),
    specinfer=(specinfer.SpecInfer((TINY, TINY), ((-1, 0, 0, 1), (-1, 0, 0))),
               (PT, PT2)),
    adaptive=(adaptive.Adaptive(CHAIN, .2), PT),
    vertical=(vertical.Vertical(TINY, ngram.NGram(2, 1), 2), (PT, None)))


def each_of(names):
  """Trees but the first are slow: they are trees as well."""
  return pytest.mark.parametrize('name', [
      pytest.param(name, marks=[pytest.mark.slow] * (
          name in ('spectr', 'specinfer'))) for name in names])


def same_slots(one, other):
  np.testing.assert_array_equal(one.length, other.length)
  assert_same_slots(one, other, 1e-5)


@RULES
@each_of(INNER)
def test_caches_of_the_small_model_are_fresh_after_every_round(name, rule):
  inner, params = INNER[name]
  spec = decode.GenSpecSample(BIG, vertical.Vertical(SMALL, inner, 3), 20,
                              eos=-1)
  step, both = jax.jit(spec.step), (PS, params)
  state = spec.init(PB, both, PROMPT, keys(3))
  for _ in range(4):
    state, seen = step(PB, both, rule, Warp(), state)
    read = types.Prompt(state.tokens, state.lengths)
    same_slots(state.drafter.cache, prefill.prefill(SMALL, PS, read, 40)[1])
    nodes, q = seen.draft.tree, seen.draft.prediction
    assert nodes.tokens.shape == (3, 4) and (nodes.parents[:, 1:] >= 0).all()
    assert np.isfinite(q.logits).all()
    # Behind it, what drafts may lack the last token before the root.
    read = types.Prompt(state.tokens, state.lengths - 1)
    for cache, own in caches(name, state.drafter.inner):
      want = prefill.prefill(TINY, own, read, 40)[1]
      np.testing.assert_array_equal(cache.length, want.length + 1)
      assert_same_slots(cache, want, 1e-5)


def caches(name, inner):
  """Those of what drafts for the small model, and whose they are."""
  if name == 'specinfer':
    return zip(inner, (PT, PT2), strict=True)
  return [(inner, PT)] if name in ('chain', 'tree', 'spectr') else []


@each_of(INNER)
def test_greedy_tokens_are_the_verifiers(name):
  inner, params = INNER[name]
  run = lambda drafter, params: decode.GenSpecSample(BIG, drafter, 24, eos=-1)(
      PB, params, PROMPT, keys(3), LOSSLESS, Warp(0.))
  got = run(vertical.Vertical(SMALL, inner, 3), (PS, params))
  plain, want = run(chain.Chain(SMALL, 3), PS), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.stats.accepted, plain.stats.accepted)


DRAFTER = vertical.Vertical(LM, ngram.NGram(2, 1), 3)
# The same with tables of numbers: a drafter, and its parameters.
DRAWN = dict(
    ngram=(DRAFTER.drafter, None), tree=(tree.Tree(LM, (-1, 0, 0, 1)), P),
    spectr=(spectr.SpecTr(LM, 2, 2), P),
    specinfer=(specinfer.SpecInfer((LM, LM), ((-1, 0, 1), (-1, 0))),
               (P, jnp.flip(P, -1))))


@each_of(DRAWN)
def test_a_draft_has_the_law_of_q_and_carries_it(name):
  inner, own = DRAWN[name]
  drafter, params = vertical.Vertical(LM, inner, 3), (Q, own)
  state = decode.GenSpecSample(LM, drafter, 12).init(
      P, params, prompt(ROWS), keys(ROWS))
  ctx = types.Context(state.tokens, state.lengths, state.cache, Warp(.8))
  draft, _ = jax.jit(lambda: drafter.propose(
      params, state.drafter, ctx, keys(ROWS)))()
  x = np.asarray(draft.tree.tokens)
  before = np.concatenate([np.full_like(x[:, :1], 2), x[:, :-1]], 1)
  np.testing.assert_allclose(draft.prediction.logits, Q[before, x], rtol=1e-6)
  law = joint(LOSSLESS, Warp(.8), (Q, Q))
  counts = np.zeros((5,) * 3)
  np.add.at(counts, tuple(x[:, 1:].T), 1)
  assert p_value(counts, law) > LEVEL
  assert p_value(counts, joint(LOSSLESS, Warp(), (Q, Q))) < LEVEL
  assert (draft.calls >= 1).all() and (draft.calls < 4).any()


@pytest.mark.slow
@pytest.mark.parametrize('name,rule', [
    ('ngram', LOSSLESS), *((name, CHOW) for name in DRAWN)],
                         ids=lambda x: x if isinstance(x, str) else
                         type(x).__name__)
def test_rows_follow_the_exact_joint(name, rule):
  inner, own = DRAWN[name]
  spec = decode.GenSpecSample(LM, vertical.Vertical(LM, inner, 3), 6, eos=-1)
  state = spec(P, (Q, own), prompt(ROWS), keys(ROWS), rule, Warp())
  assert p_value(tally(state), joint(rule, Warp())) > LEVEL
  assert p_value(tally(state), joint(rule, Warp(.9))) < LEVEL


def test_what_is_not_finite_in_the_small_model_is_a_fault():
  spec = decode.GenSpecSample(LM, DRAFTER, 12, eos=-1)
  state = spec(P, (Q.at[2, 3].set(jnp.nan), None), prompt(2), keys(2),
               LOSSLESS, Warp())
  assert state.fault.tolist() == [1, 1]


BESIDE = heads.Headed(LM, heads.HeadsConfig(2))
LAYER = features.Featured(LM, features.FeatureConfig(1, 4, 8))
MASKS = masks.Masked(LM, masks.MasksConfig(2))


@pytest.mark.parametrize('inner', [
    medusa.Medusa(BESIDE, ((0,),)), eagle.Eagle(LAYER, 2),
    eagle_tree.EagleTree(LAYER, 2, 2, 2), space.Space(MASKS, 2)],
                         ids=lambda x: type(x).__name__)
@pytest.mark.parametrize('make', [
    lambda inner: vertical.Vertical(LM, inner, 3),
    lambda inner: triforce.TriForce(LM, 3, inner)],
                         ids=['Vertical', 'TriForce'])
def test_what_follows_the_models_states_drafts_for_no_inner_model(make, inner):
  """Its state would stay behind drafts that are rejected."""
  what = f'got {type(inner).__name__}, which has no `lagging`; allowed'
  with pytest.raises(ValueError, match=what):
    make(inner).init((Q, Q), PROMPT, None, 20)


@pytest.mark.parametrize('drafter', [
    DRAFTER, triforce.TriForce(LM, 3), ouroboros.Ouroboros(
        LM, lookahead.Lookahead(5, 2, 3, 2, 8), 2)],
                         ids=lambda x: type(x).__name__)
def test_one_models_parameters_are_no_pair(drafter):
  what = f'is a dict; allowed: for {type(drafter).__name__} a tuple of 2'
  with pytest.raises(ValueError, match=what):
    drafter.init(dict(model=Q, heads=Q), PROMPT, None, 20)
