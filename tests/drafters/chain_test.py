"""Chains: what is drafted, what it costs, where it stops."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from spec_cascades import decode, struct, targets, types, verify, warp
from spec_cascades.drafters import chain, stop
from spec_cascades.models import table
from tests.common import LM, P, PREFIX, Q, keys, prompt

ROWS = 2**14


def propose(drafter, *, leaf_q=True, rows=ROWS, plain=None, ends=()):
  state = decode.GenSpecSample(LM, drafter, 12).init(
      P, Q, prompt(rows), keys(rows))
  ctx = types.Context(state.tokens, state.lengths, state.cache,
                      plain or warp.Warp(), leaf_q, ends=ends)
  return jax.jit(lambda d: d.propose(Q, state.drafter, ctx, keys(rows)))(
      drafter)[0]


@pytest.mark.parametrize('leaf_q', [True, False])
def test_nodes_are_draws_from_the_q_that_the_draft_carries(leaf_q):
  draft = propose(chain.Chain(LM, 2), leaf_q=leaf_q)
  x = np.asarray(draft.tree.tokens)
  raw = jax.nn.softmax(Q)
  np.testing.assert_allclose(draft.prediction.probs[0, 0], raw[PREFIX[-2:]],
                             rtol=1e-5)
  np.testing.assert_allclose(draft.prediction.probs[:, 1], raw[3, x[:, 1]],
                             rtol=1e-5)
  share = np.bincount(x[:, 1], minlength=5) / ROWS
  np.testing.assert_allclose(share, raw[PREFIX[-2:]], atol=.02)
  if leaf_q:
    np.testing.assert_allclose(draft.prediction.probs[:, 2],
                               raw[x[:, 1], x[:, 2]], rtol=1e-5)
  assert (draft.calls == 2 + leaf_q).all()


def test_siblings_in_a_batch_differ_and_a_round_repeats():
  first, again = (propose(chain.Chain(LM, 4), rows=64) for _ in range(2))
  np.testing.assert_array_equal(first.tree.tokens, again.tree.tokens)
  assert len(np.unique(first.tree.tokens, axis=0)) > 10


def test_greedy_drafts_are_the_argmax():
  draft = propose(chain.Chain(LM, 3), rows=2, plain=warp.Warp(0.))
  before, last, want = 2, 3, []
  for _ in range(3):
    before, last = last, int(Q[before, last].argmax())
    want.append(last)
  assert draft.tree.tokens[0].tolist() == [3, *want]


def test_a_stop_ends_the_row_at_the_first_doubtful_node():
  """The node where max q is too low keeps no child; the rest is unvisited."""
  draft = propose(chain.Chain(LM, 4, chain.Below(.55)))
  confident = np.asarray(draft.prediction.probs.max(-1)) >= .55
  drafted = (np.asarray(draft.tree.parents) >= 0).sum(1)
  assert not draft.full and set(drafted) == {1, 2, 3, 4}
  for sure, n in zip(confident[:500], drafted[:500]):
    assert sure[:n].all() and (n == 4 or not sure[n])
  np.testing.assert_array_equal(draft.calls, np.minimum(drafted + 1, 5))


@pytest.mark.parametrize('leaf_q', [True, False])
def test_a_stop_behind_the_doubtful_token_keeps_it(leaf_q):
  """As in Draft & Verify's code: each row drafts, no step is for nothing."""
  draft = propose(chain.Chain(LM, 4, stop.Behind(.55)), leaf_q=leaf_q)
  confident = np.asarray(draft.prediction.probs.max(-1)) >= .55
  drafted = (np.asarray(draft.tree.parents) >= 0).sum(1)
  assert not draft.full and set(drafted) == {2, 3, 4}
  for sure, n in zip(confident[:500], drafted[:500]):
    assert sure[:n - 1].all() and (n == 4 or not sure[n - 1])
  np.testing.assert_array_equal(draft.calls, drafted + leaf_q)


