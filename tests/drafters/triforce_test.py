"""Parts of a cache: what is chosen, what is seen, and drafts made of it."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import cache as cache_lib
from spec_cascades import decode, struct, targets, types
from spec_cascades.drafters import chain, horizontal, null, tree, triforce
from spec_cascades.models import gemma, partial, prefill, table
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, joint, keys, p_value, prompt, tally)
from tests.models import tiny

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
BIG = tiny.LMS['gemma2']                 # a layer with a window, one without
ONE = gemma.Gemma(dataclasses.replace(tiny.LMS['gemma1'].config, num_layers=1))
PB, P1 = tiny.params_of(BIG), tiny.params_of(ONE, 1)
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 24))
LENGTHS = np.array([23, 14])
PROMPT = types.Prompt(jnp.asarray(TOKENS), jnp.asarray(LENGTHS))


class Looking(table.Table):
  """A table with queries, as wide as its keys, the tokens."""

  def look(self, params, cache, tree):
    hidden, cache = self.extend(params, cache, tree)
    return hidden, cache, (jnp.ones((*tree.tokens.shape, 1, 1)),)


@struct.dataclass
class Masked(cache_lib.Cache):
  """A whole cache of which only some slots before its end are visible."""
  seen: jax.Array = None

  def view(self, tree):
    distance, visible = super().view(tree)
    slot = jnp.arange(self.capacity)[None, None]
    before = slot < jnp.asarray(LENGTHS - 1)[:, None, None]
    return distance, visible & (self.seen[:, None] | ~before)


def test_the_chunks_are_those_that_the_query_attends_to():
  """4 heads on 2 key heads; in NumPy, chunk by chunk."""
  rng = np.random.default_rng(1)
  cached, query = rng.normal(size=(3, 2, 23, 4)), rng.normal(size=(3, 4, 4))
  lengths = np.array([22, 13, 3])
  got = partial.chosen((jnp.asarray(cached, jnp.float32), None),
                       jnp.asarray(query, jnp.float32), 5, 4, 3,
                       jnp.asarray(lengths))
  for row, length in enumerate(lengths):
    whole = max(length - 5, 0) // 4
    means = [cached[row, :, 4 * i:4 * i + 4].mean(1) for i in range(whole)]
    share = np.zeros(whole)
    for head in range(4):
      score = np.exp([query[row, head] @ mean[head // 2] for mean in means])
      share += score / score.sum() if whole else 0
    rest = 1 + np.argsort(-share[1:])
    want = [0, *rest][:min(whole, 3)]
    assert got[row, :len(want)].tolist() == want
    assert len(set(got[row].tolist())) == 3


def test_a_chain_sees_chosen_chunks_and_what_is_recent():
  """q is that of the whole cache under a mask; one layer."""
  drafter = triforce.TriForce(ONE, 3, None, 2, 3, 4, 1)
  spec = decode.GenSpecSample(ONE, drafter, 32, eos=-1)
  state = jax.jit(spec.init)(P1, (P1, None), PROMPT, keys(2))
  state, seen = jax.jit(spec.step)(P1, (P1, None), CHOW, Warp(), state)
  _, cache = jax.jit(prefill.prefill, static_argnums=(0, 3))(
      ONE, P1, PROMPT, 36)
  visible = np.zeros((2, 36), bool)
  for row, length in enumerate(LENGTHS - 1):
    start = (length - 4) // 3 * 3
    visible[row, start:length] = True
    for i in state.drafter.chunks[row, 0].tolist()[:start // 3]:
      visible[row, 3 * i:3 * i + 3] = True
    assert visible[row].sum() < length
  masked = Masked(cache.layers, cache.length, None, jnp.asarray(visible))
  nodes, q = seen.draft.tree, seen.draft.prediction
  want = ONE.head(P1, jax.jit(ONE.extend)(P1, masked, nodes)[0])
  tiny.assert_near(q.logits, want)
  assert np.abs(q.logits - seen.logits).max() > 1e-3     # p sees all


@pytest.fixture(scope='module')
def plain():
  return decode.GenSpecSample(BIG, null.Null(), 44, eos=-1)(
      PB, None, PROMPT, keys(2), LOSSLESS, Warp(0.))


def test_who_sees_everything_is_the_verifier():
  """With windows and positions: every draft is accepted."""
  drafter = triforce.TriForce(BIG, 3, None, 30, 2, 5, 2)
  spec = decode.GenSpecSample(BIG, drafter, 44, eos=-1)
  step = jax.jit(spec.step)
  state = jax.jit(spec.init)(PB, (PB, None), PROMPT, keys(2))
  for _ in range(3):
    state, seen = step(PB, (PB, None), CHOW, Warp(), state)
    tiny.assert_near(seen.draft.prediction.logits, seen.logits, 1e-4)
    assert (seen.verdict.count == 3).all()
  assert seen.draft.calls.tolist() == [5, 5]      # the third round chose


STREAMING = partial.Streaming(ONE, 2, 6)


@pytest.mark.slow
@pytest.mark.parametrize('small', [
    chain.Chain(STREAMING, 2), tree.Tree(STREAMING, (-1, 0, 0, 1, 3))],
                         ids=['chain', 'tree'])
def test_greedy_tokens_are_the_verifiers_whoever_drafts(plain, small):
  """Small models with a streaming cache draft for the verifier's chain."""
  drafter = triforce.TriForce(BIG, 3, small, 2, 3, 4, 3)
  run = lambda drafter, params: decode.GenSpecSample(BIG, drafter, 44, eos=-1)(
      PB, params, PROMPT, keys(2), LOSSLESS, Warp(0.))
  got = run(drafter, (PB, P1))
  np.testing.assert_array_equal(got.tokens, plain.tokens)
  assert (got.stats.accepted > 0).all()
  assert (got.drafter.inner.length == 43).all()


