"""Sequoia's trees against all trees, its rates against the exact law."""
import functools
import itertools
import types as python_types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import check, decode, exact, targets, theory, types
from spec_cascades.drafters import tree
from spec_cascades.evaluation import (
    drafting, forced, pairs, sequoia, shapes, text)
from spec_cascades.warp import Warp
from tests.common import LM, P, PREFIX, Q, keys, prompt

LOSSLESS = targets.Lossless()
TIMES = theory.StepTimes({1: 10., 4: 11., 6: 14., 12: 30.}, 1.)


@functools.lru_cache(maxsize=None)
def trees(nodes):
  """All ordered trees of so many nodes, as nested tuples of children."""
  if nodes == 1:
    return [()]
  found = []
  for parts in itertools.chain.from_iterable(
      itertools.product(range(1, nodes), repeat=k) for k in range(1, nodes)):
    if sum(parts) == nodes - 1:
      found += itertools.product(*map(trees, parts))
  return found


def depth_of(nested):
  return 1 + max(map(depth_of, nested), default=-1)


def widest(nested):
  return max([len(nested), *map(widest, nested)])


def worth(nested, rates):
  return 1 + sum(r * worth(child, rates) for r, child in zip(rates, nested))


@pytest.mark.parametrize('rates', [
    (.7, .15, .05), (.3, .29, .2), (.5, 0., .4), (.1, .6, .3), (1., 0., 0.)])
def test_the_best_tree_is_the_best_of_all(rates):
  for nodes, depth in itertools.product(range(2, 8), (1, 2, 3, 6)):
    fit = [worth(nested, rates) for nested in trees(nodes)
           if depth_of(nested) <= depth and widest(nested) <= 3]
    if not fit:
      with pytest.raises(ValueError, match='No tree of'):
        sequoia.shape(rates, nodes, depth)
      continue
    parents = sequoia.shape(rates, nodes, depth)
    check.tree(parents)
    assert len(parents) == nodes and max(types.depths(parents)) <= depth
    found = sequoia.expected_tokens(rates, parents)
    assert found == pytest.approx(max(fit), abs=1e-12)


def test_size_and_depth_are_the_fastest_of_all():
  rates = (.6, .2, .1)
  for uses_q in (False, True):
    best = sequoia.best(rates, TIMES, uses_q=uses_q, max_depth=4)
    assert best.tokens == pytest.approx(
        sequoia.expected_tokens(rates, best.parents))
    speeds = []
    for nodes, depth in itertools.product(range(2, 13), range(1, 5)):
      try:
        parents = sequoia.shape(rates, nodes, depth)
      except ValueError:
        continue
      seconds = (depth + uses_q) * 1. + TIMES.block(nodes)
      speeds.append(sequoia.expected_tokens(rates, parents) * 10 / seconds)
    assert best.speedup == pytest.approx(max(speeds))
  flat = theory.StepTimes({1: 1., 12: 1.}, 1e-9)
  assert len(sequoia.best(rates, flat, uses_q=False).parents) == 12
  dear = theory.StepTimes({1: 1., 12: 12.}, 1.)
  assert sequoia.best(rates, dear, uses_q=False).speedup < 1


def test_what_rounds_take_beside_a_block_counts():
  """A level that costs as much as a block leaves no deep trees."""
  want = sequoia.Beside(.5, .25, .125)
  rounds = [[d, n, TIMES.block(n) + want(d, n)]
            for d, n in ((0, 1), (1, 2), (2, 3), (6, 7), (2, 7), (1, 8))]
  found = sequoia.beside(TIMES, rounds)
  assert np.allclose([found.fixed, found.level, found.node], [.5, .25, .125])
  rates = (.6, .2, .1)
  took = lambda d, n: TIMES.block(n) + found(d, n)
  best = sequoia.best(rates, TIMES, uses_q=True, max_depth=4, rest=found)
  depth = max(types.depths(best.parents))
  assert best.speedup == pytest.approx(
      best.tokens * took(0, 1) / took(depth + 1, len(best.parents)))
  dear = sequoia.best(rates, TIMES, uses_q=False, rest=sequoia.Beside(0, 9, 0))
  assert max(types.depths(dear.parents)) == 1
  wide = sequoia.best(rates, TIMES, uses_q=False, rest=sequoia.Beside(0, 0, 9))
  assert len(wide.parents) == 2


