"""Every verifier, and `exact`, against float64 programs written from papers.

Five kinds of laws. Chances and laws are compared to 1e-6 as they count in the
probability of an outcome.
"""
import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import judges, types, verify, warp
from tests import reference
from tests.reference import KINDS

SIZE, TOLERANCE = 6, 1e-6
CHAIN, TREE = (-1, 0, 1, 2), (-1, 0, 0, 0, 1, 1, 2)
# Program, verifier, parents, law, whether rows may stop early.
TABLE = [
    (reference.rejection, verify.Rejection(), CHAIN, 'sampled', True),
    (reference.rejection, verify.Rejection(), CHAIN, 'distinct', True),
    (reference.rejection, verify.Rejection(), CHAIN, 'deterministic', True),
    (reference.rejection, verify.Rejection(), TREE, 'sampled', False),
    (reference.rejection, verify.Rejection(), TREE, 'distinct', False),
    (reference.rejection, verify.Rejection(), TREE, 'deterministic', False),
    (reference.rejection, verify.Rejection(), CHAIN, 'given', True),
    (reference.rejection, verify.Rejection(), TREE, 'given', False),
    (reference.block, verify.Block(), CHAIN, 'sampled', False),
    (reference.k_seq, verify.KSeq(), CHAIN, 'sampled', True),
    (reference.k_seq, verify.KSeq(), TREE, 'sampled', False),
    (reference.typical, verify.Typical(), CHAIN, 'sampled', True),
    (reference.typical, verify.Typical(.3, .5), TREE, 'distinct', False),
    (reference.top_b, verify.TopB(2, 1.), CHAIN, 'sampled', True),
    (reference.rollback, verify.Rollback(1.5), CHAIN, 'sampled', True),
    (reference.forced, verify.Forced(.7), CHAIN, 'sampled', True),
    (reference.forced, verify.Forced(.4), CHAIN, 'deterministic', True)]

def cases_of(table):
  return pytest.mark.parametrize(
      'program,judge,parents,law,stops', table,
      ids=lambda x: {CHAIN: 'chain', TREE: 'tree'}.get(x) if isinstance(
          x, tuple) else getattr(x, '__name__', None) or (
              x if isinstance(x, str) else ''))


def case_of(kind, parents, law, stops, draw):
  """A draft from its own q; siblings that q cannot give are any others."""
  parents = np.array(parents)
  q, pi = reference.laws(kind, (len(parents), SIZE), draw)
  if stops:
    parents[draw.integers(1, len(parents) + 1):] = -1
  tokens, tried = np.zeros(len(parents), int), {}
  for m in range(1, len(parents)):
    up = max(parents[m], 0)
    rest = np.float64(pi[up] > 0 if law == 'deterministic' else
                      q[m if law == 'given' else up])
    if law == 'distinct':
      rest[tried.get(up, [])] = 0
      if not rest.any():
        rest = np.ones(SIZE)
        rest[tried[up]] = 0
    tokens[m] = draw.choice(SIZE, p=rest / rest.sum())
    tried.setdefault(up, []).append(tokens[m])
  if law == 'deterministic':
    q = np.zeros_like(q)
  return reference.Case(tokens, parents, law, *np.float64([q, pi]))


def cases(number, *description, seed=0):
  draw = np.random.default_rng(seed)
  return [case_of(kind, *description, draw)
          for kind in KINDS for _ in range(number)]


def decided(judge, parents, law, found, uniforms):
  """What `verify` does with given uniforms: path, count, next token's law.

  Numbers of the judge are scalars or one a case.
  """
  depth = max(types.depths(parents))
  nodes = jax.tree.map(lambda x: x[0], types.tree(
      jnp.zeros((1, len(parents)), jnp.int32), parents))

  def one(judge, uniform, tokens, parents, q, pi):
    left = []
    keep = lambda law, key: left.append(law) or jnp.int32(0)
    draft = types.Draft(
        nodes.replace(tokens=tokens, parents=parents),
        None if law == 'deterministic' else types.Prediction(jnp.log(q), q),
        jnp.int32(0), law, depth, laws=q if law == 'given' else None)
    with (mock.patch.object(jax.random, 'uniform', lambda *_: uniform),
          mock.patch.object(verify, 'sample', keep)):
      verdict = judge(jax.random.key(0), draft,
                      types.Prediction(jnp.log(pi), pi), pi)
    following = left[0] if left else jax.nn.one_hot(verdict.next_token, SIZE)
    return verdict.path, verdict.count, following

  judges = jax.tree.map(lambda x: jnp.broadcast_to(x, len(found)), judge)
  return jax.device_get(jax.jit(jax.vmap(one))(
      judges, np.float32(uniforms), stack(found, 'tokens', np.int32),
      stack(found, 'parents', np.int32), stack(found, 'q', np.float32),
      stack(found, 'pi', np.float32)))


def stack(found, name, kind):
  return np.stack([getattr(c, name) for c in found]).astype(kind)


def selected(found):
  """The cases with the rho of `verify.KSeq`.

  Where q is close to pi the equation is flat: any rho over a range fits it to
  float32, so how well it is solved is what can be asked.
  """
  many = np.stack([[len(c.children(n)) for n in range(len(c.tokens))]
                   for c in found])
  rho = np.float64(jax.jit(jax.vmap(verify._selection))(
      stack(found, 'q', np.float32), stack(found, 'pi', np.float32),
      np.float32(many)))
  assert (rho >= 1).all() and (rho <= np.maximum(many, 1)).all()
  for case, own, k in zip(found, rho, many):
    for node in np.flatnonzero(k):
      off = reference.excess(own[node], case.q[node], case.pi[node], k[node])
      assert abs(off) < TOLERANCE
  return [dataclasses.replace(c, rho=own) for c, own in zip(found, rho)]


