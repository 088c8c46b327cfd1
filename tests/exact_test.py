"""Exact laws: exact verifiers give pi, and the loop follows the others."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, exact, targets, verify
from spec_cascades.drafters import chain, ngram, tree
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, PREFIX, Q, ROWS, joint, keys, p_value, prompt, tally)

TABLE_P, TABLE_Q = np.asarray(P), np.asarray(Q)
CHAIN = exact.Drafts.chain(2)
TREE = (-1, 0, 0, 1)
WIDE = (-1, 0, 0, 0)


def p(context):
  return TABLE_P[context[-2], context[-1]]


def q(context):
  return TABLE_Q[context[-2], context[-1]]


def law(target, judge=verify.Rejection(), drafts=CHAIN, warp=Warp(), **kwargs):
  return exact.law(q, p, target, warp, drafts=drafts, judge=judge,
                   context=PREFIX, **kwargs)


def models(q=q, p=p):
  return exact.law(q, p, targets.Lossless(), Warp(), drafts=CHAIN,
                   context=PREFIX)


@pytest.mark.parametrize('judge,drafts', [
    (verify.Rejection(), CHAIN), (verify.Block(), exact.Drafts.chain(3)),
    (verify.KSeq(), exact.Drafts(WIDE)), (verify.KSeq(), exact.Drafts(TREE)),
    (verify.Rejection(), exact.Drafts(TREE)),
    (verify.Rejection(), exact.Drafts(TREE, 'distinct'))],
                         ids=lambda x: getattr(x, 'law', type(x).__name__))
@pytest.mark.parametrize('target,warp', [
    (targets.Lossless(), Warp()), (targets.TokenV1(.3), Warp(.5)),
    (targets.Lossy(.4), Warp(1., top_p=.8)), (targets.Chow(.4), Warp(0.))],
                         ids=lambda x: type(x).__name__)
def test_exact_verifiers_draw_from_pi(judge, drafts, target, warp):
  found = law(target, judge, drafts, warp, length=2)
  assert found.error < 1e-6
  np.testing.assert_allclose(found.joint.sum(), 1, atol=1e-9)
  want = joint(target, warp).sum(-1)
  np.testing.assert_allclose(found.target, want, atol=1e-6)


@pytest.mark.parametrize('judge', [
    verify.Rollback(1.), *(pytest.param(x, marks=pytest.mark.slow) for x in (
        verify.Typical(.3, .6), verify.TopB(2, 1.), verify.Forced(.7)))],
                         ids=lambda x: type(x).__name__)
def test_the_loop_follows_verifiers_that_are_biased(judge):
  found = law(targets.Lossless(), judge)
  assert found.error > .02
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 6, judge, eos=-1)
  counts = tally(spec(P, Q, prompt(ROWS), keys(ROWS), targets.Lossless(),
                      Warp()))
  assert p_value(counts, found.joint) > LEVEL
  assert p_value(counts, found.target) < LEVEL     # pi's own law is another


def test_deterministic_drafts():
  """Prompt lookup on (0, 2, 3, ...): the first context has no match."""
  guess = lambda context: (context[-1], 0)
  drafts = exact.Drafts((-1, 0, 1), 'deterministic', guess)
  for kind in (verify.Rejection(), verify.Forced(.5)):
    found = exact.law(None, p, targets.Lossless(), Warp(), drafts=drafts,
                      judge=kind, context=PREFIX)
    assert (found.error < 1e-6) == (kind == verify.Rejection())
  assert ngram.NGram(2, 1).num_nodes == len(drafts.parents)


@pytest.mark.parametrize('drafter,drafts', [
    (chain.Chain(LM, 2), CHAIN), (tree.Tree(LM, TREE), exact.Drafts(
        TREE, 'distinct'))], ids=['chain', 'tree'])
def test_accepted_drafts_of_a_round(drafter, drafts):
  """Of one round of the real loop, by frequency."""
  target, warp = targets.TokenV3(.4), Warp(.8)
  spec = decode.GenSpecSample(LM, drafter, 12, eos=-1)
  state = jax.jit(lambda: spec.step(P, Q, target, warp, spec.init(
      P, Q, prompt(ROWS), keys(ROWS)))[0])()
  found = law(target, drafts=drafts, warp=warp, length=1)
  counts = np.bincount(state.stats.accepted, minlength=len(found.accepted))
  assert p_value(counts, found.accepted) > LEVEL
  np.testing.assert_allclose(
      found.tokens_per_round, np.asarray(state.stats.emitted).mean(), atol=.02)


def test_rejection_of_the_first_draft():
  """TV(p~, q~) for lossless decoding; r TV for deferral (Lemma 3)."""
  raw = lambda x: np.asarray(jax.nn.softmax(jnp.asarray(x)), np.float64)
  tv = exact.total_variation(raw(p(PREFIX)), raw(q(PREFIX)))
  first = lambda target: law(target, length=1).rejection[0]
  np.testing.assert_allclose(first(targets.Lossless()), tv, atol=1e-6)
  for alpha, defers in ((-.5, 1), (1., 0)):
    np.testing.assert_allclose(first(targets.Chow(alpha)), defers * tv,
                               atol=1e-6)


@pytest.mark.parametrize('judge', [
    verify.Rejection(), verify.KSeq(), verify.Forced(.7)],
                         ids=lambda x: type(x).__name__)
def test_rejections_of_rounds_that_stop_early(judge):
  """Of the first round of the real loop; what stopped has rejected nothing."""
  stop, target, warp = chain.Below(.5), targets.Chow(.3), Warp(.9)
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3, stop), 12, judge, eos=-1)
  stats = jax.jit(lambda: spec.step(P, Q, target, warp, spec.init(
      P, Q, prompt(ROWS), keys(ROWS)))[0])().stats
  found = law(target, judge, exact.Drafts.chain(3, stop), warp, length=1)
  reached = np.asarray(stats.histogram).sum(0)[::-1].cumsum()[::-1][:3]
  for n, rejected, share in zip(
      reached, np.asarray(stats.rejected).sum(0), found.rejection):
    assert p_value(np.array([n - rejected, rejected]),
                   np.array([1 - share, share])) > LEVEL
  assert (found.rejection < 1).all() and found.accepted[:-1].sum() > .1


def test_nothing_is_rejected_where_nothing_is_drafted():
  never = exact.Drafts.chain(2, chain.Below(1.))
  np.testing.assert_array_equal(law(targets.Lossless(), drafts=never,
                                    length=1).rejection, 0)


@pytest.mark.parametrize('call,match', [
    (lambda: law(targets.Chow(9.)), 'alpha of Chow is 9'),
    (lambda: law(targets.Lossless(), warp=Warp(-1.)), 'temperature is -1'),
    (lambda: law(targets.Lossless(), verify.Forced(1.2)), 'rate is 1.2'),
    (lambda: law(targets.Chow(np.array([.1, .9]))), 'number of Chow has shape'),
    (lambda: law(targets.Lossless(), length=0), 'length is 0'),
    (lambda: law(targets.Lossless(), drafts=exact.Drafts((-1, 5))), 'tree'),
    (lambda: exact.law(None, p, targets.Lossless(), Warp(), drafts=CHAIN),
     'No q for .sampled. drafts'),
    (lambda: models(q=lambda c: q(c) * np.nan), 'q after .* the logits .nan'),
    (lambda: models(p=lambda c: p(c) + np.inf), 'p after .* the logits .inf'),
    (lambda: models(p=lambda c: p(c) - np.inf), 'p after .* not all -inf'),
    (lambda: models(q=lambda c: q(c)[:2]), 'q has 2 logits and p'),
    (lambda: exact.law(None, p, targets.Lossless(), Warp(), drafts=exact.Drafts(
        (-1, 0), 'deterministic')), 'without tokens'),
    (lambda: law(targets.Lossless(), warp=Warp), 'Warp is a class')])
def test_misuse_is_refused(call, match):
  with pytest.raises(ValueError, match=match):
    call()


def test_bias_grows_from_zero_to_the_drafters():
  bias = [law(targets.Ensemble(alpha)).bias for alpha in (0., .3, .7, 1.)]
  assert bias[0] < 1e-6 and (np.diff(bias) > .01).all()
  assert law(targets.TokenV3(0.)).bias > .01           # trusted, not lossless
  drafter = law(targets.Ensemble(1.))
  np.testing.assert_allclose(drafter.tokens_per_round, 3, atol=1e-6)


def test_what_has_no_exact_law_is_refused():
  with pytest.raises(ValueError, match='Block does not support trees'):
    law(targets.Lossless(), verify.Block(), exact.Drafts(TREE))
  with pytest.raises(ValueError, match='No exact law for Lossless'):
    law(targets.Lossless(), targets.Lossless())