@pytest.mark.parametrize('warp', [Warp(), Warp(.7, top_k=2), Warp(0.)],
                         ids=['plain', 'exhausted', 'greedy'])
def test_rates_are_those_of_the_exact_law(warp):
  """k children under a root: the chance that one of them is accepted."""
  draws = 4096
  q, p = (warp(jnp.broadcast_to(x[2, 3], (draws, 5))) for x in (Q, P))
  pi = LOSSLESS(q, p).pi
  rates = np.asarray(jax.jit(sequoia.acceptance, static_argnums=3)(
      jax.random.key(0), q, pi, 4), np.float64)
  assert rates.shape == (draws, 4)
  np.testing.assert_allclose(
      rates[:, 0], jnp.minimum(q.probs, pi).sum(-1), atol=1e-6)
  for count in (1, 2, 3):
    own = exact.law(
        lambda _: np.asarray(Q[2, 3]), lambda _: np.asarray(P[2, 3]), LOSSLESS,
        warp, drafts=exact.Drafts((-1, *[0] * count), 'distinct'),
        length=1).accepted[1]
    got = rates[:, :count].sum(1)
    assert abs(got.mean() - own) < 6 * got.std() / draws**.5 + 1e-6


def test_a_tree_emits_what_its_rates_say():
  """Tables whose contexts are all alike, so that ranks are all there is."""
  p, q = (jnp.broadcast_to(x[2, 3], (5, 5, 5)) for x in (P, Q))
  model = lambda params: python_types.SimpleNamespace(lm=LM, params=params)
  pair = python_types.SimpleNamespace(
      verifier=model(p), drafter=model(q), prompt=text.prefix_prompt)
  rates = forced.by_rank(pair, [PREFIX] * 64, [[1] * 24] * 64, LOSSLESS, Warp(),
                         ranks=4)
  parents = sequoia.shape(rates, 5, 2)
  spec = decode.GenSpecSample(LM, tree.Tree(LM, parents), 99, eos=-1)
  state = spec(p, q, prompt(512), keys(512), LOSSLESS, Warp())
  each = np.asarray(state.stats.emitted / state.stats.rounds)
  assert each.mean() == pytest.approx(
      sequoia.expected_tokens(rates, parents), rel=.03)


def test_a_shape_is_saved_and_drafted_with(tmp_path):
  path = tmp_path / 'tree.json'
  best = sequoia.best((.6, .2), TIMES, uses_q=False)
  shapes.write(path, best)
  assert shapes.read(path) == best
  pair = pairs.Pair(None, python_types.SimpleNamespace(lm=LM, params=Q), None,
                    '')
  drafting.check_name(f'tree:{path}', LOSSLESS, 3)
  made, params = drafting.make(f'tree:{path}', pair, 3)
  assert made.parents == best.parents and params is Q
  for bad in ('{"parents": [-1, 5]}', '{}', '[]', '{"parents": "x"}', 'x'):
    path.write_text(bad)
    with pytest.raises(ValueError, match='does not hold the shape of a tree'):
      drafting.make(f'tree:{path}', pair, 3)
  with pytest.raises(ValueError, match='a path may follow one of'):
    drafting.check_name('chain:x', LOSSLESS, 3)


def test_what_makes_no_tree_is_refused():
  with pytest.raises(ValueError, match='Acceptance by rank is 2'):
    sequoia.shape((2.,), 4, 2)
  with pytest.raises(ValueError, match='depth of a tree is 0'):
    sequoia.shape((.5,), 4, 0)
  with pytest.raises(ValueError, match='A block of 13 tokens'):
    sequoia.best((.5, .1), TIMES, uses_q=False, max_nodes=30)
