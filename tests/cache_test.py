"""Positions in trees, commits, and drafter caches after every round."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.common import keys
from tests.toys import BIG, DRAFTERS, PB, PS, SMALL, TREE
from spec_cascades import cache as cache_lib, decode, targets, types
from spec_cascades.models import prefill
from spec_cascades.warp import Warp

PROMPT = types.Prompt(jnp.array([[0, 2, 3, 4], [3, 0, 0, 0], [0, 4, 4, 0]]),
                      jnp.array([4, 1, 3]))
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
  for got, ref in zip(jax.tree.leaves(kept.layers), jax.tree.leaves(want.layers)):
    for row, n in enumerate(kept.length):
      np.testing.assert_allclose(got[row, :n], ref[row, :n], atol=1e-5)


def test_prefill_in_chunks_is_prefill():
  whole, a = prefill.prefill(BIG, PB, PROMPT, 16)
  parts, b = prefill.prefill(BIG, PB, PROMPT, 16, chunk=2)
  np.testing.assert_allclose(whole, parts, atol=1e-5)
  for x, y in zip(jax.tree.leaves(a.layers), jax.tree.leaves(b.layers)):
    np.testing.assert_allclose(x[:, :3], y[:, :3], atol=1e-5)


@pytest.mark.parametrize('target', [targets.Lossless(), targets.Chow(.4)],
                         ids=['gamma', 'gamma+1'])
@pytest.mark.parametrize('name', ['chain', 'stop', 'tree', 'distinct'])
def test_drafter_cache_equals_fresh_prefill(name, target):
  """After every round; rules without q may owe the last slot, which is reread."""
  drafter, params = DRAFTERS[name]
  spec = decode.GenSpecSample(BIG, drafter, 20, eos=-1)
  state, step = spec.init(PB, params, PROMPT, keys(3)), jax.jit(decode.GenSpecSample.step)
  for _ in range(5):
    state, _ = step(spec, PB, params, target, Warp(), state)
    cache = state.drafter
    np.testing.assert_array_equal(cache.length, state.lengths - 1)
    if not target.uses_q:
      _, cache = REREAD(SMALL, params, cache, state.tokens)
      cache = cache.truncate(cache.length - 1)
    fresh = READ(SMALL, PS, types.Prompt(state.tokens, state.lengths), 32)[1]
    for got, want in zip(jax.tree.leaves(cache.layers), jax.tree.leaves(fresh.layers)):
      for row, n in enumerate(fresh.length):
        np.testing.assert_allclose(got[row, :n], want[row, :n], atol=1e-4)


def test_a_block_wider_than_the_cache_is_an_error():
  with pytest.raises(ValueError, match='does not fit'):
    cache_lib.write(jnp.zeros((1, 4)), jnp.zeros((1, 5)), jnp.zeros(1, jnp.int32))
