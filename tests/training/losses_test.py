"""Losses against NumPy in float64."""
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import warp
from spec_cascades.training import divergences
from spec_cascades.training import losses


@pytest.mark.parametrize('z_loss', [0., 1e-2])
def test_cross_entropy_equals_float64(z_loss):
  logits = np.asarray(jax.random.normal(jax.random.key(0), (3, 4, 7))) * 5
  targets = np.array([[1, 2, 0, 0], [6, 5, 4, 3], [0, 0, 0, 0]])
  total, count = losses.cross_entropy(
      jnp.asarray(logits), jnp.asarray(targets),
      jnp.asarray(targets > 0, jnp.float32), z_loss=z_loss)
  want, wide = 0., logits.astype(np.float64)
  for b, n in zip(*np.nonzero(targets)):
    log_z = np.log(np.exp(wide[b, n]).sum())
    want += log_z - wide[b, n, targets[b, n]] + z_loss * log_z**2
  assert count == 6
  np.testing.assert_allclose(total, want, rtol=1e-5)


def laws(shape=(3, 4, 7), scale=3.):
  """Logits of a student and a teacher, and targets with padding."""
  q, p = (np.array(jax.random.normal(jax.random.key(i), shape)) * scale
          for i in (0, 1))
  q[0, 0, 3] = p[0, 0, 3] = 30                     # they agree here at least
  return q, p, np.array([[1, 2, 0, 0], [6, 5, 4, 3], [0, 0, 0, 0]])


def softmax(x):
  x = np.exp(x.astype(np.float64) - x.max())
  return x / x.sum()


def kl(a, b):
  return (a * np.log(a / b)).sum()


def jsd(b):
  def of(q, p):
    m = b * p + (1 - b) * q
    return b * kl(p, m) + (1 - b) * kl(q, m)
  return of


# Each divergence, and what it is in float64 from the laws q and p.
TABLE = [
    (divergences.ForwardKL(), lambda q, p: kl(p, q)),
    (divergences.ReverseKL(), lambda q, p: kl(q, p)),
    (divergences.JSD(), jsd(.5)),
    (divergences.JSD(.1), jsd(.1)),
    (divergences.JSD(.9), jsd(.9)),
    (divergences.TVD(), lambda q, p: 1 - np.minimum(p, q).sum()),
]
each = pytest.mark.parametrize('divergence,reference', TABLE,
                               ids=[str(x) for x, _ in TABLE])


@each
@pytest.mark.parametrize('settings', [
    dict(), dict(z_loss=1e-2), dict(mix=.3), dict(mix=1.),
    dict(temperature=2., teacher_temperature=.5, mix=.5, z_loss=1e-2)],
    ids=str)
def test_distillation_equals_float64(divergence, reference, settings):
  settings = dict(settings)
  z_loss = settings.pop('z_loss', 0.)
  q, p, targets = laws()
  make = losses.Distillation(divergence, **settings)
  total, sums = make(*map(jnp.asarray, (
      q, p, targets, (targets > 0).astype(np.float32))), z_loss=z_loss)
  want, same, accepted = 0., 0, 0.
  for at in zip(*np.nonzero(targets)):
    want += (1 - make.mix) * reference(
        softmax(q[at] / make.temperature),
        softmax(p[at] / make.teacher_temperature))
    want -= make.mix * np.log(softmax(q[at])[targets[at]])
    want += z_loss * np.log(np.exp(q[at].astype(np.float64)).sum())**2
    same += q[at].argmax() == p[at].argmax()
    accepted += np.minimum(softmax(q[at]), softmax(p[at])).sum()
  np.testing.assert_allclose(total, want, rtol=2e-5)
  assert sums['tokens'] == 6
  assert float(sums['agreement']) == same and 1 <= same < 6
  np.testing.assert_allclose(sums['acceptance'], accepted, rtol=1e-5)


