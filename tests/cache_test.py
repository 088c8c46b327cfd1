"""Positions in trees, commits, and caches after every round."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import cache as cache_lib
from spec_cascades import decode, targets, types
from spec_cascades.drafters import chain
from spec_cascades.models import prefill
from spec_cascades.warp import Warp
from tests.common import RAGGED as PROMPT, assert_same_slots, keys
from tests.models import tiny
from tests.toys import BIG, DRAFTERS, PB, PS, SMALL, TREE

READ = jax.jit(prefill.prefill, static_argnums=(0, 3))
REREAD = jax.jit(prefill.reread, static_argnums=0)


def test_tree_nodes_equal_their_chains():
  """Relative bias on: a node's logits are those of its own path."""
  _, cache = prefill.prefill(BIG, PB, PROMPT, 16)
  nodes = types.tree(jnp.array([[4, 2, 3, 1, 0, 2]] * 3), TREE)
  hidden, grown = BIG.extend(PB, cache, nodes)
  for node in range(len(TREE)):
    path = np.flatnonzero(np.asarray(nodes.mask[0, node]))
    straight, _ = BIG.extend(PB, cache, types.chain(nodes.tokens[:, path]))
    np.testing.assert_allclose(hidden[:, node], straight[:, -1], atol=1e-5)
  # Committing the path 0, 2, 5 leaves what reading it straight leaves.
  path = jnp.array([[0, 2, 5]] * 3)
  kept = grown.commit(path, jnp.full(3, 3))
  _, want = BIG.extend(PB, cache, types.chain(nodes.tokens[:, path[0]]))
  assert_same_slots(kept, want.truncate(kept.length), 1e-5)


@pytest.mark.parametrize('chunk', [1, 2])
def test_prefill_in_chunks_is_prefill(chunk):
  whole, a = prefill.prefill(BIG, PB, PROMPT, 16)
  parts, b = prefill.prefill(BIG, PB, PROMPT, 16, chunk=chunk)
  np.testing.assert_allclose(whole, parts, atol=1e-5)
  assert_same_slots(a, b, 1e-5)


@pytest.mark.parametrize('target', [
    targets.Lossless(), targets.Chow(.4),
    targets.Choice((targets.Lossless(), targets.Chow(.4)), jnp.int32(0))],
                         ids=['gamma', 'gamma+1', 'either'])
@pytest.mark.parametrize('name', ['chain', 'stop', 'distinct'])
def test_caches_equal_a_fresh_prefill_after_every_round(name, target):
  """Of both models; rules without q may owe the drafter its last slot."""
  drafter, params = DRAFTERS[name]
  spec = decode.GenSpecSample(BIG, drafter, 20, eos=-1)
  state = spec.init(PB, params, PROMPT, keys(3))
  step = jax.jit(decode.GenSpecSample.step)
  for _ in range(5):
    state, _ = step(spec, PB, params, target, Warp(), state)
    read = types.Prompt(state.tokens, state.lengths)
    np.testing.assert_array_equal(state.cache.length, state.lengths - 1)
    assert_same_slots(state.cache, READ(BIG, PB, read, 32)[1])
    cache = state.drafter
    np.testing.assert_array_equal(cache.length, state.lengths - 1)
    if not isinstance(target, targets.Chow):
      _, cache = REREAD(SMALL, params, cache, state.tokens)
      cache = cache.truncate(cache.length - 1)
    assert_same_slots(cache, READ(SMALL, PS, read, 32)[1])


@pytest.mark.parametrize('name', ['t5_1_1', 'gemma3'])
def test_caches_of_transformers_do_so_too(name):
  """Encoders, windows and all; the target is p, and q is read."""
  lm, params = tiny.LMS[name], tiny.params_of(tiny.LMS[name])
  near = jax.tree.map(lambda a, b: .5 * a + .5 * b, params,
                      tiny.params_of(lm, 1))
  inputs = jnp.array([[3, 4, 5, 1], [7, 1, 0, 0], [9, 2, 1, 0]])
  prompt = PROMPT.replace(inputs=inputs if name == 't5_1_1' else None)
  spec = decode.GenSpecSample(lm, chain.Chain(lm, 3), 20, eos=-1)
  packed, small = lm.pack(params), lm.pack(near)
  state = spec.init(packed, small, prompt, keys(3))
  step, accepted = jax.jit(decode.GenSpecSample.step), []
  for _ in range(4):
    state, seen = step(spec, packed, small, targets.Diff(-1.), Warp(), state)
    accepted.append(seen.verdict.count)
    read = prompt.replace(prefix=state.tokens, prefix_lengths=state.lengths)
    for cache, own in ((state.cache, packed), (state.drafter, small)):
      np.testing.assert_array_equal(cache.length, state.lengths - 1)
      assert_same_slots(cache, READ(lm, own, read, 32)[1])
  assert len(np.unique(accepted)) > 1


@pytest.mark.parametrize('rows', [1, 3])
def test_write_is_per_row_and_casts(rows):
  start, block = jnp.arange(rows) * 2, jnp.ones((rows, 2, 3))
  got = cache_lib.write(jnp.zeros((rows, 8, 3), jnp.bfloat16), block, start)
  assert got.dtype == jnp.bfloat16
  for row in range(rows):
    written = np.flatnonzero(np.asarray(got[row, :, 0], np.float32))
    np.testing.assert_array_equal(written, [2 * row, 2 * row + 1])


def test_a_block_wider_than_the_cache_is_an_error():
  with pytest.raises(ValueError, match='does not fit'):
    cache_lib.write(jnp.zeros((1, 4)), jnp.zeros((1, 5)),
                    jnp.zeros(1, jnp.int32))


def test_nodes_without_parents_are_masked_by_the_tree_alone():
  nodes = types.chain(jnp.array([[1, 2, 3, 4]]), jnp.array([1]))
  np.testing.assert_array_equal(nodes.parents, [[-1, 0, -1, -1]])
  np.testing.assert_array_equal(nodes.depth, [[0, 1, 2, 3]])
  assert types.depths((-1, 0, 0, 1)) == (0, 1, 1, 2)