@cases_of(TABLE)
def test_decisions_and_residuals_are_those_of_the_reference(
    program, judge, parents, law, stops):
  """At the edges of every coin, so that chances agree, not only decisions."""
  all_cases, draw = cases(24, parents, law, stops), np.random.default_rng(2)
  if program is reference.k_seq:
    all_cases = selected(all_cases)
  found, wants = [], []
  for case in all_cases:
    for _ in range(8):
      want = reference.edge(lambda c=case: program(c, judge), len(parents),
                            draw, TOLERANCE)
      if want is not None:
        found.append(case)
        wants.append(want)
  assert len(wants) > .8 * 8 * len(all_cases)
  uniforms, paths, nexts, reach = zip(*wants)
  got = decided(judge, parents, law, found, np.stack(uniforms))
  for i, (path, count, left) in enumerate(zip(*got)):
    assert path[1:count + 1].tolist() == paths[i], (i, found[i], uniforms[i])
    np.testing.assert_allclose(left * reach[i], nexts[i] * reach[i],
                               atol=TOLERANCE, rtol=0)


def by_path(outcomes):
  """Probabilities of paths with the token after each."""
  total = {}
  for path, chance, following in outcomes:
    total[tuple(path)] = total.get(tuple(path), 0) + chance * following
  return total


@cases_of([row for row in TABLE if row[3] != 'given'])
def test_exact_outcomes_are_those_of_the_reference(
    program, judge, parents, law, stops):
  """`exact` knows drafts of one shape only."""
  del stops
  for case in cases(24, parents, law, False, seed=1):
    with np.errstate(divide='ignore'):
      here = tuple(judges.Laws(q, pi, pi, np.log(q), np.log(pi))
                   for q, pi in zip(case.q, case.pi))
    draft = judges.Judged(tuple(case.tokens.tolist()), parents, here, law)
    got = by_path(judges.JUDGES[type(judge)](judge, draft))
    want = by_path(reference.outcomes(lambda c=case: program(c, judge)))
    np.testing.assert_allclose(sum(want.values()).sum(), 1, atol=1e-6)
    for path in {*got, *want}:
      np.testing.assert_allclose(got.get(path, 0), want.get(path, 0),
                                 atol=TOLERANCE)


@pytest.mark.parametrize('judge,parents', [
    (verify.Rejection(), CHAIN), (verify.Rejection(), TREE),
    (verify.Block(), CHAIN), (verify.KSeq(), TREE), (verify.Forced(.6), CHAIN)],
                         ids=lambda x: type(x).__name__)
def test_a_verdict_spends_one_key_on_coins_and_another_on_the_token(
    judge, parents):
  """What the tests above replace: where uniforms and the next token are from.

  A key splits into `accept`, for one uniform a node, and `then`.
  """
  found = cases(12, parents, 'sampled', False, seed=3)
  keys = jax.random.split(jax.random.key(7), len(found))
  accept, then = jax.vmap(jax.random.split, out_axes=1)(keys)
  uniforms = jax.vmap(lambda k: jax.random.uniform(k, (len(parents),)))(accept)
  path, count, left = decided(judge, parents, 'sampled', found, uniforms)
  q, pi = (stack(found, name, np.float32) for name in ('q', 'pi'))
  tokens = stack(found, 'tokens', np.int32)
  nodes = types.tree(jnp.asarray(tokens), parents)
  draft = types.Draft(nodes, types.Prediction(jnp.log(q), q),
                      jnp.zeros(len(found), jnp.int32), 'sampled',
                      max(types.depths(parents)))
  verdict = jax.jit(jax.vmap(judge))(
      keys, draft, types.Prediction(jnp.log(pi), pi), pi)
  np.testing.assert_array_equal(verdict.count, count)
  np.testing.assert_array_equal(verdict.path, path)
  np.testing.assert_array_equal(verdict.next_token,
                                jax.jit(jax.vmap(warp.sample))(left, then))


# Thresholds at which the draft x of a law p stands or falls.
EDGES = dict(
    rollback=(lambda p, x: -np.log(p[x]), lambda t: verify.Rollback(t), 1),
    top_b=(lambda p, x: np.log(p.max() / p[x]),
           lambda t: verify.TopB(SIZE, t), 1),
    epsilon=(lambda p, x: p[x], lambda t: verify.Typical(t, 1e9), -1),
    delta=(lambda p, x: p[x] * np.exp(-(p[p > 0] * np.log(p[p > 0])).sum()),
           lambda t: verify.Typical(1., t), -1))


@pytest.mark.parametrize('name', EDGES)
def test_thresholds_are_where_the_formulas_put_them(name):
  """To 1e-5, from both sides; `sign` says on which side drafts stand."""
  edge, make, sign = EDGES[name]
  found = cases(24, (-1, 0), 'sampled', False, seed=5)
  found = [c for c in found if c.pi[0, c.tokens[1]] > 0]
  at = np.array([edge(c.pi[0], c.tokens[1]) for c in found])
  for off, count in ((1e-5, 1), (-1e-5, 0)):
    judge = make(jnp.asarray(at + sign * off, jnp.float32))
    got = decided(judge, (-1, 0), 'sampled', found, np.zeros((len(found), 2)))
    # A threshold under 0 is out of the domain.
    fine = at > 2e-5
    assert fine.sum() > 30 and (got[1][fine] == count).all()