def test_targets_of_ones_own_carry_no_cross_entropy():
  """Row by row: what the student wrote, and what it did not."""
  q, p, targets = map(jnp.asarray, laws())
  weights = (targets > 0).astype(jnp.float32)
  mixed, plain = losses.Distillation(mix=.3), losses.Distillation()
  written = jnp.array([True, False, True])
  got, _ = mixed(q, p, targets, weights, written=written)
  want = sum((plain if own else mixed)(*(x[i:i + 1] for x in (
      q, p, targets, weights)))[0] for i, own in enumerate(written))
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert abs(float(got - mixed(q, p, targets, weights)[0])) > .1


def differences(function, x, step=1e-6):
  """Central differences of a function of a vector, in float64."""
  return [(function(x + e) - function(x - e)) / (2 * step)
          for e in step * np.eye(len(x))]


@each
def test_gradients_equal_finite_differences(divergence, reference):
  q, p, _ = laws((1, 1, 5), 1.)
  q, p = q[0, 0, :].astype(np.float64), p[0, 0, :]
  q[3], p[3] = .2, -.7
  loss = lambda x: divergence(jax.nn.log_softmax(x), jax.nn.log_softmax(p))
  got = jax.grad(loss)(jnp.asarray(q, jnp.float32))
  want = differences(lambda x: reference(softmax(x), softmax(p)), q)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@each
@pytest.mark.parametrize('settings', [
    dict(mix=1.), dict(z_loss=.1), dict(temperature=2.),
    dict(teacher_temperature=.5),
    dict(mix=.4, z_loss=.1, temperature=2., teacher_temperature=.5)], ids=str)
def test_gradients_of_all_terms_equal_finite_differences(
    divergence, reference, settings):
  """Cross-entropy, log(Z)^2 and temperatures, alone and together."""
  settings = dict(settings)
  z_loss = settings.pop('z_loss', 0.)
  q, p, _ = laws((1, 1, 5), 1.)
  q, p = q[0, 0].astype(np.float64), p[0, 0]
  q[3], p[3] = .2, -.7
  make = losses.Distillation(divergence, **settings)
  loss = lambda x: make(
      x[None, None], jnp.asarray(p)[None, None], jnp.array([[2]]),
      jnp.ones((1, 1)), z_loss=z_loss)[0]

  def by_hand(x):
    log_z = np.log(np.exp(x).sum())
    return ((1 - make.mix) * reference(
        softmax(x / make.temperature), softmax(p / make.teacher_temperature))
            + make.mix * (log_z - x[2]) + z_loss * log_z**2)

  got = jax.grad(loss)(jnp.asarray(q, jnp.float32))
  np.testing.assert_allclose(got, differences(by_hand, q), rtol=1e-4,
                             atol=1e-6)


@pytest.mark.parametrize('z_loss', [0., .1])
def test_gradients_of_cross_entropy_equal_finite_differences(z_loss):
  """Over rows, weights and padding."""
  q, _, targets = laws((3, 4, 7), 1.)
  weights = np.where(targets > 0, [.5, 1., 1., 2.], 0)
  wide, own = q.astype(np.float64).ravel(), np.nonzero(weights)

  def by_hand(x):
    x = x.reshape(q.shape)[own]
    log_z = np.log(np.exp(x).sum(-1))
    right = np.take_along_axis(x, targets[own][:, None], -1)[:, 0]
    return (weights[own] * (log_z - right + z_loss * log_z**2)).sum()

  got = jax.grad(lambda x: losses.cross_entropy(
      x, jnp.asarray(targets), jnp.asarray(weights, jnp.float32),
      z_loss=z_loss)[0])(jnp.asarray(q))
  np.testing.assert_allclose(np.ravel(got), differences(by_hand, wide),
                             rtol=1e-4, atol=1e-5)


@each
def test_equal_laws_are_no_distance_apart(divergence, reference):
  del reference
  q, _, _ = laws()
  law = jax.nn.log_softmax(q)
  np.testing.assert_allclose(divergence(law, law), 0, atol=2e-6)


