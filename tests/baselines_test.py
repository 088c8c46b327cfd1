"""Sequential baselines: laws, plain Python references, calls, counters."""
import dataclasses
import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import api, baselines, check, decode, targets, types
from spec_cascades.drafters import null
from spec_cascades.models import table, toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, RAGGED, ROWS, joint, keys, p_value, prompt, select, tally)
from tests import loops
from tests.models import tiny
from tests.toys import BIG, PB, PS, SMALL

SPEC = baselines.Sequential(LM, LM, 6, eos=-1)
TOYS = baselines.Sequential(BIG, SMALL, 24)
LOSSLESS, PLAIN, GREEDY = targets.Lossless(), Warp(), Warp(0.)
Seq, Token = baselines.SeqCascade, baselines.TokenCascade
Oracle, BiLD = baselines.OracleCascade, baselines.OriginalBiLD
RULES = [Seq(.45), Seq(.9, normalised=False), Token(.5), Token(.4, block=2),
         Oracle(.1), BiLD(1.), BiLD(1., fallback=.4, length=3)]
FEW = [Seq(.45), Token(.4, block=2), Oracle(.1), BiLD(1., length=3)]
FIELDS = ('rounds', 'drafted', 'accepted', 'corrected', 'bonus', 'emitted',
          'deferred', 'verifier_calls', 'drafter_calls')
# Two tokens of every kind: 25 prompts.
PAIRS = types.Prompt(jnp.array(list(itertools.product(range(5), repeat=2))),
                     jnp.full(25, 2))


def name(rule):
  return str(rule).replace("<class 'spec_cascades.targets.", '').replace(
      "'>", '')


def assert_counted(state, lengths):
  s = state.stats
  np.testing.assert_array_equal(s.emitted, state.lengths - lengths)
  np.testing.assert_array_equal(s.emitted, s.accepted + s.corrected + s.bonus)
  np.testing.assert_array_equal(s.histogram.sum(1), s.rounds)
  np.testing.assert_array_equal(
      s.histogram @ jnp.arange(s.histogram.shape[1]), s.accepted)
  np.testing.assert_array_equal(s.rejected.sum(1), s.corrected)
  assert (s.rejected <= s.histogram).all()
  assert (s.accepted <= s.drafted).all()
  assert (np.asarray(s.deferred) <= np.asarray(s.emitted) + 1e-4).all()


# Laws ------------------------------------------------------------------------


def fits(rule, warp, law, spec=SPEC):
  state = spec(P, Q, prompt(ROWS), keys(ROWS, 4), rule, warp)
  assert_counted(state, 3)
  return p_value(tally(state), law)


def law_of_seq(rule, warp):
  """Exact: q's responses that stand, and p's where they don't."""
  (q, p), raw = (np.asarray(warp(x).probs) for x in (Q, P)), np.asarray(
      jax.nn.log_softmax(Q))
  path = lambda x, a, b, c: (x[2, 3, a], x[3, a, b], x[a, b, c])
  law, again, standing = np.zeros((5,) * 3), np.zeros((5,) * 3), 0.
  for x in itertools.product(range(5), repeat=3):
    again[x] = np.prod(path(p, *x))
    logs = np.sum(path(raw, *x)) / (3 if rule.normalised else 1)
    if np.exp(logs) >= 1 - rule.alpha:
      law[x] = np.prod(path(q, *x))
      standing += law[x]
  assert .2 < standing < .8, standing
  return law + (1 - standing) * again


@pytest.mark.parametrize('alpha,warp', [
    (.4, PLAIN), (.6, Warp(.7, top_p=.9))])
def test_token_cascade_has_the_law_of_chow(alpha, warp):
  assert ROWS >= 131072
  assert fits(Token(alpha), warp, joint(targets.Chow(alpha), warp)) > LEVEL


@pytest.mark.parametrize('rule', [Token(-.1), Seq(-.1)], ids=name)
def test_at_the_strict_end_the_law_is_that_of_p(rule):
  assert fits(rule, Warp(.8), joint(LOSSLESS, Warp(.8))) > LEVEL


@pytest.mark.parametrize('target,warp', [
    (targets.Diff(.1), PLAIN), (targets.TokenV1(.3), Warp(.7, top_k=4))],
    ids=str)
def test_oracle_cascade_has_the_law_of_its_target(target, warp):
  rule = Oracle(target.alpha, rule=type(target))
  assert fits(rule, warp, joint(target, warp)) > LEVEL


@pytest.mark.parametrize('rule,warp', [
    (Seq(.6), PLAIN), (Seq(.95, normalised=False), Warp(.8))], ids=str)
def test_seq_cascade_has_the_law_of_its_definition(rule, warp):
  assert fits(rule, warp, law_of_seq(rule, warp)) > LEVEL


