"""The heart: drafters x targets x verifiers x warps draw exactly from pi."""
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.warp import Warp
from tests.common import (
    CASES as ALLOWED, LEVEL, LM, P, Q, ROWS, joint, keys, law_test, p_value,
    prompt, tally)

TREE = (-1, 0, 0, 0, 1, 1, 2)
LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
CHAIN = chain.Chain(LM, 2)            # gamma < 3, or no bonus is ever seen
STOP = chain.Chain(LM, 3, chain.Below(.6))
IID = tree.Tree(LM, TREE, 'sampled')
DISTINCT = tree.Tree(LM, TREE)
REJECT, BLOCK, PLAIN = verify.Rejection(), verify.Block(), Warp()
KSEQ = verify.KSeq()
# Fast cases: each drafter, law, verifier and rule at least once.
FAST = [
    (null.Null(), REJECT, LOSSLESS, Warp(.5, top_p=.8)),
    (ngram.NGram(3, 1), REJECT, LOSSLESS, PLAIN),
    (CHAIN, REJECT, LOSSLESS, PLAIN),
    (CHAIN, REJECT, CHOW, Warp(.7, top_k=4, top_p=.9, min_p=.05)),
    (STOP, REJECT, CHOW, PLAIN),
    (IID, REJECT, LOSSLESS, PLAIN),
    (DISTINCT, REJECT, LOSSLESS, PLAIN),
    (CHAIN, BLOCK, targets.TokenV3(.5), PLAIN),
    (IID, KSEQ, targets.TokenV1(.3), Warp(.7, top_p=.9))] + [
        (CHAIN, REJECT, rule, PLAIN) for rule in (
            targets.Lossy(.3), targets.LossyBeta(.3), targets.Diff(.1),
            targets.OPT(.3),
            targets.TokenV1(.3), targets.TokenV2(.3), targets.TokenV3(.5),
            targets.Choice((LOSSLESS, CHOW), 1))]
SLOW = [
    (STOP, REJECT, LOSSLESS, PLAIN),
    (IID, REJECT, CHOW, PLAIN),
    (IID, REJECT, targets.Lossy(.3), Warp(.5)),
    (DISTINCT, REJECT, targets.TokenV1(.3), Warp(.5, top_p=.7)),
    (DISTINCT, REJECT, CHOW, PLAIN),
    (DISTINCT, REJECT, LOSSLESS, Warp(.7, top_k=2)),
    (IID, KSEQ, LOSSLESS, PLAIN),
    (IID, KSEQ, CHOW, Warp(.5)),
    (CHAIN, KSEQ, LOSSLESS, PLAIN),
    (CHAIN, BLOCK, LOSSLESS, PLAIN),
    (CHAIN, BLOCK, CHOW, Warp(.7))] + [
        (CHAIN, REJECT, rule, warp) for rule, warp in (
            (targets.ChowLog(1.), PLAIN), (targets.DiffLog(.1), PLAIN),
            (targets.OPTLog(.2), PLAIN), (targets.BiLD(1.), PLAIN),
            (targets.Lossy(.6), Warp(.7, top_p=.9)),
            (targets.LossyBudget(.1), PLAIN), (targets.Ensemble(.4), PLAIN),
            (targets.Lenience(.3), PLAIN),
            (targets.TruncatedTopP(.2), PLAIN),
            (targets.TruncatedMinP(.2), Warp(.7)),
            (targets.TruncatedEta(.05), Warp(1., eta=.02)),
            (targets.OPT(.3), Warp(1.5)), (targets.Diff(.1), Warp(.7)),
            (targets.TokenV1(.6), Warp(.7)), (targets.TokenV2(.1), Warp(1.3)),
            (targets.TokenV3(.2), Warp(1., top_k=3)))]


def name(part):
  return type(part).__name__ + getattr(part, 'law', '')


def follows(drafter, verifier, target, warp):
  params = None if isinstance(drafter, (null.Null, ngram.NGram)) else Q
  p = law_test(drafter, verifier, target, warp, draft_params=params)
  assert p > LEVEL


@pytest.mark.parametrize('drafter,verifier,target,warp', FAST, ids=name)
def test_fast_rows_follow_the_exact_joint(drafter, verifier, target, warp):
  follows(drafter, verifier, target, warp)


@pytest.mark.slow
@pytest.mark.parametrize('drafter,verifier,target,warp', SLOW, ids=name)
def test_more_rows_follow_the_exact_joint(drafter, verifier, target, warp):
  follows(drafter, verifier, target, warp)


def test_two_percent_of_lenience_would_be_seen():
  """As many rows as `power_test` needs to catch it; a million here."""
  assert law_test(CHAIN, REJECT, LOSSLESS, PLAIN, runs=8) > LEVEL


def test_alpha_and_temperature_per_row():
  """Half of a batch at one alpha and temperature, half at another."""
  half = jnp.arange(ROWS) < ROWS // 2
  spec = decode.GenSpecSample(LM, CHAIN, 6, eos=-1)
  state = spec(P, Q, prompt(ROWS), keys(ROWS),
               targets.Chow(jnp.where(half, .2, .6)),
               Warp(jnp.where(half, 1., .5), top_p=jnp.where(half, .9, 1.)))
  for rows, target, warp in (
      (slice(None, ROWS // 2), targets.Chow(.2), Warp(1., top_p=.9)),
      (slice(ROWS // 2, None), targets.Chow(.6), Warp(.5))):
    assert p_value(tally(state, rows), joint(target, warp)) > LEVEL


@pytest.mark.parametrize(
    'drafter,params', [(STOP, Q), (ngram.NGram(3, 1), None)],
    ids=['stop', 'ngram'])
def test_batch_of_one_follows_the_joint(drafter, params):
  """At batch 1 an early stop or a missing match really narrows the block.

  Rows are drawn one by one and must equal those of a large batch under the
  same keys, whose law the cases above test.
  """
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  together = spec(P, params, prompt(40), keys(40), LOSSLESS, PLAIN)
  for row in range(40):
    alone = spec(P, params, prompt(1), keys(40)[row:row + 1], LOSSLESS, PLAIN)
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_the_level_allows_for_every_case():
  assert len(FAST) + len(SLOW) + 30 <= ALLOWED   # those of other files too
