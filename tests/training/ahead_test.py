"""The loss of heads against one written out position by position."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.models import heads, t5
from spec_cascades.training import ahead, losses, train_step
from tests import tinypair

T5 = t5.T5(dataclasses.replace(tinypair.config(8, 1), vocab_size=7))
BATCH = dict(
    inputs=jnp.array([[3, 4, 5, 1], [2, 6, 1, 0]]),
    input_lengths=jnp.array([4, 3]),
    targets=jnp.array([[3, 2, 6, 5, 1], [4, 4, 1, 0, 0]]),
    weights=jnp.array([[1., 1, 1, 1, 1], [1, 1, 1, 0, 0]]))


def headed(sequential, count=3):
  lm = heads.Headed(T5, heads.HeadsConfig(count, sequential=sequential))
  params = jax.jit(lm.init_params)(jax.random.key(0))
  rng = np.random.default_rng(0)
  noise = lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype)
  return lm, dict(params, heads=jax.tree.map(noise, params['heads']))


def surprise(logits, token):
  logits = np.asarray(logits, np.float64)
  return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[
      token]


def said(params, k, hidden, tokens):
  """Logits of a head of one block, in float64."""
  own = jax.tree.map(lambda x: np.asarray(x, np.float64),
                     params['heads'][f'head_{k}'])
  table = np.asarray(params['model']['token_embedder']['embedding'])
  y = np.concatenate([hidden, *table[tokens]]) @ own['block_0']['linear'][
      'kernel'] + own['block_0']['bias']
  return (hidden + y / (1 + np.exp(-y))) @ own['logits_dense']['kernel']


def reference(lm, params, mix):
  """sum_k 0.8^k over rows and positions whose token k further is there."""
  hidden, own = map(np.asarray, jax.jit(lambda x: (
      lm.states(x, BATCH), lm.teacher_forced(x, BATCH)))(params))
  own = own.astype(np.float64)
  total = 0.
  for k in range(1, lm.heads.count + 1):
    for row, targets in enumerate(np.asarray(BATCH['targets'])):
      for t in range(int(BATCH['weights'][row].sum()) - k):
        read = targets[t:t + k] if lm.heads.sequential else targets[:0]
        q = said(params, k, hidden[row, t], read)
        ce = surprise(q, targets[t + k])
        p = np.exp(own[row, t + k] - own[row, t + k].max())
        p /= p.sum()
        kl = sum(p[x] * (np.log(p[x]) + surprise(q, x)) for x in range(7))
        total += .8**k * (mix * ce + (1 - mix) * kl)
  return total


@pytest.mark.parametrize('sequential,mix', [(False, 1.), (True, .25)])
def test_the_loss_is_that_of_every_head_at_every_position(sequential, mix):
  lm, params = headed(sequential)
  loss = ahead.Ahead(distillation=losses.Distillation(mix=mix))
  total, sums = jax.jit(lambda x: loss(lm, x, BATCH))(params)
  assert float(total) == pytest.approx(reference(lm, params, mix), rel=1e-4)
  assert float(sums['tokens']) == 8
  assert all(0 <= float(sums[f'{name}_{k}']) <= 8 - 2 * k + (k == 3)
             for name in ('agreement', 'acceptance') for k in (1, 2, 3))


def test_packed_texts_do_not_see_each_other():
  """Two texts in a row count as they do in rows of their own."""
  weights = np.array([[1., 1, 1, 1, 1]])
  segments = np.array([[1, 1, 2, 2, 2]])
  batch = dict(weights=jnp.array(weights), target_segments=jnp.array(segments))
  assert ahead.weights_at(batch, 1).tolist() == [[1, 0, 1, 1, 0]]
  assert ahead.weights_at(batch, 2).tolist() == [[0, 0, 1, 0, 0]]
  assert ahead.weights_at(dict(weights=batch['weights']), 6).sum() == 0


def test_the_verifier_learns_only_if_it_is_to():
  lm, params = headed(False, count=1)
  for weight in (0., 5.):
    update = train_step.Update(lm, None, objective=ahead.Ahead(verifier=weight))
    grads = jax.jit(jax.grad(lambda x, u=update: u.loss(x, BATCH)[0]))(params)
    size = lambda tree: sum(float(jnp.abs(x).sum())
                            for x in jax.tree.leaves(tree))
    assert size(grads['heads']) > 0
    assert (size(grads['model']) > 0) == (weight > 0)


def test_a_trained_verifier_is_held_near_its_teacher():
  """L_0 is KL from what another one says, and cross-entropy: in float64."""
  mix = .25
  lm, params = headed(False, count=1)
  other = jax.jit(T5.init_params)(jax.random.key(1))
  update = train_step.Update(
      lm, None, teacher=T5, objective=ahead.Ahead(verifier=5.),
      distillation=losses.Distillation(mix=mix))
  total, sums = jax.jit(update.loss)(params, BATCH, other)
  q, p = (np.asarray(jax.jit(T5.teacher_forced)(x, BATCH), np.float64)
          for x in (params['model'], other))
  q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (q, p))
  own = overlap = 0.
  for at in zip(*np.nonzero(np.asarray(BATCH['weights']))):
    kl = (p[at] * np.log(p[at] / q[at])).sum()
    own -= mix * np.log(q[at][int(BATCH['targets'][at])])
    own += (1 - mix) * kl
    overlap += np.minimum(p[at], q[at]).sum()
  assert own > .1
  assert float(total) == pytest.approx(
      reference(lm, params, 1.) + 5 * own, rel=1e-4)
  assert float(sums['acceptance_0']) == pytest.approx(overlap, rel=1e-4)
  assert float(sums['agreement_0']) == sum(
      p[at].argmax() == q[at].argmax()
      for at in zip(*np.nonzero(np.asarray(BATCH['weights']))))


def test_numbers_outside_their_domains_are_refused():
  for make, match in ((lambda: ahead.Ahead(0.), 'decay of Ahead is 0'),
                      (lambda: ahead.Ahead(verifier=-1.), 'verifier of Ahead')):
    with pytest.raises(ValueError, match=match):
      make()
