"""Teacher-forced acceptance against what the real loop decodes."""
import types as python_types

import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, theory
from spec_cascades.drafters import chain
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text
from spec_cascades.warp import Warp
from tests import tinypair
from tests.common import LM, P, PREFIX, Q, keys, prompt

WORDS = [[5, 9, 7, 1], [8, 1], [6, 5, 4, 11, 30, 1], [7, 7, 7, 1], [9, 1]]


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  root = tmp_path_factory.mktemp('pair')
  tinypair.make(root)
  return pairs.load(str(root / 'verifier'), str(root / 'drafter'))


def decoded(pair, rows, target, warp, gamma, limit):
  """Texts and rounds of the loop."""
  given = pair.prompt(rows, max(map(len, rows)))
  start = given.prefix_lengths
  spec = decode.GenSpecSample(
      pair.verifier.lm, chain.Chain(pair.drafter.lm, gamma),
      given.prefix.shape[1] + limit)
  state = spec(pair.verifier.params, pair.drafter.params, given,
               keys(len(rows)), target, warp)
  tokens = np.asarray(state.tokens).tolist()
  texts = [row[a:b] for row, a, b in zip(tokens, start, state.lengths)]
  return texts, np.asarray(state.stats.rounds)


@pytest.mark.parametrize('target', [
    targets.Lossless(), targets.Chow(jnp.float32(.9)),
    targets.TokenV3(jnp.float32(.4))], ids=lambda x: type(x).__name__)
def test_greedy_rounds_are_counted_exactly(tiny, target):
  """At temperature 0 nothing is random: every text's rounds, at every gamma."""
  warp, rounds = Warp(jnp.float32(0.)), None
  for gamma in (1, 3):
    texts, rounds = decoded(tiny, WORDS, target, warp, gamma, 20)
    rates = forced.acceptance(tiny, WORDS, texts, target, warp)
    assert list(map(len, rates)) == list(map(len, texts))
    np.testing.assert_allclose(theory.expected_rounds(rates, gamma), rounds)
  assert rounds.sum() > len(WORDS)


@pytest.mark.parametrize('target,warp', [
    (targets.Lossless(), Warp(1.)), (targets.OPT(.3), Warp(.8, top_p=.9))],
    ids=['lossless', 'opt'])
def test_sampled_rounds_are_counted_in_the_mean(target, warp):
  """4,096 texts of the Table model, whose prompts are of one length."""
  rows, model = 4096, lambda params: python_types.SimpleNamespace(
      lm=LM, params=params)
  pair = python_types.SimpleNamespace(
      verifier=model(P), drafter=model(Q), prompt=text.prefix_prompt)
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 11, eos=-1)
  state = spec(P, Q, prompt(rows), keys(rows), target, warp)
  texts = np.asarray(state.tokens)[:, 3:].tolist()
  rates = forced.acceptance(pair, [PREFIX] * rows, texts, target, warp)
  rounds = np.asarray(state.stats.rounds)
  off = theory.expected_rounds(rates, 2) - rounds
  # Past 6 standard deviations: once in 5e8.
  assert abs(off.mean()) < 6 * off.std() / rows**.5
  assert off.std() > .1


def test_texts_that_no_rule_wrote_are_never_accepted(tiny):
  rates, = forced.acceptance(tiny, WORDS[:1], [[30, 31, 32]],
                             targets.Lossless(), Warp(jnp.float32(0.)))
  assert rates.shape == (3,) and rates[-1] == 0


def test_bad_input(tiny):
  with pytest.raises(ValueError, match='5 inputs and 1 texts'):
    forced.acceptance(tiny, WORDS, [[1]], targets.Lossless(), Warp(0.))
