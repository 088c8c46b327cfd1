"""Every drafter, target and verifier keeps its contract: by being in a table.

Adding one means adding a row here; a class that is missing fails the suite.
"""
import functools
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import api, decode, targets, types, verify
from spec_cascades import drafters as drafters_lib
from spec_cascades.drafters import (
    adaptive, chain, eagle, eagle_static, eagle_tree, early_exit, horizontal,
    hydra_plus, jacobi, lookahead, masked, medusa, ngram, null, ouroboros,
    pipelined, recycling, retrieval, space, specinfer, spectr, suffixes,
    tracking, tree, triforce, vertical)
from spec_cascades.models import (
    counts, features, heads, layered, masks, recompute, table, toy)
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, keys, select


class Looking(table.Table):
  """With queries, of numbers as wide as its keys: the tokens."""

  def look(self, params, cache, tree):
    hidden, cache = self.extend(params, cache, tree)
    return hidden, cache, (jnp.ones((*tree.tokens.shape, 1, 1)),)


TREE = (-1, 0, 0, 1)
HEADS = heads.Headed(LM, heads.HeadsConfig(3))
HYDRA = heads.Headed(LM, heads.HeadsConfig(3, sequential=True))
PATHS = (0,), (2,), (2, 1)
PLUS = heads.Headed(LM, heads.HeadsConfig(
    3, sequential=True, prefix=layered.Sizes(1, 4, 8)))
LAYER = features.Featured(LM, features.FeatureConfig(1, 4, 8))
FUSED = features.Featured(LM, features.FeatureConfig(1, 4, 8, (0, 1)))
MASKS = masks.Masked(LM, masks.MasksConfig(4))
BOTH = HEADS, HYDRA, PLUS, LAYER, FUSED, MASKS
BESIDE = dict(zip(BOTH, jax.jit(lambda: [dict(
    model=P, heads=lm.fresh(P, jax.random.key(2))) for lm in BOTH])()))
# name: (two instances that differ in numbers only, parameters)
DRAFTERS = dict(
    Null=((null.Null(),) * 2, None),
    Chain=((chain.Chain(LM, 3),) * 2, Q),
    Below=((chain.Chain(LM, 3, chain.Below(.6)),
            chain.Chain(LM, 3, chain.Below(.3))), Q),
    Adaptive=((adaptive.Adaptive(chain.Chain(LM, 3), .1),
               adaptive.Adaptive(chain.Chain(LM, 3), .4)), Q),
    Tracking=((tracking.Tracking(chain.Chain(LM, 3)),
               tracking.Tracking(chain.Chain(LM, 3), .5)), Q),
    EarlyExit=((early_exit.EarlyExit(chain.Chain(LM, 3), 1),) * 2, Q),
    Vertical=((vertical.Vertical(LM, ngram.NGram(2, 1), 3),) * 2, (Q, None)),
    Horizontal=((horizontal.Horizontal(
        chain.Chain(LM, 2, chain.Below(.9)), chain.Chain(LM, 2)),
                 horizontal.Horizontal(
        chain.Chain(LM, 2, chain.Below(.2)), chain.Chain(LM, 2))), (Q, P)),
    Ouroboros=((ouroboros.Ouroboros(
        LM, lookahead.Lookahead(5, 2, 3, 2, 8), 2),) * 2, (Q, None)),
    TriForce=((triforce.TriForce(Looking(), 2, None, 2, 2, 2, 2),) * 2,
              (P, None)),
    Drafted=((triforce.TriForce(Looking(), 2, chain.Chain(LM, 2), 2, 2, 2, 2),)
             * 2, (P, Q)),
    Pipelined=((pipelined.Pipelined(LM, 1, 2),) * 2, Q),
    NGram=((ngram.NGram(3, 1),) * 2, None),
    Jacobi=((jacobi.Jacobi(3),) * 2, None),
    Recycling=((recycling.Recycling(5, (3, 2)),) * 2, None),
    Retrieval=((retrieval.Retrieval(3, 6, 4, 4),) * 2,
               suffixes.index(np.arange(40) ** 2 % 5)),
    Medusa=((medusa.Medusa(HEADS, PATHS),) * 2, BESIDE[HEADS]),
    Hydra=((medusa.Medusa(HYDRA, PATHS),) * 2, BESIDE[HYDRA]),
    Eagle=((eagle.Eagle(LAYER, 3),) * 2, BESIDE[LAYER]),
    EagleStatic=((eagle_static.EagleStatic(LAYER, TREE),) * 2, BESIDE[LAYER]),
    EagleTree=((eagle_tree.EagleTree(LAYER, 2, 2, 4),) * 2, BESIDE[LAYER]),
    HydraPlus=((hydra_plus.HydraPlus(PLUS, PATHS),) * 2, BESIDE[PLUS]),
    Eagle3=((eagle.Eagle(FUSED, 3),) * 2, BESIDE[FUSED]),
    Eagle3Tree=((eagle_tree.EagleTree(FUSED, 3, 2, 3),) * 2, BESIDE[FUSED]),
    PaSS=((masked.PaSS(MASKS, 3),) * 2, BESIDE[MASKS]),
    Space=((space.Space(MASKS, 3),) * 2, BESIDE[MASKS]),
    Lookahead=((lookahead.Lookahead(5, 3, 3, 2, 8),) * 2, None),
    Tree=((tree.Tree(LM, TREE),) * 2, Q),
    SpecInfer=((specinfer.SpecInfer((LM, LM), ((-1, 0), (-1, 0, 1))),) * 2,
               (Q, P)),
    SpecTr=((spectr.SpecTr(LM, 2, 2),) * 2, Q))
