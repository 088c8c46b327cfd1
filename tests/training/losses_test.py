"""Losses against NumPy in float64."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.parametrize('z_loss', [0., 1e-2])
def test_forward_kl_equals_float64(z_loss):
  q, p = (np.asarray(jax.random.normal(jax.random.key(i), (3, 4, 7))) * 3
          for i in (0, 1))
  q[0, 0, 3] = p[0, 0, 3] = 30                     # they agree here at least
  targets = np.array([[1, 2, 0, 0], [6, 5, 4, 3], [0, 0, 0, 0]])
  total, count, agree = losses.forward_kl(
      *map(jnp.asarray, (q, p, (targets > 0).astype(np.float32))),
      z_loss=z_loss)
  law = lambda x: np.exp(x) / np.exp(x).sum()
  want, same, wide = 0., 0, (q.astype(np.float64), p.astype(np.float64))
  for at in zip(*np.nonzero(targets)):
    of_q, of_p = (law(x[at]) for x in wide)
    want += (of_p * np.log(of_p / of_q)).sum()
    want += z_loss * np.log(np.exp(wide[0][at]).sum())**2
    same += of_q.argmax() == of_p.argmax()
  assert count == 6 and float(agree) == same and 1 <= same < 6
  np.testing.assert_allclose(total, want, rtol=1e-5)


def test_padding_carries_no_gradient():
  logits = jax.random.normal(jax.random.key(0), (1, 3, 5))
  targets, weights = jnp.array([[2, 1, 3]]), jnp.array([[1., 0., 1.]])
  grad = jax.grad(
      lambda x: losses.cross_entropy(x, targets, weights)[0])(logits)
  assert (grad[0, 1] == 0).all() and (grad[0, 0] != 0).any()
