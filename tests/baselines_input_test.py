"""Sequential baselines: faults, bad input, compilation."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import baselines, check, targets, types
from spec_cascades.models import table
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, assert_sums, keys, prompt
from tests.sequential import BiLD, GREEDY, Oracle, PLAIN, SPEC, Seq, Token, name


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
  assert_sums(state, 3)


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
  assert_sums(state, 3)


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
    (lambda: jax.jit(lambda heat: call(BiLD(1.), Warp(heat)))(0.),
     'temperature of OriginalBiLD is traced; allowed: a concrete 0'),
    (lambda: Oracle(.1, rule=targets.Chow(.1)), 'rule Chow.* of OracleCascade'),
    (lambda: Oracle(.1, rule=targets.Lossless), 'a class of .* with an alpha'),
    (lambda: call(Seq), 'SeqCascade is a class'),
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