@each
def test_tokens_that_cannot_be_drawn(divergence, reference):
  """Finite, gradient too, where KL is; else infinite, never NaN."""
  del reference
  log_p = jax.nn.log_softmax(jnp.array([1., 0., -jnp.inf]))
  loss = lambda x: divergence(jax.nn.log_softmax(x), log_p)
  value, gradient = jax.value_and_grad(loss)(jnp.array([0., 1., -jnp.inf]))
  assert jnp.isfinite(value) and jnp.isfinite(gradient).all()
  wide = loss(jnp.array([0., 1., 0.]))
  infinite = isinstance(divergence, divergences.ReverseKL)
  assert bool(jnp.isinf(wide)) == infinite and not jnp.isnan(wide)


@hypothesis.given(st.integers(0, 2**31), st.floats(.01, .99))
@hypothesis.settings(deadline=None, max_examples=40)
def test_jsd_is_no_less_than_0_and_symmetric(seed, b):
  """JSD_b(p, q) = JSD_(1-b)(q, p); so at 1/2 it is symmetric."""
  q, p = jax.nn.log_softmax(2 * jax.random.normal(jax.random.key(seed), (2, 6)))
  there, back = divergences.JSD(b)(q, p), divergences.JSD(1 - b)(p, q)
  assert there >= -1e-6
  np.testing.assert_allclose(there, back, rtol=1e-4, atol=1e-6)


def test_the_limits_of_jsd_are_the_kls():
  with jax.enable_x64(True):
    q, p = jax.nn.log_softmax(
        jax.random.normal(jax.random.key(0), (2, 6), jnp.float64))
    small = 1e-6
    np.testing.assert_allclose(divergences.JSD(small)(q, p) / small,
                               divergences.ForwardKL()(q, p), rtol=1e-4)
    np.testing.assert_allclose(divergences.JSD(1 - small)(q, p) / small,
                               divergences.ReverseKL()(q, p), rtol=1e-4)


def test_tvd_is_what_lossless_decoding_rejects():
  """1 - TVD is the acceptance that the engine's own warp would measure."""
  q, p, _ = laws()
  at_one = warp.Warp(1.)
  accepted = jnp.minimum(at_one(jnp.asarray(q)).probs,
                         at_one(jnp.asarray(p)).probs).sum(-1)
  tvd = divergences.TVD()(jax.nn.log_softmax(q), jax.nn.log_softmax(p))
  np.testing.assert_allclose(1 - tvd, accepted, atol=1e-6)


@pytest.mark.parametrize('make,match', [
    (lambda: losses.Distillation(mix=1.5), 'mix=1.5.*0, 1'),
    (lambda: losses.Distillation(temperature=0.), 'temperature=0.0.*more than'),
    (lambda: losses.Distillation(teacher_temperature=-1.), 'teacher_temp'),
    (lambda: divergences.JSD(0.), 'b=0.0.*ForwardKL'),
    (lambda: divergences.JSD(1.), 'b=1.0.*ReverseKL')])
def test_bad_settings_are_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make()


PART = np.array([0, 2, 3, 6])                    # what a student can predict


def reduced_laws():
  """`laws` of a student with -inf beyond PART."""
  q, p, targets = laws()
  narrow = np.full_like(q, -np.inf)
  narrow[..., PART] = q[..., PART]
  return narrow, p, targets


def kl_part(a, b):
  """KL over what a can draw."""
  return (a[a > 0] * np.log(a[a > 0] / b[a > 0])).sum()


def on_part(divergence, q, p):
  """D in float64, with q zero elsewhere: over the whole vocabulary, but for
  the forward KL, which is that of p given PART."""
  match divergence:
    case divergences.ForwardKL():
      return kl_part(p[PART] / p[PART].sum(), q[PART])
    case divergences.ReverseKL():
      return kl_part(q, p)
    case divergences.JSD(b):
      m = b * p + (1 - b) * q
      return b * kl_part(p, m) + (1 - b) * kl_part(q, m)
  return 1 - np.minimum(p, q).sum()