HEAVY = {'Drafted', 'Ouroboros'}       # drafters that decode: long to compile
RULES = dict(
    Lossless=targets.Lossless(), Lossy=targets.Lossy(.3),
    LossyBeta=targets.LossyBeta(.3), LossyBudget=targets.LossyBudget(.1),
    Ensemble=targets.Ensemble(.4), Lenience=targets.Lenience(.3),
    TruncatedTopP=targets.TruncatedTopP(.2),
    TruncatedMinP=targets.TruncatedMinP(.2),
    TruncatedEta=targets.TruncatedEta(.05), Chow=targets.Chow(.4),
    Diff=targets.Diff(.1), OPT=targets.OPT(.3), ChowLog=targets.ChowLog(1.),
    DiffLog=targets.DiffLog(.1), OPTLog=targets.OPTLog(.2),
    BiLD=targets.BiLD(1.), TokenV1=targets.TokenV1(.3),
    TokenV2=targets.TokenV2(.3), TokenV3=targets.TokenV3(.5),
    Choice=targets.Choice((targets.Lossless(), targets.Chow(.4)), 1))
VERIFIERS = dict(
    Rejection=verify.Rejection(), Block=verify.Block(),
    KSeq=verify.KSeq(), Typical=verify.Typical(), TopB=verify.TopB(2, 1.),
    Rollback=verify.Rollback(1.), Forced=verify.Forced(.7))
MODELS = (table.Table(), toy.ToyLM(), recompute.Recompute(lambda *_: None, 5),
          counts.Counts(5, 3))


def verifier_of(name):
  return FUSED.verifier if DRAFTERS[name][1] is BESIDE[FUSED] else LM


@functools.cache
def reads_q(name):
  """Whether a drafter has q for the rules that read it."""
  (drafter, _), params = DRAFTERS[name]
  spec = decode.GenSpecSample(verifier_of(name), drafter, 20, eos=-1)
  state = jax.eval_shape(lambda: shapes_of(spec, params))
  try:
    jax.eval_shape(spec.step, P, params, RULES['Chow'], Warp(), state)
  except ValueError as error:
    assert 'needs q, but' in str(error), error
    return False
  return True


def assert_same_arguments(method, contract):
  """Names, as callers may use keywords."""
  names = lambda f: list(inspect.signature(f).parameters)
  assert names(method) == names(contract)


def shapes(tree):
  leaves, structure = jax.tree.flatten(tree)
  return structure, [(x.shape, x.dtype) for x in leaves]


def public_classes(module):
  return {name for name, item in vars(module).items()
          if inspect.isclass(item)
          and item.__module__.startswith(module.__name__)
          and not name.startswith('_')}


def test_the_tables_are_complete():
  assert public_classes(targets) == set(RULES)
  assert public_classes(verify) - {'Supports'} == set(VERIFIERS)
  modules = [importlib.import_module(f'{drafters_lib.__name__}.{x.name}')
             for x in pkgutil.iter_modules(drafters_lib.__path__)]
  found = {name for m in modules for name in public_classes(m)
           if {'init', 'propose', 'observe'} <= set(dir(vars(m)[name]))}
  assert found - {'Root'} <= set(DRAFTERS)         # which others hold
  assert drafters_lib.__doc__


