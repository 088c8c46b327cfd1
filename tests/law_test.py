"""The heart: drafters x targets x verifiers x warps draw exactly from pi."""
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets
from spec_cascades.drafters import chain, ngram, null
from spec_cascades.warp import Warp
from tests.common import (
    CASES as ALLOWED, LEVEL, LM, P, Q, ROWS, SHARP, joint, keys, law_test,
    p_value, prompt, tally)
from tests.lawcases import CHAIN, FAST, LOSSLESS, SLOW, lenient_law

STOP = chain.Chain(LM, 3, chain.Below(.6))


def follows(case):
  drafts = not isinstance(case.drafter, null.Null)
  assert law_test(case.drafter, case.verifier, case.target, case.warp,
                  lenient=lenient_law(case) if drafts else None,
                  tables=SHARP, runs=case.runs) > LEVEL


@pytest.mark.parametrize('case', FAST, ids=str)
def test_fast_rows_follow_the_exact_joint(case):
  follows(case)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=str)
def test_more_rows_follow_the_exact_joint(case):
  follows(case)


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
  together = spec(P, params, prompt(40), keys(40), LOSSLESS, Warp())
  for row in range(40):
    alone = spec(P, params, prompt(1), keys(40)[row:row + 1], LOSSLESS, Warp())
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_the_level_allows_for_every_case():
  assert 2 * len(FAST + SLOW) + 50 <= ALLOWED    # those of other files too