def test_alpha_and_temperature_per_row():
  half = jnp.arange(ROWS) < ROWS // 2
  either = lambda a, b: jnp.where(half, a, b)
  warp = Warp(either(1., .5), top_p=either(.9, 1.))
  parts = ((slice(None, ROWS // 2), Warp(1., top_p=.9)),
           (slice(ROWS // 2, None), Warp(.5)))
  for rule, alphas, law in (
      (Token, (.2, .6), lambda a, w: joint(targets.Chow(a), w)),
      (Oracle, (.05, .3), lambda a, w: joint(targets.Diff(a), w)),
      (Seq, (.6, .55), lambda a, w: law_of_seq(Seq(a), w))):
    state = SPEC(P, Q, prompt(ROWS), keys(ROWS), rule(either(*alphas)), warp)
    for alpha, (rows, own) in zip(alphas, parts):
      assert p_value(tally(state, rows), law(alpha, own)) > LEVEL


def test_one_key_for_both_models_fails(monkeypatch):
  """p's text would be drawn with the luck that made q unsure."""
  monkeypatch.setattr(baselines, 'renewed', lambda keys: keys)
  jax.clear_caches()                           # it is not a cache key
  found = fits(Seq(.6), PLAIN, law_of_seq(Seq(.6), PLAIN))
  jax.clear_caches()
  assert found < LEVEL


def test_deferral_on_the_warped_distribution_fails(monkeypatch):
  """Chow decides at temperature 1, whatever the warp."""
  want = joint(targets.Chow(.4), Warp(.5))
  monkeypatch.setattr(targets.Chow, 'defers', lambda self, q, p, alpha: (
      jax.nn.softmax(q.logits / .5).max(-1) < 1 - alpha))
  jax.clear_caches()
  found = fits(Token(.4), Warp(.5), want)
  jax.clear_caches()
  assert found < LEVEL


# References ------------------------------------------------------------------


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
  assert_counted(state, prompts.prefix_lengths)
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
  assert_counted(state, 2)
  lengths = 6 - jnp.arange(1, 6)
  prompts = types.Prompt(jnp.array([[2, 3, 4, 0, 1]] * 5), lengths)
  state = SPEC(p, q, prompts, keys(5), rule, GREEDY)
  np.testing.assert_array_equal(state.stats.emitted, jnp.arange(1, 6))
  np.testing.assert_array_equal(state.tokens, [[2, 3, 4, 0, 1, 2]] * 5)
  assert_counted(state, lengths)


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


@pytest.mark.parametrize('lm', ['t5_1_1', 'gemma1'])
def test_the_ends_are_the_models_alone(lm):
  """Greedy, and sampled where the keys are the same."""
  large = small = tiny.LMS[lm]
  p, q = (large.pack(tiny.params_of(large, seed)) for seed in (0, 1))
  prompts = types.Prompt(jnp.array([[3, 7, 9], [4, 0, 0]]), jnp.array([3, 1]),
                         tiny.inputs_of(large, 2))
  spec = baselines.Sequential(large, small, 12)
  single = lambda params, warp: decode.GenSpecSample(large, null.Null(), 12)(
      params, None, prompts, keys(2), LOSSLESS, warp).tokens
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
      PS, None, RAGGED, keys(3), LOSSLESS, PLAIN)
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


# Faults, checks, compilation -------------------------------------------------


@pytest.mark.parametrize('rule', [
    Seq(-.1), Token(-.1), Oracle(.1), BiLD(1.)], ids=name)
def test_non_finite_logits_of_p_stop_their_row(rule):
  """After 3 comes 4, after anything else 0; p breaks in the row of 3 4."""
  steady = jnp.zeros((5, 5, 5)).at[:, :, 0].set(9.).at[:, 3, 4].set(99.)
  prompts = types.Prompt(jnp.array([[0, 2, 3], [0, 2, 2]]), jnp.full(2, 3))
  spec = baselines.Sequential(LM, LM, 12, eos=-1)
  state = spec(steady.at[3, 4, 2].set(jnp.nan), steady, prompts, keys(2), rule,
               GREEDY)
  again = 9 if isinstance(rule, Seq) else 0      # tokens that q wrote before
  assert state.fault.tolist() == [2 + again, 0]
  assert state.lengths.tolist() == [4, 12]
  assert state.tokens[1].tolist() == [0, 2, 2] + [0] * 9
  assert check.faults(state)[0].startswith('Row 0 stopped in round')
  assert_counted(state, 3)


@pytest.mark.parametrize('temperature', [0., 1.])
@pytest.mark.parametrize('rule', [
    Seq(.5), Seq(-.1), Token(.5), Token(-.1), Oracle(.1), BiLD(1.)], ids=name)
def test_non_finite_logits_of_q_stop_their_row(rule, temperature):
  if rule.greedy and temperature:
    pytest.skip('greedy only')
  bad = Q.at[:, 3].set(jnp.nan)                  # after any 3
  prompts = types.Prompt(jnp.array([[0, 2, 3], [0, 2, 2]]), jnp.full(2, 3))
  never = lambda x: x.at[:, :, 3].set(-jnp.inf)  # row 1 gets to no 3
  spec = baselines.Sequential(LM, LM, 12, eos=-1)
  state = spec(never(P), never(bad).at[:, 3].set(jnp.nan), prompts, keys(2),
               rule, Warp(temperature))
  first = 2 if isinstance(rule, BiLD) else 1     # BiLD's first token is p's
  assert state.fault[0] in (1, first) and state.lengths[0] <= 4
  assert state.fault[1] == 0 and state.lengths[1] == 12
  assert not state.stats.emitted[0] or isinstance(rule, BiLD)
  assert_counted(state, 3)


def call(rule, warp=PLAIN, spec=SPEC, prompts=None):
  prompts = prompt(2) if prompts is None else prompts
  return spec(P, Q, prompts, keys(2), rule, warp)


@pytest.mark.parametrize('make,what', [
    (lambda: call(Seq(1.5)), 'alpha of SeqCascade is 1.5; allowed: -1 to 1'),
    (lambda: call(Token(float('nan'))), 'alpha of TokenCascade is nan'),
    (lambda: call(Oracle(2.)), 'alpha of Diff is 2'),
    (lambda: call(Token(jnp.zeros(3))), r'shape \(3,\)'),
    (lambda: call(BiLD(-1.), GREEDY), 'alpha of OriginalBiLD is -1'),
    (lambda: call(BiLD(jnp.ones(2)), GREEDY), 'allowed: a scalar'),
    (lambda: call(BiLD(1., fallback=2.), GREEDY), 'threshold of Below is 2'),
    (lambda: call(BiLD(1.)), 'temperature of OriginalBiLD is 1.*greedy'),
    (lambda: call(BiLD(1.), Warp(jnp.array([0., .5]))), 'is 0.5 in row 1'),
    (lambda: BiLD(1., length=0), 'gamma'),
    (lambda: Token(1., block=0), 'block of TokenCascade is 0'),
    (lambda: call(targets.Chow(.5)), 'Chow is no baseline; allowed: SeqCas'),
    (lambda: call(Seq(.5), Warp(-1.)), 'temperature is -1'),
    (lambda: call(Seq(.5), prompts=prompt(2, (0, 2, 9))), 'Token of prefix'),
    (lambda: call(Seq(.5), prompts=prompt(3)), 'Different numbers of rows'),
    (lambda: call(Seq(.5), prompts=prompt(2, (1,) * 6)), 'leaves no room'),
    (lambda: baselines.Sequential(LM, table.Table(7), 6), '7 tokens and p')])
def test_bad_input_is_refused_in_one_line(make, what):
  before = baselines.run._cache_size()
  with pytest.raises(ValueError, match=what) as error:
    make()
  assert '\n' not in str(error.value)
  assert baselines.run._cache_size() == before


@pytest.mark.parametrize('rule', [Seq, Token])
def test_a_head_over_some_tokens_is_refused(rule):
  @dataclasses.dataclass(frozen=True)
  class Narrow(table.Table):
    def head(self, params, hidden):
      return hidden[..., :3]
  with pytest.raises(ValueError, match='head over 3 of 5 tokens'):
    call(rule(.5), spec=baselines.Sequential(LM, Narrow(), 6))


@pytest.mark.parametrize('rule', [Seq, Token, Oracle, BiLD])
def test_numbers_compile_once(rule):
  warp = lambda x: Warp(0.) if rule.greedy else Warp(x, top_k=1, top_p=x)
  call(rule(.2), warp(.5))
  before = baselines.run._cache_size()
  for x in (.3, .7):
    call(rule(x), warp(x))
  assert baselines.run._cache_size() == before


def test_a_baseline_may_be_called_inside_jit():
  run = jax.jit(lambda alpha: SPEC(P, Q, prompt(4), keys(4), Token(alpha),
                                   PLAIN).tokens)
  np.testing.assert_array_equal(run(.4), SPEC(
      P, Q, prompt(4), keys(4), Token(.4), PLAIN).tokens)


def test_sampling_is_from_q_where_it_is_sure():
  """TokenCascade with a q that is sure of nothing but after a 3."""
  q = jnp.zeros((5, 5, 5)).at[:, 3, 1].set(20.)
  p = jnp.zeros((5, 5, 5)).at[:, :, 3].set(20.)
  state = SPEC(p, q, prompt(4), keys(4), Token(.5), PLAIN)
  assert state.tokens[:, 3:].tolist() == [[1, 3, 1]] * 4
  assert state.stats.accepted.tolist() == [2] * 4