@pytest.mark.parametrize('lm', MODELS, ids=lambda lm: type(lm).__name__)
def test_models_have_the_methods_of_the_contract(lm):
  for name in ('pack', 'init', 'extend', 'head'):
    assert_same_arguments(getattr(lm, name), getattr(api.LanguageModel, name)
                          .__get__(lm))
  assert hash(lm) == hash(lm) and lm.vocab_size == 5


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY))
    for name in DRAFTERS])
class TestDrafters:
  """One compiled step per drafter; cases share it through the jit cache."""

  step = staticmethod(jax.jit(decode.GenSpecSample.step))

  def make(self, name, which=0):
    drafters, params = DRAFTERS[name]
    spec = decode.GenSpecSample(verifier_of(name), drafters[which], 20, eos=-1)
    return (spec, params,
            targets.Chow(.4) if reads_q(name) else targets.Lossless())

  def test_argument_names(self, name):
    drafter = DRAFTERS[name][0][0]
    for method in ('validate', 'init', 'propose', 'observe'):
      assert_same_arguments(getattr(drafter, method),
                            getattr(api.Drafter, method).__get__(drafter))
    assert jax.tree.structure(drafter) == jax.tree.structure(
        DRAFTERS[name][0][1])

  def test_state_is_a_fixed_point(self, name):
    """Structure, shapes and dtypes, under both kinds of target."""
    spec, params, target = self.make(name)
    init = jax.eval_shape(lambda: shapes_of(spec, params))
    for rule in (target, targets.Lossless()):
      after = jax.eval_shape(lambda rule=rule: spec.step(
          P, params, rule, Warp(), shapes_of(spec, params))[0])
      assert shapes(after) == shapes(init)

  def test_draft_keeps_its_promises(self, name):
    spec, params, target = self.make(name)
    state = spec.init(P, params, RAGGED, keys(3))
    ctx = types.Context(state.tokens, state.lengths, state.cache, Warp(),
                        target.uses_q)
    draft, _ = jax.jit(lambda: spec.drafter.propose(
        params, state.drafter, ctx, keys(3)))()
    n = spec.drafter.num_nodes
    assert draft.tree.tokens.shape == draft.tree.parents.shape == (3, n)
    assert draft.tree.mask.shape == (3, n, n) and draft.calls.shape == (3,)
    candidate = np.asarray(draft.tree.parents) >= 0
    assert draft.max_depth < n
    assert (np.asarray(draft.tree.depth)[candidate] <= draft.max_depth).all()
    assert not candidate[:, n - draft.scratch:].any()
    np.testing.assert_array_equal(draft.tree.tokens[:, 0], ctx.root)
    parents = np.asarray(draft.tree.parents)
    assert (parents < np.arange(n)).all() and (parents[:, 0] == -1).all()
    if draft.is_chain:
      line = np.arange(n) - 1
      assert ((parents == line) | ~candidate)[:, :n - draft.scratch].all()
    if draft.full:
      assert (parents[:, 1:n - draft.scratch] >= 0).all()
    if draft.prediction is not None:
      assert draft.prediction.probs.shape == (3, n - draft.scratch, 5)

  def test_nothing_is_compiled_twice(self, name):
    """New numbers, new keys, a new round."""
    spec, params, target = self.make(name)
    state, _ = self.step(spec, P, params, target, Warp(), spec.init(
        P, params, RAGGED, keys(3)))
    before = self.step._cache_size()
    other = self.make(name, 1)[0]
    for warp in (Warp(0.), Warp(.5, top_p=.9)):
      state, _ = self.step(other, P, params, target, warp, state)
    assert self.step._cache_size() == before

  def test_done_rows_do_not_change_and_mates_do_not_notice(self, name):
    spec, params, target = self.make(name)
    state = spec.init(P, params, RAGGED, keys(3))
    held = state.replace(done=jnp.array([False, True, False]))
    a, _ = self.step(spec, P, params, target, Warp(), state)
    b, _ = self.step(spec, P, params, target, Warp(), held)
    for field in ('tokens', 'lengths', 'fault', 'stats'):
      got, old, new = (getattr(s, field) for s in (b, held, a))
      for row, want in ((0, new), (1, old), (2, new)):
        jax.tree.map(np.testing.assert_array_equal, select(got, row),
                     select(want, row))
    assert int(b.cache.length[1]) == int(held.cache.length[1])

  def test_capacity_is_respected(self, name):
    """A full row still fits a block behind its last committed token."""
    spec, params, target = self.make(name)
    state = spec(P, params, RAGGED, keys(3), target, Warp())
    assert (state.lengths == 20).all()
    cache = state.cache              # of drafters: drafters/room_test.py
    np.testing.assert_array_equal(cache.length, 19)
    assert cache.capacity >= 19 + spec.drafter.num_nodes

  def test_greedy_tokens_are_the_verifiers(self, name):
    """In the program of the test before: an alpha of -1 defers everything."""
    spec, params, target = self.make(name)
    rule = target.replace(alpha=-1.) if target.uses_q else target
    got = spec(P, params, RAGGED, keys(3), rule, Warp(0.))
    alone = decode.GenSpecSample(LM, null.Null(), 20, eos=-1)
    want = alone(P, None, RAGGED, keys(3), targets.Lossless(), Warp(0.))
    np.testing.assert_array_equal(got.tokens, want.tokens)


