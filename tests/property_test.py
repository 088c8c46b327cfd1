"""Properties of warps, sampling, residuals, masks, for any input."""
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import types, verify
from spec_cascades import warp as warp_lib

SIZE = 12                                  # one shape, so one compilation
FINITE = st.floats(-1e4, 1e4, width=32)
# Magnitudes up to 1e4, ties, -inf masks; one entry is always finite.
LOGITS = st.tuples(
    hnp.arrays(np.float32, SIZE, elements=st.one_of(
        FINITE, st.sampled_from([0., 1., 1e4, -1e4, -np.inf]))),
    st.integers(0, SIZE - 1), FINITE)
FRACTIONS = st.floats(0.015625, 1, width=32)
many = hypothesis.settings(max_examples=100, deadline=None, derandomize=True)

warp = jax.jit(lambda w, x: w(x[None]).probs[0])
draw = jax.jit(jax.vmap(warp_lib.sample, (None, 0)))
rest = jax.jit(warp_lib.residual)
KEYS = jax.random.split(jax.random.key(0), 64)


def finite_somewhere(parts):
  logits, index, value = parts
  logits = logits.copy()
  logits[index] = value
  return logits


def assert_distribution(probs):
  assert np.isfinite(probs).all() and (probs >= 0).all()
  np.testing.assert_allclose(probs.sum(), 1, atol=1e-5)


@many
@hypothesis.given(LOGITS, st.just(0.) | st.floats(0.015625, 64, width=32),
                  st.integers(0, SIZE + 3), FRACTIONS, FRACTIONS)
def test_a_warp_gives_a_distribution_with_the_right_support(
    parts, temperature, top_k, top_p, min_p):
  logits = finite_somewhere(parts)
  probs = np.asarray(warp(warp_lib.Warp(
      jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p),
      jnp.float32(min_p)), logits))
  assert_distribution(probs)
  assert (probs[np.isneginf(logits)] == 0).all()
  assert probs[logits.argmax()] == probs.max()       # the best token stays
  if temperature == 0:
    assert probs[logits.argmax()] == 1
  elif top_k:
    kth = np.sort(logits)[-min(top_k, SIZE)]
    assert (probs[logits < kth] == 0).all()
  kept = probs[probs > 0]
  assert (kept >= kept.max() * min_p * .999).all()
  order = np.argsort(-logits, kind='stable')         # never against the order
  assert (np.diff(probs[order]) <= 1e-6).all()


@many
@hypothesis.given(LOGITS)
def test_a_sample_has_mass_and_an_argmax_is_numpys(parts):
  logits = finite_somewhere(parts)
  probs = np.asarray(warp(warp_lib.Warp(jnp.float32(1)), logits))
  tokens = np.asarray(draw(probs, KEYS))
  assert ((0 <= tokens) & (tokens < SIZE)).all() and (probs[tokens] > 0).all()
  assert int(warp_lib.argmax(jnp.asarray(logits))) == logits.argmax()


@many
@hypothesis.given(LOGITS, LOGITS, FRACTIONS)
def test_a_residual_is_a_distribution_and_completes_acceptance(a, b, cold):
  """min(q, pi) + (1 - sum min(q, pi)) norm((pi - q)+) = pi."""
  pi, q = (np.asarray(warp(warp_lib.Warp(jnp.float32(t)), finite_somewhere(x)))
           for x, t in ((a, 1.), (b, cold)))
  left = np.asarray(rest(pi, q))
  assert_distribution(left)
  assert (left[pi == 0] == 0).all()
  both = np.minimum(pi.astype(np.float64), q)
  np.testing.assert_allclose(both + (1 - both.sum()) * left, pi, atol=1e-5)


@many
@hypothesis.given(st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_masks_are_ancestors_and_depths_count_them(choices):
  """A random tree: the parent of node n is any node before it."""
  parents = (-1, *(c % n for n, c in enumerate(choices, 1)))
  nodes = types.tree(jnp.zeros((1, len(parents)), jnp.int32), parents)
  mask, depth = np.asarray(nodes.mask[0]), np.asarray(nodes.depth[0])
  assert (mask.sum(1) == depth + 1).all()
  for node, parent in enumerate(parents):
    ancestors = {node} | (set(np.flatnonzero(mask[parent])) if node else set())
    assert set(np.flatnonzero(mask[node])) == ancestors


def walked(key, draft, pi):
  """Rejection without its shortcut for chains."""
  accept, then = jax.random.split(key)
  path, count, left = verify.walk(
      jax.random.uniform(accept, (len(pi),)), draft, pi)
  return types.Verdict(path, count, warp_lib.sample(left, then))


each_key = lambda f: jax.jit(jax.vmap(f, (0, None, None)))
judge = each_key(lambda key, draft, pi: verify.Rejection()(
    key, draft, types.Prediction(jnp.log(pi), pi), pi))
walk = each_key(walked)


@many
@hypothesis.given(st.integers(0, 2**31), st.integers(0, 3),
                  st.sampled_from(['sampled', 'deterministic']))
def test_a_chain_is_the_tree_without_branches(seed, last, law):
  """The chain's shortcut takes the very draws of the recursive walk."""
  keys = jax.random.split(jax.random.key(seed), 2)
  q, pi = (jax.nn.softmax(3 * jax.random.normal(k, (4, 6))) for k in keys)
  tokens = jax.random.randint(keys[0], (1, 4), 0, 6)
  nodes = jax.tree.map(lambda x: x[0], types.chain(tokens, jnp.array([last])))
  draft = types.Draft(
      nodes, types.Prediction(jnp.log(q), q) if law == 'sampled' else None,
      jnp.int32(0), law, 3, False)
  got, want = (jax.device_get(f(KEYS, draft, pi)) for f in (judge, walk))
  np.testing.assert_array_equal(got.count, want.count)
  np.testing.assert_array_equal(got.next_token, want.next_token)
  for a, b, n in zip(got.path, want.path, want.count):
    np.testing.assert_array_equal(a[:n + 1], b[:n + 1])
