"""Sequential baselines: plain Python references, calls, counters."""
import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import api, baselines, decode, targets, types
from spec_cascades.drafters import null
from spec_cascades.models import toy
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, assert_sums, keys, select
from tests import loops
from tests.models import tiny
from tests.sequential import (
    BiLD, FEW, FIELDS, GREEDY, Oracle, PAIRS, PLAIN, RULES, SPEC, Seq, TOYS,
    Token, name)
from tests.toys import BIG, PB, PS, SMALL


REFERENCES = {Seq: loops.seq, Token: loops.token, Oracle: loops.oracle,
              BiLD: loops.bild}


def caller(lm, params, inputs=None):
  """tokens -> next logits, by reading all tokens anew."""
  @functools.lru_cache(maxsize=None)
  def cached(tokens):
    row = np.zeros((1, 48), np.int32)
    row[0, :len(tokens)] = tokens
    return np.asarray(anew(lm, params, inputs, row)[len(tokens) - 1],
                      np.float64)

  return lambda tokens: cached(tuple(tokens))


@functools.partial(jax.jit, static_argnums=0)
def anew(lm, params, inputs, tokens):
  prompts = types.Prompt(tokens, jnp.ones(1, jnp.int32), inputs)
  cache = lm.init(params, prompts, tokens.shape[1])
  return lm.head(params, lm.extend(params, cache, types.chain(tokens))[0])[0]


def assert_as_reference(spec, rule, q, p, params, draft_params, prompts):
  state = spec(params, draft_params, prompts, keys(len(prompts.prefix)), rule,
               GREEDY)
  assert_sums(state, prompts.prefix_lengths)
  lengths = np.asarray(prompts.prefix_lengths)
  for row, start in enumerate(np.asarray(prompts.prefix)):
    tokens, counts = REFERENCES[type(rule)](
        rule, q, p, start[:lengths[row]].tolist(), spec.eos, spec.max_length)
    assert state.tokens[row, :state.lengths[row]].tolist() == tokens
    assert not state.tokens[row, len(tokens):].any()
    for field in FIELDS[:5] + FIELDS[6:]:
      got = float(getattr(state.stats, field)[row])
      assert got == counts.get(field, 0), (row, field)
  return state


@pytest.mark.parametrize('rule', RULES, ids=name)
def test_greedy_tokens_and_counters_equal_a_plain_loop(rule):
  """25 prompts, each row of the tables as EOS; then caches, ragged prompts."""
  kept, calls = 0, set()
  spec = baselines.Sequential(LM, LM, 14)
  for shift in range(5):
    p, q = (jnp.roll(x, (shift,) * 3, (0, 1, 2)) for x in (P, Q))
    state = assert_as_reference(spec, rule, caller(LM, q), caller(LM, p), p, q,
                                PAIRS)
    calls |= set(state.stats.verifier_calls.tolist())
    kept += int(state.stats.accepted.sum())
  assert len(calls) > 3 and (kept > 50 or isinstance(rule, Oracle))
  assert_as_reference(TOYS, rule, caller(SMALL, PS), caller(BIG, PB), PB, PS,
                      RAGGED)


@pytest.mark.parametrize('rule', FEW, ids=name)
def test_encoder_decoders_equal_a_plain_loop(rule):
  large, small = (dataclasses.replace(x, encoder=True) for x in (BIG, SMALL))
  inputs = jnp.array([[3, 2, 4], [4, 4, 2], [1, 1, 3]])
  prompts = types.Prompt(jnp.zeros((3, 1), jnp.int32), jnp.ones(3, jnp.int32),
                         inputs)
  spec = baselines.Sequential(large, small, 24)
  state = spec(PB, PS, prompts, keys(3), rule, GREEDY)
  for row in range(3):
    q, p = (caller(lm, x, inputs[row:row + 1])
            for lm, x in ((small, PS), (large, PB)))
    tokens, _ = REFERENCES[type(rule)](rule, q, p, [0], 1, 24)
    assert state.tokens[row, :state.lengths[row]].tolist() == tokens


