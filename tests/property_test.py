"""Properties of warps, sampling, residuals, masks, for any input."""
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import types, verify
from spec_cascades import warp as warp_lib
from tests.reference import softmax

SIZE = 12                                  # one shape, so one compilation
FINITE = st.floats(-1e4, 1e4, width=32)
# Magnitudes up to 1e4, ties, -inf masks; one entry is always finite.
LOGITS = st.tuples(
    hnp.arrays(np.float32, SIZE, elements=st.one_of(
        FINITE, st.sampled_from([0., 1., 1e4, -1e4, -np.inf]))),
    st.integers(0, SIZE - 1), FINITE)
FRACTIONS = st.floats(0.015625, 1, width=32)
WIDE = 2**18
many, few = (hypothesis.settings(max_examples=n, deadline=None,
                                 derandomize=True) for n in (100, 50))

warp = jax.jit(lambda w, x: w(x[None]).probs[0])
draw = jax.jit(jax.vmap(warp_lib.sample, (None, 0)))
rest = jax.jit(warp_lib.residual)
KEEP_ETA = jax.jit(warp_lib.keep_eta)
KEYS = jax.random.split(jax.random.key(0), 64)


def finite_somewhere(parts):
  logits, index, value = parts
  logits = logits.copy()
  logits[index] = value
  return logits


def assert_distribution(probs):
  assert np.isfinite(probs).all() and (probs >= 0).all()
  np.testing.assert_allclose(probs.sum(dtype=np.float64), 1, atol=1e-5)


def check_draws(probs, logits):
  """Tokens have mass, and an argmax is NumPy's."""
  tokens = np.asarray(draw(probs, KEYS))
  assert ((0 <= tokens) & (tokens < len(probs))).all()
  assert (probs[tokens] > 0).all()
  assert int(warp_lib.argmax(jnp.asarray(logits))) == logits.argmax()


def check_residual(pi, q):
  """min(q, pi) + (1 - sum min(q, pi)) norm((pi - q)+) = pi."""
  left = np.asarray(rest(pi, q))
  assert_distribution(left)
  assert (left[pi == 0] == 0).all()
  assert (left[pi < q] == 0).all() or (left == pi).all()
  both = np.minimum(pi.astype(np.float64), q)
  np.testing.assert_allclose(both + (1 - both.sum()) * left, pi, atol=1e-5)


def in_float64(logits, temperature, top_k, top_p, min_p, eta):
  """What is left of one row; None if an entry is too close to a threshold."""
  if temperature == 0:
    return (np.arange(len(logits)) == logits.argmax()).astype(float)
  probs = softmax(np.float64(logits) / temperature)

  def keep(bar, exact=False):
    nonlocal probs
    gap = np.abs(probs - bar)
    sure = not ((gap < 1e-4 * bar) & ~(exact & (gap == 0))).any()
    probs = np.where(probs >= bar, probs, 0)
    probs /= probs.sum()
    return sure
  sure = True
  if top_k:
    sure &= keep(np.sort(probs)[-min(top_k, len(probs))], exact=True)
  if top_p < 1:
    falling = np.sort(probs)[::-1]
    mass = np.cumsum(falling)
    last = min(np.searchsorted(mass, top_p), len(mass) - 1)
    sure &= np.abs(mass - top_p).min() > 1e-4
    sure &= keep(falling[last], exact=True)
  if min_p:
    sure &= keep(min_p * probs.max(), exact=min_p == 1)
  if eta:
    logs = np.log(np.where(probs > 0, probs, 1))
    sure &= keep(min(eta, eta**.5 * np.exp((probs * logs).sum())))
  return probs if sure else None


def check_warp(logits, *numbers):
  """A distribution; the best token stays; as in float64 where that is sure."""
  probs = np.asarray(warp(warp_lib.Warp(*(
      np.asarray(x, kind) for x, kind in zip(
          numbers, 'f4 i4 f4 f4 f4'.split()))), logits))
  assert_distribution(probs)
  assert (probs[np.isneginf(logits)] == 0).all()
  assert probs[logits.argmax()] == probs.max()
  order = np.argsort(-logits, kind='stable')         # never against the order
  assert (np.diff(probs[order]) <= 1e-6).all() or numbers[0] == 0
  want = in_float64(logits, *numbers)
  if want is not None:
    np.testing.assert_allclose(probs, want, atol=2e-5)
    assert (want[probs > 0] > 0).all() and (probs[want > 1e-30] > 0).all()
  return probs