def test_a_stop_reads_q_before_the_temperature():
  """At temperature 0 every warped max q is 1; BiLD must still fall back."""
  draft = propose(chain.Chain(LM, 4, chain.Below(1.)), rows=2,
                  plain=warp.Warp(0.))
  assert (draft.tree.parents == -1).all()


def model_calls(length, *, leaf_q=True, live=None, leaf_read=None, ends=(),
                rows=2, **options):
  """How often a chain called its model, and what it says it did."""
  calls = []

  @dataclasses.dataclass(frozen=True)
  class Counting(table.Table):
    def extend(self, params, cache, tree):
      jax.debug.callback(lambda: calls.append(1))
      return super().extend(params, cache, tree)

  lm = Counting()
  drafter = chain.Chain(lm, length, **options)
  state = drafter.init(Q, prompt(rows), None, 20)
  ctx = types.Context(prompt(rows).prefix, prompt(rows).prefix_lengths, None,
                      warp.Warp(), leaf_q, live and jnp.asarray(live),
                      None if leaf_read is None else jnp.asarray(leaf_read),
                      ends)
  jax.effects_barrier()
  calls.clear()
  first = lambda d, s, c: d.propose(Q, s, c, keys(rows))[0]
  draft = jax.block_until_ready(jax.jit(first)(drafter, state, ctx))
  jax.effects_barrier()
  return len(calls), draft.calls.tolist()


@pytest.mark.parametrize('threshold, live, want', [
    (0., None, 5), (1., None, 1), ([1., 0.], None, 5),
    ([1., 0.], [True, False], 1), ([0., 0.], [True, False], 5)])
def test_a_stop_that_every_live_row_takes_saves_the_model_calls(
    threshold, live, want):
  stop = chain.Below(jnp.asarray(threshold))
  assert model_calls(4, stop=stop, live=live)[0] == want


@pytest.mark.parametrize('leaf_q', [True, False])
@pytest.mark.parametrize('most', [1, 2, 4])
def test_a_shorter_chain_takes_no_step_that_nobody_reads(most, leaf_q):
  """Rules without q read none at its last node."""
  steps = most + leaf_q
  assert model_calls(4, most=most, leaf_q=leaf_q) == (steps, [steps] * 2)
  uneven = jnp.array([1, most])
  assert model_calls(4, most=uneven, leaf_q=leaf_q) == (
      steps, [1 + leaf_q, steps])


@pytest.mark.parametrize('read', [True, False])
def test_a_leaf_that_a_traced_rule_does_not_read_costs_no_step(read):
  """And none at all, read or not, where the target can't ask for q."""
  assert model_calls(4, leaf_read=read) == (4 + read, [4 + read] * 2)
  assert model_calls(4, leaf_q=False, leaf_read=read) == (4, [4, 4])


@pytest.mark.parametrize('leaf_q', [True, False])
@pytest.mark.parametrize('ends', [(1,), (2, 4)])
def test_nothing_is_drawn_behind_an_end(ends, leaf_q):
  """What stands there, for who looks, is token 0, and its law."""
  plain, draft = (propose(chain.Chain(LM, 4), leaf_q=leaf_q, ends=some)
                  for some in ((), ends))
  x, y = np.asarray(plain.tree.tokens), np.asarray(draft.tree.tokens)
  end = np.isin(x[:, 1:], ends)
  last = np.where(end.any(1), end.argmax(1) + 1, 4)      # drawn, from 1
  assert set(last) == {1, 2, 3, 4} and draft.full
  np.testing.assert_array_equal(draft.calls, last + leaf_q)
  kept = np.arange(5) <= last[:, None]
  np.testing.assert_array_equal(y, np.where(kept, x, 0))
  np.testing.assert_array_equal(draft.tree.num_drafts, last)
  q, law = (np.asarray(d.prediction.probs) for d in (plain, draft))
  drawn = (np.arange(5) < last[:, None]) | ~end.any(1)[:, None]
  np.testing.assert_array_equal(
      law, np.where(drawn[..., None], q, np.eye(5)[0]))