def shapes_of(spec, params):
  return spec.init(P, params, RAGGED, keys(3))


@pytest.mark.parametrize('name', RULES)
def test_targets(name):
  rule = RULES[name]
  assert_same_arguments(type(rule).__call__, api.Target.__call__)
  rule.validate()
  q, p = (Warp(.7, top_p=.9)(x.reshape(1, 25, 5)) for x in (Q, P))
  fuse = jax.jit(lambda r, *args: r(*args))
  fused = fuse(rule, q, p)
  assert fused.pi.shape == p.probs.shape and fused.deferral.shape == (1, 25)
  assert fused.pi.dtype == fused.deferral.dtype == jnp.float32
  np.testing.assert_allclose(fused.pi.sum(-1), 1, atol=1e-5)
  assert (fused.pi >= 0).all()
  assert ((fused.deferral >= -1e-6) & (fused.deferral <= 1 + 1e-6)).all()
  if not rule.uses_q:
    other = Warp(.7, top_p=.9)(Q[::-1].reshape(1, 25, 5))
    np.testing.assert_array_equal(fuse(rule, other, p).pi, fused.pi)
    # Another program, which a GPU rounds otherwise.
    np.testing.assert_allclose(rule(None, p).pi, fused.pi, atol=3e-7)
  if name != 'Choice' and rule.domain is not None:
    low, high = rule.domain
    assert low <= rule.alpha <= high
    for bad in {low - 1, high + 1, float('nan')} - {low, high}:
      with pytest.raises(ValueError, match=f'alpha of {name}'):
        type(rule)(bad).validate()
    assert type(rule).__doc__.startswith(('r = ', 'pi'))


@pytest.mark.parametrize('name', VERIFIERS)
@pytest.mark.parametrize('law', verify.LAWS)
def test_verifiers(name, law):
  """On a chain: shapes, ranges, and supports for what is not a chain."""
  judge, n = VERIFIERS[name], 4
  assert_same_arguments(type(judge).__call__, api.Verifier.__call__)
  judge.validate()
  q, p = (Warp()(x.reshape(1, 25, 5)[:, :n]) for x in (Q, P))
  nodes = types.chain(jnp.array([[0, 1, 2, 3]]))
  draft = types.Draft(nodes, None if law == 'deterministic' else q,
                      jnp.zeros(1, jnp.int32), law, n - 1,
                      laws=jnp.roll(q.probs, 1, 1) if law == 'given' else None)
  if law not in judge.supports.laws:
    with pytest.raises(ValueError, match=f'{name} does not support {law!r}'):
      judge.supports.check(judge, draft)
    return
  judge.supports.check(judge, draft)
  for flag, other in (('trees', draft.replace(max_depth=1)),
                      ('early_stop', draft.replace(full=False))):
    if not getattr(judge.supports, flag):
      with pytest.raises(ValueError, match=f'{name} does not support'):
        judge.supports.check(judge, other)
  one = select((draft, p), 0)
  judged = lambda pi: jax.jit(jax.vmap(lambda k: judge(k, *one, pi)))(keys(256))
  verdict, other = map(judged, (one[1].probs, one[1].probs[:, ::-1]))
  assert judge.supports.pi == (verdict.next_token != other.next_token).any()
  judge.supports.check_target(judge, targets.Lossless)
  if not judge.supports.pi:
    with pytest.raises(ValueError, match='TokenV1 would change nothing; allow'):
      judge.supports.check_target(judge, targets.TokenV1(.3))
  assert verdict.path.shape == (256, n) and verdict.path.dtype == jnp.int32
  assert verdict.count.dtype == verdict.next_token.dtype == jnp.int32
  assert ((verdict.count >= 0) & (verdict.count < n)).all()
  assert ((verdict.next_token >= 0) & (verdict.next_token < 5)).all()
  for count, path in zip(verdict.count.tolist(), verdict.path.tolist()):
    assert path[:count + 1] == list(range(count + 1))