def counting(sure):
  """A table that counts 0 1 2 3 4 0 ..., sure of it or not."""
  at = jnp.arange(5)
  return jnp.zeros((5,) * 3).at[:, at, (at + 1) % 5].set(9. if sure else .1)


@pytest.mark.parametrize('sure', [True, False])
@pytest.mark.parametrize('rule', FEW, ids=name)
def test_eos_and_cap_at_every_offset(rule, sure):
  """EOS = 0: a prompt that ends in t reaches it after 5 - t tokens."""
  q, p, at = counting(sure), counting(True), jnp.arange(5)
  prompts = types.Prompt(jnp.stack([jnp.full(5, 2), at], 1), jnp.full(5, 2))
  spec = baselines.Sequential(LM, LM, 20, eos=0)
  state = spec(p, q, prompts, keys(5), rule, GREEDY)
  np.testing.assert_array_equal(state.stats.emitted, 5 - at)
  for row in range(5):
    want = [*range(row + 1, 5), 0]
    assert state.tokens[row, 2:].tolist() == want + [0] * (18 - len(want))
  assert_sums(state, 2)
  lengths = 6 - jnp.arange(1, 6)
  prompts = types.Prompt(jnp.array([[2, 3, 4, 0, 1]] * 5), lengths)
  state = SPEC(p, q, prompts, keys(5), rule, GREEDY)
  np.testing.assert_array_equal(state.stats.emitted, jnp.arange(1, 6))
  np.testing.assert_array_equal(state.tokens, [[2, 3, 4, 0, 1, 2]] * 5)
  assert_sums(state, lengths)


@pytest.mark.parametrize('rule', FEW, ids=name)
def test_a_ragged_batch_is_each_row_alone(rule):
  warp = GREEDY if rule.greedy else Warp(.8)
  for seed in range(3):
    together = TOYS(PB, PS, RAGGED, keys(3, seed), rule, warp)
    for row in range(3):
      part = select(RAGGED, slice(row, row + 1))
      got = TOYS(PB, PS, part, keys(3, seed)[row:row + 1], rule, warp)
      np.testing.assert_array_equal(got.tokens[0], together.tokens[row])
      for field in FIELDS:
        np.testing.assert_array_equal(getattr(got.stats, field)[0],
                                      getattr(together.stats, field)[row])


# Ends, calls, models ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('lm', ['t5_1_1', 'gemma1'])
def test_the_ends_are_the_models_alone(lm):
  """Greedy, and sampled where the keys are the same."""
  large = small = tiny.LMS[lm]
  p, q = (large.pack(tiny.params_of(large, seed)) for seed in (0, 1))
  prompts = types.Prompt(jnp.array([[3, 7, 9], [4, 0, 0]]), jnp.array([3, 1]),
                         tiny.inputs_of(large, 2))
  spec = baselines.Sequential(large, small, 12)
  single = lambda params, warp: decode.GenSpecSample(large, null.Null(), 12)(
      params, None, prompts, keys(2), targets.Lossless(), warp).tokens
  ends = [(Token(1.), q, Warp()), (Token(-1.), p, Warp()),
          (Seq(1.), q, Warp()), (Seq(-1.), p, GREEDY),
          (Oracle(1.), q, Warp()), (Oracle(-1.), p, Warp()),
          (BiLD(0.), p, GREEDY)]
  for rule, params, warp in ends:
    np.testing.assert_array_equal(
        spec(p, q, prompts, keys(2), rule, warp).tokens, single(params, warp))


@pytest.mark.parametrize('rule', [Seq(.5), Token(.5), Oracle(.1)], ids=name)
def test_alone_q_is_asked_with_the_keys_of_the_drafter_alone(rule):
  q = decode.GenSpecSample(SMALL, null.Null(), 24)(
      PS, None, RAGGED, keys(3), targets.Lossless(), PLAIN)
  got = TOYS(PB, PS, RAGGED, keys(3), rule.replace(alpha=1.), PLAIN)
  np.testing.assert_array_equal(got.tokens, q.tokens)