def test_a_draft_that_has_ended_costs_no_step():
  """In a batch it would, but is not counted: see `growing.grown`."""
  every = tuple(range(5))
  assert model_calls(4, ends=every, rows=1) == (2, [2])
  assert model_calls(4, ends=every, rows=1, leaf_q=False) == (1, [1])
  assert model_calls(4, ends=every) == (5, [2, 2])
  assert model_calls(4, rows=1) == (5, [5])


@struct.dataclass
class Deaf(chain.Chain):
  """A chain that does not know what ends a row."""

  def propose(self, params, state, ctx, keys):
    return super().propose(params, state, ctx.replace(ends=()), keys)


def ended(drafter, verifier, heat, rows=4096):
  spec = decode.GenSpecSample(LM, drafter, 12, verifier, eos=(1, 3))
  return spec(P, Q, prompt(rows), keys(rows), targets.Lossless(),
              warp.Warp(heat))


@pytest.mark.parametrize('heat', [0., .8])
@pytest.mark.parametrize('verifier', [
    verify.Rejection(), verify.Typical(), verify.Rollback()],
                         ids=lambda x: type(x).__name__)
def test_what_stands_behind_an_end_changes_nothing(verifier, heat):
  one, two = (ended(make(LM, 4), verifier, heat) for make in (chain.Chain,
                                                               Deaf))
  saved = two.stats.drafter_calls - one.stats.drafter_calls
  assert (saved >= 0).all() and (saved > 0).mean() > .3
  both = [jax.device_get((x.tokens, x.lengths, x.fault, dataclasses.replace(
      x.stats, drafter_calls=0, drafted=0))) for x in (one, two)]
  jax.tree.map(np.testing.assert_array_equal, *both)


def test_block_verification_keeps_its_law_where_drafts_end():
  """It weighs what follows, so that only the law is the same: one in 1e6."""
  one, two = (np.bincount(ended(make(LM, 4), verify.Block(), .8).lengths,
                          minlength=13)[4:] for make in (chain.Chain, Deaf))
  assert one.sum() == two.sum() == 4096 and (one != two).any()
  assert stats.chi2_contingency([one, two]).pvalue > 1e-6


@pytest.mark.parametrize('heat', [0., .8])
@pytest.mark.parametrize('rule', [targets.Lossless(), targets.Chow(.4)],
                         ids=['without q', 'with q'])
def test_a_rule_among_others_decodes_as_it_does_alone(rule, heat):
  """Tokens, and all that is counted; the last draft's slot is written late."""
  kept = chain.Below(jnp.float32(.3))
  family = targets.Lossless(), targets.TokenV3(.2), targets.Chow(.4)
  index = [type(x) for x in family].index(type(rule))
  for drafter in (chain.Chain(LM, 3), chain.Chain(LM, 3, kept)):
    spec = decode.GenSpecSample(LM, drafter, 30, eos=-1)
    alone, among = (spec(P, Q, prompt(64), keys(64), x, warp.Warp(heat))
                    for x in (rule, targets.Choice(family, jnp.int32(index))))
    np.testing.assert_array_equal(among.tokens, alone.tokens)
    jax.tree.map(np.testing.assert_array_equal, among.stats, alone.stats)


def test_a_perfect_drafter_is_always_accepted():
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3), 23, eos=-1)
  s = spec(P, P, prompt(8), keys(8), targets.Lossless(), warp.Warp()).stats
  np.testing.assert_array_equal(s.rounds, 5)
  np.testing.assert_array_equal(s.accepted, 15)
  np.testing.assert_array_equal(s.bonus, 5)
  np.testing.assert_array_equal(s.drafter_calls, 15)


def test_thresholds_may_differ_by_row():
  stop = chain.Below(jnp.array([0., 1.]))
  draft = propose(chain.Chain(LM, 3, stop), rows=2)
  assert (draft.tree.parents >= 0).sum(1).tolist() == [3, 0]