@each
@pytest.mark.parametrize('mix', [0., .3])
def test_part_of_a_vocabulary_equals_float64(divergence, reference, mix):
  """Acceptance is over all tokens; targets beyond carry no cross-entropy."""
  del reference
  q, p, targets = reduced_laws()
  total, sums = losses.Distillation(divergence, mix=mix)(*map(jnp.asarray, (
      q, p, targets, (targets > 0).astype(np.float32))))
  want, same, accepted, beyond = 0., 0, 0., 0
  for at in zip(*np.nonzero(targets)):
    law, other = softmax(q[at]), softmax(p[at])
    want += (1 - mix) * on_part(divergence, law, other)
    if targets[at] in PART:
      want -= mix * np.log(law[targets[at]])
    else:
      beyond += 1
    same += q[at].argmax() == p[at].argmax()
    accepted += np.minimum(law, other).sum()
  assert beyond == 3
  np.testing.assert_allclose(total, want, rtol=2e-5)
  assert float(sums['agreement']) == same and sums['tokens'] == 6
  np.testing.assert_allclose(sums['acceptance'], accepted, rtol=1e-5)


@each
@pytest.mark.parametrize('target', [1, 2], ids=['beyond', 'in-part'])
def test_gradients_on_part_equal_finite_differences(
    divergence, reference, target):
  del reference
  q, p, _ = laws((1, 1, 7), 1.)
  q, p = q[0, 0].astype(np.float64), p[0, 0]
  narrow = lambda x: np.where(np.isin(np.arange(7), PART), x, -np.inf)

  def by_hand(x):
    law = softmax(narrow(x))
    ce = -np.log(law[target]) if target in PART else 0.
    return .5 * on_part(divergence, law, softmax(p)) + .5 * ce

  loss = lambda x: losses.Distillation(divergence, mix=.5)(
      jnp.where(jnp.isin(jnp.arange(7), PART), x, -jnp.inf)[None, None],
      jnp.asarray(p)[None, None], jnp.array([[target]]), jnp.ones((1, 1)))[0]
  got = jax.grad(loss)(jnp.asarray(q, jnp.float32))
  np.testing.assert_allclose(got, differences(by_hand, q), rtol=1e-4,
                             atol=1e-6)


def test_cross_entropy_leaves_out_targets_beyond_part():
  q, _, targets = reduced_laws()
  weights = jnp.asarray(targets > 0, jnp.float32)
  total, count = losses.cross_entropy(jnp.asarray(q), jnp.asarray(targets),
                                      weights)
  held = [at for at in zip(*np.nonzero(targets)) if targets[at] in PART]
  assert count == len(held) == 3
  np.testing.assert_allclose(
      total, -sum(np.log(softmax(q[at])[targets[at]]) for at in held),
      rtol=1e-5)


def test_padding_carries_no_gradient():
  logits = jax.random.normal(jax.random.key(0), (1, 3, 5))
  targets, weights = jnp.array([[2, 1, 3]]), jnp.array([[1., 0., 1.]])
  grad = jax.grad(
      lambda x: losses.cross_entropy(x, targets, weights)[0])(logits)
  assert (grad[0, 1] == 0).all() and (grad[0, 0] != 0).any()


def test_a_boosted_loss_is_that_of_what_the_first_drafter_misses():
  q, first, targets = laws()
  targets[1, 0] = first[1, 0].argmax()                          # got right
  targets[0, 1] = q[0, 1].argmax()
  first[0, 1, (targets[0, 1] + 1) % 7] = 40                     # missed, caught
  own = np.asarray(targets > 0, np.float32)
  total, sums = losses.Boosted()(*map(jnp.asarray, (q, first, targets, own)))
  want, missed, caught = 0., 0, 0
  for b, n in zip(*np.nonzero(own)):
    if first[b, n].argmax() != targets[b, n]:
      want -= np.log(softmax(q[b, n])[targets[b, n]])
      missed += 1
      caught += q[b, n].argmax() == targets[b, n]
  assert 0 < missed < own.sum() and caught
  assert float(sums['tokens']) == missed and float(sums['agreement']) == caught
  np.testing.assert_allclose(total, want, rtol=1e-5)
