"""The batched rejection sampler's law, and mutants of it that are seen."""
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import sampler, verify
from tests.common import (
    SAMPLER_LEVEL as LEVEL, lenience_p_value, lenience_power, p_value)

SIZE, WIDTH, ROWS = 3, 2, 9 * 2**16
# p and q of the token at a place after the one before it; with zeros in both.
# Where they are close, rejections are few and a small lenience is loud.
P = np.array([[[.5, .2, .3], [.1, .2, .7], [.6, .4, 0.]],
              [[.2, .5, .3], [0., .1, .9], [.3, .3, .4]],
              [[.7, .1, .2], [.2, .8, 0.], [.1, .3, .6]]])
Q = np.array([[[.53, .24, .23], [.3, .3, .4], [.2, .2, .6]],
              [[.6, .1, .3], [.4, .6, 0.], [.3, .3, .4]]])


def exact(n, with_q, kind=1.):
  """Joint of what a row with n drafts x_j ~ Q emits; index 0 is padding.

  kind: Factor of acceptance probabilities. Written from the formulas, in
  float64, and sharing nothing with the sampler.
  """
  law = np.zeros((SIZE + 1,) * (WIDTH + 1))
  emit = lambda tokens: tuple(
      np.append(np.add(tokens, 1), [0] * (WIDTH + 1 - len(tokens))).astype(int))
  for drafts in itertools.product(range(SIZE), repeat=n):
    before = (0, *drafts)
    alive = np.prod([Q[j, before[j], x] for j, x in enumerate(drafts)])
    for j, x in enumerate(drafts):
      p, q = P[j, before[j]], Q[j, before[j]]
      if alive == 0:
        break
      if with_q:
        accept, rest = min(1, kind * p[x] / q[x]), np.maximum(p - q, 0)
      else:
        accept, rest = min(1, kind * p[x]), np.where(np.arange(SIZE) == x, 0, p)
      for token in range(SIZE):
        if accept < 1 and rest[token]:
          law[emit((*drafts[:j], token))] += (
              alive * (1 - accept) * rest[token] / rest.sum())
      alive *= accept
    for token in range(SIZE):
      law[emit((*drafts, token))] += alive * P[n, before[n], token]
  return law


@functools.cache
def drafted():
  """Drafts drawn from Q and bonus tokens from P, for counts 0, 1, 2 in turn."""
  draw = np.random.default_rng(5)
  pick = lambda law: (law.cumsum(-1) < draw.random((ROWS, 1))).sum(-1).clip(
      0, SIZE - 1)
  counts, before = np.arange(ROWS) % (WIDTH + 1), [np.zeros(ROWS, int)]
  for j in range(WIDTH):
    before.append(pick(Q[j, before[j]]))
  before = np.stack(before, 1)
  rows_of = lambda table: np.float32(np.stack(
      [table[j, before[:, j]] for j in range(WIDTH)], 1))
  last = before[np.arange(ROWS), counts]
  return dict(target_probs=rows_of(P), bonus_token_ids=pick(P[counts, last]),
              draft_probs=rows_of(Q), draft_token_ids=before[:, 1:],
              num_draft_tokens=counts)


def law_test(with_q=True, seeds=True, run=sampler.rejection_sample):
  """p-value of the joint of count and tokens; see `common.law_test`."""
  arguments, row = drafted(), np.arange(ROWS)
  if not with_q:
    arguments = {**arguments, 'draft_probs': None}
  same = np.full(ROWS, 9)
  own = sampler.request_keys(*((row, same) if seeds else (same, row)))
  tokens = np.asarray(run(**arguments, keys=own))
  assert tokens.shape == (ROWS, WIDTH + 1) and tokens.dtype == np.int32
  counts = np.zeros((WIDTH + 1,) + (SIZE + 1,) * (WIDTH + 1))
  np.add.at(counts, (row % (WIDTH + 1), *(tokens.T + 1)), 1)
  laws, kind = (np.stack([exact(n, with_q, by) for n in range(WIDTH + 1)])
                for by in (1., 1.02))
  assert lenience_power(laws, kind, ROWS // (WIDTH + 1), LEVEL) > .999
  return min(p_value(counts, laws), lenience_p_value(counts, laws, kind))


@pytest.mark.parametrize('n', range(WIDTH + 1))
@pytest.mark.parametrize('with_q', [True, False])
def test_enumeration_is_lossless(n, with_q):
  """A check of the reference: tokens follow P, whatever the drafts."""
  law = exact(n, with_q)
  np.testing.assert_allclose(law.sum(), 1)
  two = law.sum(2)                              # first and second token
  np.testing.assert_allclose(two.sum(1)[1:], P[0, 0])
  second = two[1:, 1:]
  want = P[1] if n else np.zeros_like(P[1])
  for first in np.flatnonzero(second.sum(1)):
    np.testing.assert_allclose(
        second[first] / second[first].sum(), want[first], atol=1e-12)


@pytest.mark.parametrize('with_q', [True, False], ids=['q', 'point_masses'])
@pytest.mark.parametrize('seeds', [True, False], ids=['seeds', 'rounds'])
def test_the_joint_is_exact(with_q, seeds):
  assert law_test(with_q, seeds) > LEVEL


def lenient(draft, pi, *, drawn=verify.drawn):
  of_pi, of_law = drawn(draft, pi)
  return 1.02 * of_pi, of_law


def wrong_row_of_q(draft, pi, *, drawn=verify.drawn):
  roll = lambda x: jnp.roll(x, 1, 0)
  return drawn(draft.replace(prediction=jax.tree.map(roll, draft.prediction)),
               pi)


def wrong_residual(draft, pi, count, *, left=verify.left_after):
  return left(draft, jnp.roll(pi, 1, 0), count)


def no_residual(draft, pi, count):
  del draft
  return pi[count]


def bonus_after_rejection(bonus_token_ids, num_draft_tokens, **arguments):
  tokens = sampler.rejection_sample(bonus_token_ids=bonus_token_ids,
                                    num_draft_tokens=num_draft_tokens,
                                    **arguments)
  last = np.arange(WIDTH + 1) == np.asarray(sampler.num_accepted(tokens))[
      :, None]
  return np.where(last, bonus_token_ids[:, None], tokens).astype(np.int32)


def bonus_of_the_last_draft(bonus_token_ids, **arguments):
  """What a row of p too early gives: a bonus token like the last draft."""
  del bonus_token_ids
  early = np.random.default_rng(1).choice(SIZE, ROWS, p=P[0, 0])
  return sampler.rejection_sample(bonus_token_ids=early, **arguments)


def one_stream(keys, **arguments):
  shared = jnp.broadcast_to(keys[:1], keys.shape)
  return sampler.rejection_sample(keys=shared, **arguments)


@pytest.mark.parametrize('with_q,name,mutant', [
    (True, 'drawn', lenient), (False, 'drawn', lenient),
    (True, 'drawn', wrong_row_of_q), (True, 'left_after', wrong_residual),
    (True, 'left_after', no_residual), (False, 'left_after', no_residual)])
def test_biased_parts_fail(with_q, name, mutant, monkeypatch):
  inner = sampler._run.__wrapped__
  monkeypatch.setattr(verify, name, mutant)
  # Parts are no cache key of `_run`, so it gets an empty cache.
  monkeypatch.setattr(sampler, '_run', jax.jit(lambda *args: inner(*args)))
  assert law_test(with_q) < LEVEL


@pytest.mark.parametrize('mutant', [
    bonus_after_rejection, bonus_of_the_last_draft, one_stream])
def test_biased_wholes_fail(mutant):
  assert law_test(run=mutant) < LEVEL