HEAT = st.just(0.) | st.floats(0.015625, 64, width=32)


@many
@hypothesis.given(LOGITS, HEAT, st.integers(0, SIZE + 3), FRACTIONS, FRACTIONS,
                  FRACTIONS)
def test_a_warp_gives_a_distribution_with_the_right_support(
    parts, temperature, top_k, top_p, min_p, eta):
  check_warp(finite_somewhere(parts), temperature, top_k, top_p, min_p, eta)


@many
@hypothesis.given(LOGITS, st.integers(0, 4), HEAT, st.integers(1, SIZE),
                  FRACTIONS)
def test_each_transform_alone_gives_the_right_support(
    parts, which, temperature, top_k, fraction):
  """Alone, more of them decide something."""
  numbers = [temperature if which == 0 else 1., 0, 1., 0., 0.]
  numbers[which] = (numbers[0], top_k, fraction, fraction, fraction)[which]
  check_warp(finite_somewhere(parts), *numbers)


def test_eta_of_one_keeps_a_flat_row():
  """Its threshold is the entries themselves, and may round to above them."""
  for size in range(1, 65):
    flat = jnp.where(jnp.arange(64) < size, 1 / size, 0)
    np.testing.assert_allclose(KEEP_ETA(flat, jnp.float32(1)), flat, rtol=1e-6)


def wide_row(seed, scale, masked, ties):
  """256k logits: some -inf, of which `ties` makes whole numbers."""
  draw = np.random.default_rng(seed)
  logits = np.float32(scale * draw.standard_normal(WIDE))
  logits = np.round(logits) if ties else logits
  logits[draw.random(WIDE) < masked] = -np.inf
  logits[draw.integers(WIDE)] = 0
  return logits


WIDE_ROWS = st.builds(wide_row, st.integers(0, 99),
                      st.sampled_from([0., 1e-3, 1., 5., 1e4]),
                      st.sampled_from([0., .5, .999]), st.booleans())


@few
@hypothesis.given(WIDE_ROWS, HEAT, st.integers(0, 4), st.integers(1, WIDE),
                  FRACTIONS)
def test_a_warp_of_256k_entries_keeps_its_promises(
    logits, temperature, which, top_k, fraction):
  numbers = [temperature, 0, 1., 0., 0.]
  if which:
    numbers[which] = (0, top_k, fraction, fraction, fraction)[which]
  probs = check_warp(logits, *numbers)
  if which == 2 and temperature:
    whole = softmax(np.float64(logits) / temperature)
    kept = whole >= whole[probs > 0].min()
    assert whole[kept].sum() >= fraction - 1e-4
    assert whole[whole > whole[kept].min()].sum() <= fraction + 1e-4


@few
@hypothesis.given(WIDE_ROWS, WIDE_ROWS, FRACTIONS)
def test_draws_and_residuals_of_256k_entries_keep_their_promises(a, b, cold):
  pi, q = (np.asarray(warp(warp_lib.Warp(jnp.float32(t)), x))
           for x, t in ((a, 1.), (b, cold)))
  check_draws(pi, a)
  check_residual(pi, q)


@many
@hypothesis.given(LOGITS)
def test_a_sample_has_mass_and_an_argmax_is_numpys(parts):
  logits = finite_somewhere(parts)
  check_draws(np.asarray(warp(warp_lib.Warp(jnp.float32(1)), logits)), logits)


@many
@hypothesis.given(LOGITS, LOGITS, FRACTIONS)
def test_a_residual_is_a_distribution_and_completes_acceptance(a, b, cold):
  pi, q = (np.asarray(warp(warp_lib.Warp(jnp.float32(t)), finite_somewhere(x)))
           for x, t in ((a, 1.), (b, cold)))
  check_residual(pi, q)


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
      jnp.int32(0), law, 3, full=False)
  got, want = (jax.device_get(f(KEYS, draft, pi)) for f in (judge, walk))
  np.testing.assert_array_equal(got.count, want.count)
  np.testing.assert_array_equal(got.next_token, want.next_token)
  for a, b, n in zip(got.path, want.path, want.count):
    np.testing.assert_array_equal(a[:n + 1], b[:n + 1])
