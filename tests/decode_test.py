"""The loop: greedy equality, invariance, counters, faults, errors."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.common import LM, P, Q, keys, prompt
from tests.toys import BIG, DRAFTERS, PB, PS, SMALL
from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, null
from spec_cascades.models import recompute
from tests import trees as tree
from spec_cascades.warp import Warp

LOSSLESS, GREEDY = targets.Lossless(), Warp(0.)
RAGGED = types.Prompt(jnp.array([[0, 2, 3, 4], [3, 0, 0, 0], [0, 4, 4, 0]]),
                      jnp.array([4, 1, 3]))


@pytest.mark.parametrize('name', [n for n in DRAFTERS if n != 'null'])
def test_greedy_equals_autoregression(name):
  """40 tokens, ragged prompts, EOS on."""
  run = lambda d, params: decode.GenSpecSample(BIG, d, 40)(
      PB, params, RAGGED, keys(3), LOSSLESS, GREEDY)
  got, want = run(*DRAFTERS[name]), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.lengths, want.lengths)
  s = got.stats
  np.testing.assert_array_equal(s.emitted, got.lengths - RAGGED.prefix_lengths)
  np.testing.assert_array_equal(s.emitted, s.accepted + s.corrected + s.bonus)
  np.testing.assert_array_equal(s.histogram.sum(1), s.rounds)
  np.testing.assert_array_equal(s.histogram @ jnp.arange(s.histogram.shape[1]), s.accepted)


@pytest.mark.parametrize('name', ['null', 'chain', 'ngram'])
def test_cached_model_equals_recomputation(name):
  def apply(params, prompt, tokens):
    cache = BIG.init(params, types.Prompt(tokens, prompt.prefix_lengths), tokens.shape[1])
    return BIG.head(params, BIG.extend(params, cache, types.chain(tokens))[0])
  drafter, params = DRAFTERS[name]
  a, b = (decode.GenSpecSample(lm, drafter, 20)(
      PB, params, prompt(3), keys(3), LOSSLESS, Warp())
      for lm in (BIG, recompute.Recompute(apply, 5)))
  np.testing.assert_array_equal(a.tokens, b.tokens)


def test_encoder_decoder_through_the_same_loop():
  big, small = (dataclasses.replace(lm, encoder=True) for lm in (BIG, SMALL))
  p = types.Prompt(jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32),
                   jnp.array([[3, 2, 4], [4, 4, 2]]))
  run = lambda d, params: decode.GenSpecSample(big, d, 20)(
      PB, params, p, keys(2), LOSSLESS, GREEDY).tokens
  for drafter in (chain.Chain(small, 3), tree.SampledTree(small, (-1, 0, 0, 1))):
    np.testing.assert_array_equal(run(drafter, PS), run(null.Null(), None))


def test_order_batch_mates_and_padding_change_nothing():
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3), 30, eos=-1)
  run = lambda p, k: spec(P, Q, p, k, targets.Chow(.4), Warp())
  k = keys(3)
  together, order = run(RAGGED, k), jnp.array([2, 0, 1])
  shuffled = run(jax.tree.map(lambda x: x[order], RAGGED), k[order])
  padded = run(types.Prompt(jnp.pad(RAGGED.prefix, ((0, 0), (0, 5)), constant_values=3),
                            RAGGED.prefix_lengths), k)
  for row, n in enumerate(together.lengths):
    alone = run(jax.tree.map(lambda x: x[row:row + 1], RAGGED), k[row:row + 1])
    new = together.tokens[row, :n]
    np.testing.assert_array_equal(alone.tokens[0, :n], new)
    np.testing.assert_array_equal(shuffled.tokens[jnp.argmax(order == row), :n], new)
    np.testing.assert_array_equal(padded.tokens[row, :n], new)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[0], y[row], rtol=1e-6),
                 alone.stats, together.stats)


def test_eos_and_cap_end_a_block_and_nothing_after_counts():
  lines = jnp.full((5, 5, 5), -9.).at[:, 2, 3].set(9.).at[:, 3, 1].set(9.).at[:, 1, 2].set(9.)
  for eos, length, want in ((1, 12, [0, 2, 3, 1]), (-1, 5, [0, 2, 3, 1, 2])):
    state = decode.GenSpecSample(LM, chain.Chain(LM, 6), length, eos=eos)(
        lines, lines, prompt(1, (0, 2)), keys(1), LOSSLESS, GREEDY)
    n, s = int(state.lengths[0]), state.stats
    assert state.tokens[0, :n].tolist() == want
    assert (s.rounds[0], s.emitted[0], s.accepted[0]) == (1, n - 2, n - 2)
    assert s.corrected[0] == s.bonus[0] == 0 and s.deferred[0] == n - 2
    assert state.cache.length[0] == n - 1
    assert (s.verifier_calls[0], s.drafter_calls[0]) == (1, 6)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_a_row_with_non_finite_logits_stops_and_is_reported(bad):
  p = P.at[4, 4, 2].set(bad)
  prompts = types.Prompt(jnp.array([[0, 4, 4], [0, 2, 3]]), jnp.full(2, 3))
  spec = decode.GenSpecSample(LM, null.Null(), 12, eos=-1)
  state = spec(p.at[:, :, 4].set(-9.), None, prompts, keys(2), LOSSLESS, GREEDY)
  assert state.fault.tolist() == [1, 0] and state.lengths.tolist() == [3, 12]
  assert state.stats.rounds.tolist() == [0, 9]


def test_one_node_is_scored_where_nothing_matched():
  widths = []

  @dataclasses.dataclass(frozen=True)
  class Counting(type(LM)):
    def extend(self, params, cache, nodes):
      hidden, cache = super().extend(params, cache, nodes)
      jax.debug.callback(lambda: widths.append(nodes.tokens.shape[1]), ordered=False)
      return hidden, cache

  spec = decode.GenSpecSample(Counting(), ngram.NGram(3, 1), 12, eos=-1)
  state = spec.init(P, None, prompt(1, (0, 2, 3)), keys(1))
  step = jax.jit(decode.GenSpecSample.step)
  jax.effects_barrier()
  widths.clear()
  step(spec, P, None, LOSSLESS, Warp(), state)
  matched = spec.init(P, None, prompt(1, (2, 3, 2)), keys(1))
  jax.effects_barrier()
  first = list(widths)
  step(spec, P, None, LOSSLESS, Warp(), matched)
  jax.effects_barrier()
  assert first[0] == 1 and widths[-1] == 4


def test_a_sweep_over_numbers_compiles_once():
  call, before = decode.run, decode.run._cache_size()
  for x in (.1, .3):
    spec = decode.GenSpecSample(LM, chain.Chain(LM, 2, chain.Below(x)), 9,
                                verify.Typical(epsilon=x), eos=-1)
    call(spec, P, Q, prompt(2), keys(2), targets.Chow(x), Warp(1 + x, top_p=x))
  assert call._cache_size() == before + 1


@pytest.mark.parametrize('drafter,verifier,target,match', [
    (ngram.NGram(2), verify.Rejection(), targets.Chow(.1), 'Chow.*NGram'),
    (ngram.NGram(2), verify.Block(), LOSSLESS, 'Block.*deterministic'),
    (tree.SampledTree(LM, (-1, 0, 0), 'sampled'), verify.Block(), LOSSLESS, 'Block.*trees'),
    (chain.Chain(LM, 2, chain.Below()), verify.Block(), LOSSLESS, 'Block.*early'),
    (tree.SampledTree(LM, (-1, 0, 1, 0)), verify.Rejection(), LOSSLESS, 'by level')],
    ids=['q', 'law', 'tree', 'stop', 'order'])
def test_misuse_is_an_error_at_trace_time(drafter, verifier, target, match):
  spec = decode.GenSpecSample(LM, drafter, 9, verifier)
  with pytest.raises(ValueError, match=match):
    spec(P, Q, prompt(1), keys(1), target, Warp())
