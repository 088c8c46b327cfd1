"""The loop: greedy equality, the oracle, counters, faults, one compilation."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import check, decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.models import recompute
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, assert_counted, keys, prompt
from tests.toys import BIG, DRAFTERS, PB, PS, SMALL

LOSSLESS, GREEDY = targets.Lossless(), Warp(0.)


@pytest.mark.parametrize('name', [n for n in DRAFTERS if n != 'null'])
def test_greedy_equals_autoregression(name):
  """40 tokens, ragged prompts, EOS on."""
  run = lambda d, params: decode.GenSpecSample(BIG, d, 40)(
      PB, params, RAGGED, keys(3), LOSSLESS, GREEDY)
  got, want = run(*DRAFTERS[name]), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.lengths, want.lengths)
  assert_counted(got, RAGGED.prefix_lengths)


def test_greedy_cascade_equals_its_definition():
  """Chow at temperature 0: the drafter's argmax where it is confident."""
  spec = decode.GenSpecSample(BIG, chain.Chain(SMALL, 3), 20, eos=-1)
  state = spec(PB, PS, RAGGED, keys(3), targets.Chow(.5), GREEDY)
  for row, start in enumerate(RAGGED.prefix_lengths):
    n = 20
    cache = [lm.init(p, prompt(1), n) for lm, p in ((SMALL, PS), (BIG, PB))]
    nodes = types.chain(state.tokens[row:row + 1])
    q, p = (jax.nn.softmax(lm.head(w, lm.extend(w, c, nodes)[0])[0])
            for (lm, w), c in zip(((SMALL, PS), (BIG, PB)), cache))
    want = jnp.where(q.max(-1) < .5, p.argmax(-1), q.argmax(-1))
    np.testing.assert_array_equal(
        state.tokens[row, start:], want[start - 1:-1])


@pytest.mark.parametrize('name', ['null', 'chain', 'ngram'])
def test_cached_model_equals_recomputation(name):
  """The oracle: the same tokens from a model without any cache."""
  def apply(params, prompt, tokens):
    prompt = types.Prompt(tokens, prompt.prefix_lengths)
    cache = BIG.init(params, prompt, tokens.shape[1])
    return BIG.head(params, BIG.extend(params, cache, types.chain(tokens))[0])
  drafter, params = DRAFTERS[name]
  a, b = (decode.GenSpecSample(lm, drafter, 20)(
      PB, params, RAGGED, keys(3), LOSSLESS, Warp())
      for lm in (BIG, recompute.Recompute(apply, 5)))
  np.testing.assert_array_equal(a.tokens, b.tokens)


def test_encoder_decoder_through_the_same_loop():
  big, small = (dataclasses.replace(lm, encoder=True) for lm in (BIG, SMALL))
  p = types.Prompt(jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32),
                   jnp.array([[3, 2, 4], [4, 4, 2]]))
  run = lambda d, params: decode.GenSpecSample(big, d, 20)(
      PB, params, p, keys(2), LOSSLESS, GREEDY).tokens
  want = run(null.Null(), None)
  for drafter in (chain.Chain(small, 3),
                  tree.Tree(small, (-1, 0, 0, 1))):
    np.testing.assert_array_equal(run(drafter, PS), want)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_row_with_non_finite_logits_stops_and_is_reported(bad):
  """Of the verifier: in its second round row 0 reaches the bad entry."""
  # After 3 comes 4, after anything else 0; the entry is in the row of 3 4.
  p = jnp.zeros((5, 5, 5)).at[:, :, 0].set(9.).at[:, 3, 4].set(99.)
  p = p.at[3, 4].set(bad) if bad < 0 else p.at[3, 4, 2].set(bad)
  prompts = types.Prompt(jnp.array([[0, 2, 3], [0, 2, 2]]), jnp.full(2, 3))
  spec = decode.GenSpecSample(LM, null.Null(), 12, eos=-1)
  state = spec(p, None, prompts, keys(2), LOSSLESS, GREEDY)
  assert state.fault.tolist() == [2, 0] and state.lengths.tolist() == [4, 12]
  assert state.stats.rounds.tolist() == [1, 9]
  assert check.faults(state) == ['Row 0 stopped in round 2: non-finite logits.']


@pytest.mark.parametrize('temperature', [0., 1.])
@pytest.mark.parametrize('target', [LOSSLESS, targets.Chow(.4)], ids=str)
def test_a_drafter_with_non_finite_logits_is_reported(target, temperature):
  """Whatever the rule: argmax would hide the NaN at temperature 0."""
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 12, eos=-1)
  state = spec(P, jnp.full_like(Q, np.nan), prompt(2), keys(2), target,
               Warp(temperature))
  assert state.fault.tolist() == [1, 1] and state.lengths.tolist() == [3, 3]


def test_a_drafter_that_breaks_at_its_last_node_is_reported():
  """The bonus of a rule that reads q is drawn there; nobody drafts from it."""
  # After 2 3 comes 3; every q after that is NaN.
  q = Q.at[2, 3].set(jnp.array([0., 0., 0., 99., 0.])).at[3, 3].set(np.nan)
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 1), 12, eos=-1)
  state = spec(P.at[2, 3, 3].set(99.), q, prompt(2), keys(2),
               targets.Chow(1.), Warp())
  assert state.fault.tolist() == [1, 1] and state.lengths.tolist() == [3, 3]


