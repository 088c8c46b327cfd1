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

LOSSLESS, GREEDY = targets.Lossless(), Warp(jnp.float32(0.))
TABLE = python_types.SimpleNamespace(lm=LM, params=P)
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
  """At temperature 0 nothing is random: every text's rounds."""
  texts, rounds = decoded(tiny, WORDS, target, GREEDY, 3, 20)
  rates = forced.acceptance(tiny, WORDS, texts, target, GREEDY)
  assert list(map(len, rates)) == list(map(len, texts))
  np.testing.assert_allclose(theory.expected_rounds(rates, 3), rounds)
  assert rounds.sum() > len(WORDS)


@pytest.mark.parametrize('target,warp', [
    (targets.Lossless(), Warp(1.)), (targets.OPT(.3), Warp(.8, top_p=.9))],
    ids=['lossless', 'opt'])
def test_sampled_rounds_are_counted_in_the_mean(target, warp):
  """4,096 texts of the Table model, whose prompts are of one length."""
  rows, drafter = 4096, python_types.SimpleNamespace(lm=LM, params=Q)
  pair = python_types.SimpleNamespace(
      verifier=TABLE, drafter=drafter, prompt=text.prefix_prompt)
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


def test_neither_order_nor_the_size_of_a_pass_matters(tiny, monkeypatch):
  """Texts of like length go together, in passes that memory holds."""
  texts = [[5, 9, 3, 1], [1], [], [8, 7, 30, 6, 5, 1], [4] * 9]
  of = lambda order: dict(zip(order, forced.probabilities(
      tiny, (tiny.drafter.lm, tiny.drafter.params),
      [WORDS[i] for i in order], [texts[i] for i in order],
      targets.TokenV3(jnp.float32(.4)), Warp(jnp.float32(1.)))))
  together = of(range(5))
  assert [together[i].shape for i in range(5)] == [
      (3, len(x)) for x in texts]
  monkeypatch.setattr(forced, 'LOGITS', 1)
  alone = of([3, 1, 0, 4, 2])
  for i in range(5):
    np.testing.assert_allclose(together[i], alone[i], rtol=2e-5)


@pytest.mark.parametrize('inputs,texts,target,warp,match', [
    (WORDS, [[1]], LOSSLESS, GREEDY, '5 inputs and 1 texts'),
    (WORDS[:1], [[1, 999]], LOSSLESS, GREEDY, 'Token of texts is 999 in row 1'),
    (WORDS[:1], [[.5]], LOSSLESS, GREEDY, 'an array of float64; allowed: a w'),
    ([[5, 999]], [[1]], LOSSLESS, GREEDY, 'Token of inputs is 999'),
    ([[]], [[1]], LOSSLESS, GREEDY, 'Give each row a text'),
    (WORDS[:1], [[1]], targets.Chow(9.), GREEDY, 'alpha of Chow is 9'),
    (WORDS[:1], [[1]], LOSSLESS, Warp(-1.), 'temperature is -1'),
    (WORDS[:2], [[1], [1]], LOSSLESS, Warp(np.ones(2)), 'Warp has shape'),
    (WORDS[:1], [[1]], targets.Chow, GREEDY, 'Chow is a class')])
def test_bad_input(tiny, inputs, texts, target, warp, match):
  with pytest.raises(ValueError, match=match) as error:
    forced.acceptance(tiny, inputs, texts, target, warp)
  assert '\n' not in str(error.value)


def test_a_model_that_continues_needs_a_token():
  pair = python_types.SimpleNamespace(
      verifier=TABLE, drafter=TABLE, prompt=text.prefix_prompt)
  with pytest.raises(ValueError, match='prefix_lengths is 0 in row 0'):
    forced.acceptance(pair, [[]], [[1]], LOSSLESS, GREEDY)


def test_probabilities_are_those_of_the_tables():
  """q and p are softmaxes, pi is the rule's, of every token of every text."""
  pair = python_types.SimpleNamespace(verifier=TABLE,
                                      prompt=text.prefix_prompt)
  target, warp = targets.Chow(.3), Warp(.5)
  texts = [[1, 4, 0], [], [2]]
  found = forced.probabilities(pair, (LM, Q), [PREFIX] * 3, texts, target,
                               warp)
  assert [x.shape for x in found] == [(3, 3), (3, 0), (3, 1)]
  q, p = warp(Q), warp(P)
  laws = [q.raw, p.raw, target(q, p).pi]
  for new, got in zip(texts, found):
    context = [*PREFIX, *new]
    for i, token in enumerate(new, len(PREFIX)):
      want = [law[context[i - 2], context[i - 1], token] for law in laws]
      np.testing.assert_allclose(got[:, i - len(PREFIX)], want, rtol=1e-5)


def test_a_verifier_alone_has_no_q():
  pair = python_types.SimpleNamespace(
      verifier=TABLE, prompt=text.prefix_prompt, drafter=None)
  (q, p, pi), = forced.probabilities(pair, None, [PREFIX], [[1, 4]],
                                     LOSSLESS, Warp(1.))
  assert np.isnan(q).all()
  np.testing.assert_allclose(p, pi, rtol=1e-5)
  with pytest.raises(ValueError, match='Chow reads q, but there is no dra'):
    forced.probabilities(pair, None, [PREFIX], [[1]], targets.Chow(.3),
                         Warp(1.))
  with pytest.raises(ValueError, match='has no drafter; allowed: one with'):
    forced.acceptance(pair, [PREFIX], [[1]], LOSSLESS, Warp(1.))


@pytest.mark.parametrize('given,new,want', [
    (20, 31, (32, 32)), (20, 32, (64, 64)), (40, 20, (64, 64)),
    (70, 20, (96, 32)), (20, 64, (32, 96))])
def test_short_inputs_and_texts_share_a_width(given, new, want):
  """A text has the token that starts it before it."""
  assert forced._widths([[2] * given], [[2] * new, []], 1) == want