@pytest.mark.parametrize('sinks', [0, 2])
def test_a_streaming_model_sees_sinks_and_a_window(sinks):
  """Against one pass under the mask that this means, however it is read."""
  lm = partial.Streaming(tiny.LMS['gemma1'], sinks, 5)
  params = tiny.params_of(lm.lm)
  n = TOKENS.shape[1]
  position = jnp.broadcast_to(jnp.arange(n), (2, n))
  distance = position[:, :, None] - position[:, None]
  mask = (distance >= 0) & ((distance < 5) | (position[:, None] < sinks))
  hidden, _ = jax.jit(lambda: lm.lm.module.apply(
      {'params': params}, jnp.asarray(TOKENS), position, distance, mask,
      lambda layer, block: block, method='extend'))()
  want = lm.head(params, hidden)
  extend = jax.jit(lm.extend)
  for width in (n, 4):
    cache, got = lm.init(params, PROMPT, n), []
    for at in range(0, n, width):
      block = types.chain(jnp.asarray(TOKENS[:, at:at + width]))
      hidden, cache = extend(params, cache, block)
      cache = cache.truncate(cache.length + width)
      got.append(lm.head(params, hidden))
    tiny.assert_near(jnp.concatenate(got, 1), want)


@pytest.mark.parametrize('inner', [None, *(pytest.param(
    x, marks=pytest.mark.slow) for x in (
        chain.Chain(LM, 2), tree.Tree(LM, (-1, 0, 0, 1))))],
                         ids=['alone', 'drafted', 'tree'])
def test_rows_follow_the_exact_joint(inner):
  """With other weights than the verifier's, so that q is not p."""
  drafter = triforce.TriForce(Looking(), 2, inner, 2, 1, 1, 1)
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  state = spec(P, (Q, P), prompt(ROWS), keys(ROWS), CHOW, Warp())
  assert p_value(tally(state), joint(CHOW, Warp())) > LEVEL
  assert p_value(tally(state), joint(CHOW, Warp(.9))) < LEVEL


def test_what_has_no_cache_to_choose_from_is_refused():
  late = triforce.TriForce(Looking(), 2)
  both = horizontal.Horizontal(chain.Chain(LM, 2), late)
  spec = decode.GenSpecSample(LM, both, 12, eos=-1)
  with pytest.raises(ValueError, match='put it first'):
    spec(P, (Q, (P, None)), prompt(1), keys(1), LOSSLESS, Warp())
  with pytest.raises(ValueError, match='chunks of TriForce is 0'):
    triforce.TriForce(LM, 2, chunks=0)