def test_masked_logits_are_no_fault():
  """-inf is a mask: token 2 never occurs, nothing stops."""
  mask = lambda table: table.at[:, :, 2].set(-jnp.inf)
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 30, eos=-1)
  state = spec(mask(P), mask(Q), prompt(4), keys(4), targets.TokenV1(.3),
               Warp())
  assert (state.fault == 0).all() and (state.lengths == 30).all()
  assert (state.tokens[:, 3:] != 2).all()


def test_one_node_is_scored_where_nothing_matched():
  widths = []

  @dataclasses.dataclass(frozen=True)
  class Counting(type(LM)):
    def extend(self, params, cache, tree):
      hidden, cache = super().extend(params, cache, tree)
      width = tree.tokens.shape[1]
      jax.debug.callback(lambda: widths.append(width), ordered=False)
      return hidden, cache

  spec = decode.GenSpecSample(Counting(), ngram.NGram(3, 1), 12, eos=-1)
  step = jax.jit(decode.GenSpecSample.step)
  for prefix, want in (((0, 2, 3), 1), ((2, 3, 2), 4)):
    state = spec.init(P, None, prompt(1, prefix), keys(1))
    jax.effects_barrier()
    widths.clear()
    jax.block_until_ready(step(spec, P, None, LOSSLESS, Warp(), state))
    jax.effects_barrier()
    assert widths == [want]


def test_a_sweep_over_numbers_compiles_once():
  """Alpha, temperature, top-k, top-p, thresholds, Choice's rule, keys."""
  rules = lambda x: (targets.Chow(x), targets.TokenV3(x), LOSSLESS)
  before = decode.run._cache_size()
  for i, x in enumerate((.1, .3, .8)):
    spec = decode.GenSpecSample(LM, chain.Chain(LM, 2, chain.Below(x)), 9,
                                verify.Forced(x), eos=-1)
    spec(P, Q, prompt(2), keys(2, i), targets.Choice(rules(x), i),
         Warp(x, top_k=i, top_p=x, min_p=x / 9))
  assert decode.run._cache_size() == before + 1


def test_forced_acceptance_is_what_it_says():
  rows, gamma = 4096, 4
  spec = decode.GenSpecSample(LM, chain.Chain(LM, gamma), 60,
                              verify.Forced(.8), eos=-1)
  first = jax.jit(decode.GenSpecSample.step)(
      spec, P, Q, LOSSLESS, Warp(0.), spec.init(P, Q, prompt(rows), keys(rows)))
  mean = float(first[0].stats.accepted.mean())
  assert abs(mean - sum(.8**k for k in range(1, gamma + 1))) < .08


@pytest.mark.parametrize('name', DRAFTERS)
def test_a_row_ends_at_its_own_limit(name):
  """And is, up to there, what it is without one."""
  drafter, params = DRAFTERS[name]
  spec = decode.GenSpecSample(BIG, drafter, 20, eos=-1)
  run = lambda prompt: spec(PB, params, prompt, keys(3), LOSSLESS, Warp())
  limits = np.array([5, 9, 20])           # room for 1, 8 and 17 tokens
  free, got = run(RAGGED), run(RAGGED.replace(limits=jnp.asarray(limits)))
  np.testing.assert_array_equal(got.lengths, limits)
  for mine, all_, limit in zip(got.tokens, free.tokens, limits):
    np.testing.assert_array_equal(mine[:limit], all_[:limit])
    assert not mine[limit:].any()
  assert_counted(got, RAGGED.prefix_lengths)


def test_a_row_ends_at_the_first_of_several_tokens():
  drafter, params = DRAFTERS['chain']
  run = lambda eos: decode.GenSpecSample(BIG, drafter, 40, eos=eos)(
      PB, params, RAGGED, keys(3), LOSSLESS, Warp())
  free, got = run(-1), run((4, 1))
  assert set(np.asarray(free.tokens[:, 4:]).ravel()) >= {1, 4}
  for row, start in enumerate(RAGGED.prefix_lengths.tolist()):
    new = free.tokens[row, start:].tolist()
    end = start + 1 + next(i for i, x in enumerate(new) if x in (1, 4))
    assert int(got.lengths[row]) == end
    np.testing.assert_array_equal(got.tokens[row, :end], free.tokens[row, :end])
  assert_counted(got, RAGGED.prefix_lengths)


def test_rows_that_are_full_or_empty_do_nothing():
  """Where numbers were not checked, inside another jit."""
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 6, eos=-1)
  full = types.Prompt(jnp.full((3, 5), 2), jnp.array([6, 0, 3]))
  state = decode.run(spec, P, Q, full, keys(3), LOSSLESS, Warp())
  assert state.lengths.tolist() == [6, 0, 6]
  assert state.stats.rounds[:2].tolist() == [0, 0]
