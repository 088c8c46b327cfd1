"""Bad input is refused in one line, before anything is compiled."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import baselines, check, decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.models import table
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, keys, prompt

LOSSLESS, INF = targets.Lossless(), float('inf')
CHAIN = chain.Chain(LM, 2)


def call(*, drafter=CHAIN, draft_params=Q, verifier=verify.Rejection(),
         target=LOSSLESS, warp=Warp(), rows=2, given=None, key_rows=None,
         max_length=9):
  spec = decode.GenSpecSample(LM, drafter, max_length, verifier)
  return spec(P, draft_params, given or prompt(rows), keys(key_rows or rows),
              target, warp)


def refused(match, *, traced=False, **arguments):
  """Raises ValueError in one line, and reaches no trace unless it must."""
  before = decode.run._cache_size()
  with pytest.raises(ValueError, match=match) as error:
    call(**arguments)
  assert '\n' not in str(error.value)
  assert traced or decode.run._cache_size() == before


@pytest.mark.parametrize('target,match', [
    (targets.Lossy(-.1), r'alpha of Lossy is -0.1; allowed: 0 to 1'),
    (targets.Lossy(1.1), 'alpha of Lossy is 1.1'),
    (targets.Chow(1.5), 'alpha of Chow is 1.5; allowed: -1 to 1'),
    (targets.Diff(-2.), 'Diff'), (targets.TokenV1(2.), 'TokenV1'),
    (targets.TokenV2(2.), 'TokenV2'), (targets.TokenV3(1.01), 'TokenV3'),
    (targets.OPT(float('nan')), 'OPT is nan'),
    (targets.Chow(jnp.array([.1, 3.])), 'is 3.0 in row 1'),
    (targets.Chow(jnp.ones(3)), r'shape \(3,\).*\(2,\)'),
    (targets.Choice((LOSSLESS, targets.Chow(.1)), 2), 'index of Choice is 2'),
    (targets.Choice((LOSSLESS, targets.Chow(9.))), 'alpha of Chow is 9.0'),
    (targets.Choice((LOSSLESS,) * 2, jnp.array([0, 1])), r'shape \(2,\)'),
    (targets.Choice((LOSSLESS,) * 2, .5), 'is 0.5; allowed: a whole number'),
    (targets.Choice(()), 'no rules; allowed: a tuple of one or more'),
    (targets.Choice(LOSSLESS), 'Choice of Lossless.*; allowed: a tuple'),
    (targets.Chow([.1, .2]), 'alpha of Chow is a list; allowed: a number or'),
    (targets.Chow(np.ones(60, bool)), 'alpha of Chow is an array of bool'),
    (targets.Choice((LOSSLESS, targets.Chow)), 'Chow is a class'),
    (targets.Chow('x'), "alpha of Chow is 'x'; allowed: a number of -1 to 1"),
    (targets.Chow(None), 'alpha of Chow is None'),
    (targets.Chow, 'Chow is a class; allowed: an instance of it, such as Chow'),
    (baselines.SeqCascade(.1), 'SeqCascade is no target.*go to Sequential'),
    (lambda q, p: p, 'function is no target')])
def test_targets(target, match):
  refused(match, target=target)


@pytest.mark.parametrize('warp,match', [
    (Warp(-1.), 'temperature is -1.0; allowed: 0 to 1e'),
    (Warp(INF), 'temperature is inf'), (Warp(float('nan')), 'temperature'),
    (Warp(top_p=0.), 'top_p is 0.0; allowed: above 0 to 1'),
    (Warp(top_p=1.2), 'top_p is 1.2'), (Warp(top_k=-1), 'top_k is -1'),
    (Warp(min_p=2.), 'min_p is 2.0'),
    (Warp(jnp.array([1., -1.])), 'temperature is -1.0 in row 1'),
    (Warp(jnp.ones(5)), 'temperature has shape'),
    (Warp('hot'), "temperature is 'hot'; allowed: a number"),
    (Warp(top_k=2.5), 'top_k is 2.5; allowed: a whole number'),
    (Warp(top_k=jnp.full(60, 2.5)), 'top_k is an array of float32; allowed'),
    (1., 'Got 1.0; allowed: a target, a warp'), (Warp, 'Warp is a class')])
def test_warps(warp, match):
  refused(match, warp=warp)


@pytest.mark.parametrize('arguments,match', [
    (dict(drafter=chain.Chain(LM, 2, chain.Below(1.5))), 'threshold of Below'),
    (dict(verifier=verify.Typical(epsilon=-1.)), 'epsilon is -1.0'),
    (dict(verifier=verify.Forced(1.2)), 'rate is 1.2'),
    (dict(verifier=verify.TopB(2.5)), 'b of TopB is 2.5; allowed: a whole'),
    (dict(verifier=verify.Rejection), 'Rejection is a class'),
    (dict(verifier=LOSSLESS), 'Lossless is no verifier; allowed: those of'),
    (dict(drafter=chain.Chain(LM, 2, .3)), 'Got 0.3; allowed: .* or a stop'),
    (dict(drafter=chain.Chain(LM, 2, chain.Below)), 'Below is a class'),
    (dict(drafter=chain.Chain(LM, 2, chain.Below(jnp.ones(3)))), 'shape')])
def test_numbers_of_drafters_and_verifiers(arguments, match):
  refused(match, **arguments)


@pytest.mark.parametrize('lengths,match', [
    ([0, 3], 'prefix_lengths is 0 in row 0; allowed: 1 to 3'),
    ([3, 4], 'prefix_lengths is 4 in row 1'), ([3, -1], 'is -1 in row 1')])
def test_empty_and_overlong_rows(lengths, match):
  refused(match, given=types.Prompt(prompt(2).prefix, jnp.array(lengths)))


@pytest.mark.parametrize('arguments,match', [
    (dict(max_length=3), 'width 3 leaves no room in max_length=3'),
    (dict(key_rows=3), 'prefix 2, prefix_lengths 2, keys 3'),
    (dict(given=types.Prompt(jnp.full((2, 3), 7), jnp.full(2, 3))),
     'Token of prefix is 7 in row 0; allowed: 0 to 4'),
    (dict(given=types.Prompt(jnp.ones((2, 3), jnp.int32).at[1, 2].set(9),
                             jnp.full(2, 3))), 'prefix is 9 in row 1'),
    (dict(given=types.Prompt(jnp.ones((2, 3), jnp.int32), jnp.full(2, 3),
                             jnp.array([[1, 0], [0, 0]]))),
     'Tokens of inputs .0 is padding. is 0 in row 1; allowed: 1 to 2'),
    (dict(given=types.Prompt(jnp.ones((2, 3), jnp.int32), jnp.full(2, 3),
                             jnp.full((2, 4), -2))), 'Token of inputs is -2'),
    (dict(given=prompt(2).replace(limits=jnp.array([9, 10]))),
     'limits is 10 in row 1; allowed: 2 to 9'),
    (dict(given=prompt(2).replace(limits=jnp.array([9, 3]))),
     'its limit less its prompt is 0 in row 1'),
    (dict(given=prompt(2).replace(limits=jnp.array([9]))), 'limits 1')])
def test_prompts(arguments, match):
  refused(match, **arguments)


@pytest.mark.parametrize('eos', [5, -2, (), (1, 9), [1, 2], 1.0])
def test_ends(eos):
  spec = decode.GenSpecSample(LM, CHAIN, 9, eos=eos)
  with pytest.raises(ValueError, match='eos is .* a token from 0 to 4'):
    spec(P, Q, prompt(2), keys(2), LOSSLESS, Warp())


@pytest.mark.parametrize('make', [
    lambda: chain.Chain(LM, 0), lambda: chain.Chain(LM, -3),
    lambda: ngram.NGram(0), lambda: chain.Chain(LM, 2.5),
    lambda: chain.Chain(LM, True), lambda: chain.Chain(LM, 1025)])
def test_a_gamma_that_is_no_block(make):
  with pytest.raises(ValueError, match='1 to 1024.* Use the Null drafter'):
    make()


@pytest.mark.parametrize('drafter', [CHAIN, tree.Tree(LM, (-1, 0, 0))],
                         ids=['chain', 'tree'])
def test_a_model_without_parameters(drafter):
  refused('draft_params is None; allowed: for (Chain|Tree) its model',
          drafter=drafter, draft_params=None, traced=True)


def test_order_of_an_ngram():
  with pytest.raises(ValueError, match='order of NGram is 0'):
    ngram.NGram(3, 0)


def test_law_of_a_tree():
  with pytest.raises(ValueError, match="law 'iid' of Tree; allowed: 'sampled'"):
    tree.Tree(LM, (-1, 0, 0), 'iid')


@pytest.mark.parametrize('drafter,verifier,target,match', [
    (ngram.NGram(2), verify.Rejection(), targets.Chow(.1), 'Chow.*NGram'),
    (ngram.NGram(2), verify.Block(), LOSSLESS, 'Block.*deterministic'),
    (tree.Tree(LM, (-1, 0, 0), 'sampled'), verify.Block(), LOSSLESS,
     'Block.*trees'),
    (chain.Chain(LM, 2, chain.Below()), verify.Block(), LOSSLESS,
     'Block.*early'),
    (tree.Tree(LM, (-1, 0, 0)), verify.Forced(), LOSSLESS,
     'Forced.*trees')],
    ids=['q', 'law', 'tree', 'stop', 'forced'])
def test_misuse_is_an_error_at_trace_time(drafter, verifier, target, match):
  refused(match, traced=True, drafter=drafter, verifier=verifier,
          target=target)


def test_streaming_compiles_nothing_before_it_refuses():
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2, chain.Below(.5)), 9,
                              verify.Block())
  before = decode._init._cache_size(), decode._step._cache_size()
  with pytest.raises(ValueError, match='Block does not support'):
    next(decode.stream(spec, P, Q, prompt(2), keys(2), LOSSLESS, Warp()))
  assert (decode._init._cache_size(), decode._step._cache_size()) == before


def test_vocabularies_that_differ():
  refused('Chain has a vocabulary of 4 tokens and the verifier one of 5',
          traced=True, drafter=chain.Chain(table.Table(4), 2),
          draft_params=Q[:4, :4, :4])


def test_one_line_for_everything_is_also_a_function():
  spec = decode.GenSpecSample(LM, null.Null(), 9)
  check.call(spec, prompt(2), keys(2), LOSSLESS, Warp())
  with pytest.raises(ValueError, match='temperature'):
    check.call(spec, prompt(2), keys(2), LOSSLESS, Warp(-1.))
  with pytest.raises(ValueError, match='temperature'):
    next(decode.stream(spec, P, None, prompt(2), keys(2), LOSSLESS, Warp(-1.)))


def test_numbers_that_are_traced_are_left_alone():
  spec = decode.GenSpecSample(LM, null.Null(), 5, eos=-1)
  go = jax.jit(lambda t: spec(P, None, prompt(2), keys(2), LOSSLESS, Warp(t)))
  assert (go(0.).lengths == 5).all()


@pytest.mark.parametrize('value,fine', [
    (0., True), (1., True), (-1e-9, False), (np.nan, False), (INF, False),
    (np.array([.2, 1.]), True), (np.array([.2, 2.]), False)])
def test_interval(value, fine):
  if fine:
    check.interval('x', value, 0, 1)
  else:
    with pytest.raises(ValueError, match='x is .*; allowed: 0 to 1'):
      check.interval('x', value, 0, 1)
  with pytest.raises(ValueError, match='above 0 to 1'):
    check.interval('x', 0., 0, 1, above=True)


@pytest.mark.parametrize('judge,where', [
    (verify.Rollback(jnp.array([0., 9., 9.])), r'Rollback\.threshold'),
    (verify.TopB(jnp.array([1, 2, 3])), r'TopB\.b'),
    (verify.Forced(jnp.ones(3)), r'Forced\.rate'),
    (verify.Typical(jnp.ones(3) / 2), r'Typical\.epsilon')])
def test_numbers_of_a_verifier_are_scalars(judge, where):
  """[B] would be taken for one number a draft, since rows are mapped over."""
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3), 6, judge, eos=-1)
  args = (P, Q, prompt(3), keys(3), targets.Lossless(), Warp())
  for call in (spec, lambda *a: decode.run(spec, *a)):
    with pytest.raises(ValueError, match=where + r' has shape \(3,\); allowed'):
      call(*args)


def test_a_verifier_that_does_not_read_pi_takes_no_rule():
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 3), 6, verify.Typical(),
                              eos=-1)
  args = P, Q, prompt(3), keys(3)
  spec(*args, targets.Lossless(), Warp())
  for call in (spec, lambda *args: next(decode.stream(spec, *args))):
    with pytest.raises(ValueError, match='Chow would change nothing; allowed'):
      call(*args, targets.Chow(.3), Warp())


def test_a_rank_is_whole():
  with pytest.raises(ValueError, match='b of TopB is 2.5; allowed: a whole'):
    verify.TopB(2.5).validate()
