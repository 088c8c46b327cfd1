"""A drafter over part of the vocabulary: exact, and cheaper at its head."""
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets
from spec_cascades.drafters.chain import Chain
from spec_cascades.drafters.null import Null
from spec_cascades.drafters.tree import Tree
from spec_cascades.evaluation import rules
from spec_cascades.models import reduced
from spec_cascades.warp import Warp
from tests import conformance_test
from tests.common import (
    LEVEL, LM, P, Q, ROWS, assert_counted, keys, p_value, prompt, tally)
from tests.models import tiny

TOKENS = np.array([0, 2, 3])
SMALL = reduced.Reduced(LM, 3)
NARROW = SMALL.pack(dict(model=Q, tokens=TOKENS))

EVERY = tuple(rule for name, rule in conformance_test.RULES.items()
              if name != 'Choice')
# It reads q; the others are slow.
FAST = (targets.OPT,)


def joint_of(target, warp):
  """The exact law, with a q that is zero on tokens 1 and 4."""
  logits = jnp.full(Q.shape, -jnp.inf).at[..., TOKENS].set(Q[..., TOKENS])
  pi = np.asarray(target(warp(logits), warp(P)).pi)
  law = np.zeros((5,) * 3)
  for a, b, c in itertools.product(range(5), repeat=3):
    law[a, b, c] = pi[2, 3, a] * pi[3, a, b] * pi[a, b, c]
  return law


def fits(drafter, target, warp, level, chosen=None):
  """Decodes with a target, or with what a Choice has chosen."""
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  state = spec(P, NARROW, prompt(ROWS), keys(ROWS), target, warp)
  assert p_value(tally(state), joint_of(chosen or target, warp)) > level
  assert_counted(state, 3)
  assert (np.asarray(state.fault) == 0).all()


@pytest.mark.parametrize('rule', [
    pytest.param(rule, id=type(rule).__name__,
                 marks=() if type(rule) in FAST else pytest.mark.slow)
    for rule in EVERY])
def test_the_law_of_every_rule_is_exact(rule):
  """Sampled, and greedy: with zeros in q, and with q and p one-hot."""
  family = tuple(x for x in EVERY if x.uses_q == rule.uses_q)
  chosen = rule if type(rule) in FAST else targets.Choice(   # one program
      family, jnp.int32(family.index(rule)))
  for heat in (.9, 0.):
    warp = Warp(jnp.float32(heat), top_p=jnp.float32(.95))
    # All together may fail by chance as often as three other law tests.
    fits(Chain(SMALL, 2), chosen, warp, LEVEL / 13, rule)


def test_every_rule_is_among_them():
  assert {type(x).__name__ for x in EVERY} == set(rules.RULES)


@pytest.mark.slow
def test_the_law_is_exact_behind_a_tree():
  fits(Tree(SMALL, (-1, 0, 0, 1)), targets.Ensemble(.4), Warp(.9, top_p=.95),
       LEVEL)


def test_the_exact_law_differs_from_that_of_the_whole_drafter():
  """Or the test above could not tell."""
  target, warp = targets.Chow(.5), Warp()
  pi = np.asarray(target(warp(Q), warp(P)).pi)
  assert np.abs(joint_of(target, warp).sum((1, 2)) - pi[2, 3]).max() > .01


@pytest.mark.parametrize('name', tiny.LMS)
def test_a_narrow_head_gives_the_same_logits_of_its_tokens(name):
  """Of both families, tied and untied, packed either way."""
  lm = tiny.LMS[name]
  params, tokens = tiny.params_of(lm), np.array([1, 4, 7, 30])
  hidden = jax.random.normal(jax.random.key(0), (2, 3, lm.config.emb_dim))
  want = lm.head(lm.pack(params), hidden)[..., tokens]
  small = reduced.Reduced(lm, 4)
  packed = small.pack(dict(model=params, tokens=tokens))
  got = reduced.read(small, packed, hidden)
  np.testing.assert_allclose(got, want, atol=1e-5)
  wide = np.asarray(small.head(packed, hidden))
  np.testing.assert_array_equal(wide[..., tokens], got)
  assert (np.delete(wide, tokens, -1) == -np.inf).all()
  assert reduced.width(small) == 4 and reduced.width(lm) == 31


def test_it_decodes_alone_as_well():
  """As a model of its own it never says a token that was left out."""
  state = decode.GenSpecSample(SMALL, Null(), 12, eos=-1)(
      NARROW, None, prompt(200), keys(200), targets.Lossless(), Warp())
  assert set(np.unique(state.tokens[:, 3:])) == set(TOKENS.tolist())


def test_all_tokens_are_the_drafter_itself():
  small = reduced.Reduced(LM, 5)
  whole = small.pack(small.init_params(jax.random.key(0)) | dict(model=Q))
  run = lambda lm, params: decode.GenSpecSample(
      LM, Chain(lm, 2), 20, eos=-1)(P, params, prompt(50), keys(50),
                                    targets.TokenV1(.3), Warp())
  a, b = run(small, whole), run(LM, Q)
  np.testing.assert_array_equal(a.tokens, b.tokens)
  np.testing.assert_array_equal(a.stats.accepted, b.stats.accepted)


def test_the_most_frequent_tokens_and_those_to_keep():
  texts = [[5, 5, 5, 2], [2, 7], [], np.array([9, 2])]
  assert reduced.frequent(texts, 3, 10).tolist() == [2, 5, 7]
  assert reduced.frequent(texts, 3, 10, keep=(1,)).tolist() == [1, 2, 5]
  assert reduced.frequent(texts, 10, 10).tolist() == list(range(10))


@pytest.mark.parametrize('call,match', [
    (lambda: reduced.frequent([[1]], 0, 10), 'of 0 tokens'),
    (lambda: reduced.frequent([[1]], 11, 10), 'of 11 tokens'),
    (lambda: reduced.frequent([[1]], 1, 10, keep=(1, 2)), 'from 2 to 10'),
    (lambda: reduced.frequent([[10]], 1, 10), 'tokens from 10 to 10'),
    (lambda: SMALL.pack(dict(model=Q, tokens=np.array([2, 0, 1]))), 'ascend'),
    (lambda: SMALL.pack(dict(model=Q, tokens=np.array([0, 2, 5]))), 'to 5'),
    (lambda: SMALL.pack(dict(model=Q, tokens=np.array([1, 2]))), 'shape')])
def test_a_draft_vocabulary_that_does_not_fit_is_refused(call, match):
  with pytest.raises(ValueError, match=match):
    call()