@dataclasses.dataclass(frozen=True)
class Logged(toy.ToyLM):
  """Notes every block that is read, and every prompt, as it happens."""
  encoder: bool = True

  def init(self, params, prompt, capacity):
    cache = super().init(params, prompt, capacity)
    jax.debug.callback(lambda _: LOG.append(0), cache.static)
    return cache

  def extend(self, params, cache, tree):
    hidden, cache = super().extend(params, cache, tree)
    width = tree.tokens.shape[1]
    jax.debug.callback(lambda _: LOG.append(width), hidden)
    return hidden, cache


LOG = []
TEXT = types.Prompt(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32),
                    jnp.array([[3, 2, 4]]))


def logged(rule, rows=TEXT, warp=PLAIN):
  """What p was asked, sorted: 0 is its encoder, else the width of a block."""
  spec = baselines.Sequential(
      Logged(), dataclasses.replace(SMALL, encoder=True), 24, eos=-1)
  LOG.clear()
  state = jax.block_until_ready(spec(PB, PS, rows, keys(len(rows.prefix)), rule,
                                     warp))
  jax.effects_barrier()
  return sorted(LOG), state


@pytest.mark.parametrize('rule', [Seq(1.), Token(1.)], ids=name)
def test_p_is_not_touched_where_no_row_needs_it(rule):
  """Neither its encoder nor its decoder; with one row in need, both."""
  asked, state = logged(rule)
  assert asked == [] and not state.stats.verifier_calls.any()
  assert (state.stats.drafter_calls == 23).all()
  asked, state = logged(rule.replace(alpha=-1.))
  assert asked == [0] + [1] * 23
  assert state.stats.verifier_calls.tolist() == [23]


def test_every_pass_of_p_is_counted():
  rule = Token(.35, block=4)
  asked, state = logged(rule)
  assert asked[0] == 0 and asked.count(0) == 1
  assert {1, 4} == set(asked[1:])                # it does catch up
  assert len(asked) - 1 == int(state.stats.verifier_calls[0]) < 23
  assert int(state.stats.deferred[0]) < 23


def test_a_row_that_is_done_asks_nothing():
  """Two rows: p runs for as long as the one that is not done needs it."""
  prompts = types.Prompt(jnp.array([[0] * 20, [0] * 20]), jnp.array([20, 2]),
                         jnp.array([[3, 2, 4]] * 2))
  rule = Token(jnp.array([-1., 1.]))             # row 1 never asks
  asked, state = logged(rule, prompts)
  assert state.stats.verifier_calls.tolist() == [4, 0]
  assert state.stats.emitted.tolist() == [4, 22]
  assert asked == [0] + [1] * 4 + [19]           # its tokens, its prompt
  asked, state = logged(Seq(jnp.array([-1., 1.])), prompts)
  assert state.stats.verifier_calls.tolist() == [4, 0]
  assert asked == [0] + [1] * 4 + [19]


def test_root_keeps_the_contract_of_drafters():
  drafter = SPEC.drafter
  for method in ('validate', 'init', 'propose', 'observe'):
    own, contract = (list(inspect.signature(getattr(x, method)).parameters)
                     for x in (drafter, api.Drafter))
    assert ['self', *own] == contract
  loop = SPEC.loop(LM, drafter)
  start = loop.init(P, Q, RAGGED, keys(3))
  after, _ = loop.step(P, Q, targets.Diff(.1), PLAIN, start)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, start)
  np.testing.assert_array_equal(after.drafter.length, after.lengths - 1)


def test_an_oracle_takes_one_step_of_each_model_a_token():
  asked, state = logged(Oracle(.1))
  assert asked == [0] + [1] * 23
  assert state.stats.drafter_calls.tolist() == [23]


def test_bild_starts_with_p_alone():
  """One pass of one node before anything is drafted, which never stops."""
  asked, state = logged(BiLD(5., fallback=0., length=4), warp=GREEDY)
  assert asked[:2] == [0, 1] and set(asked[2:]) == {5}     # one is of one node
  assert len(asked) - 1 == int(state.stats.verifier_calls[0])
