"""Batches for the rejection sampler, and ways to call it."""
import jax
import numpy as np

from spec_cascades import sampler


def softmax(draw, *shape):
  weight = np.exp(2 * draw.standard_normal(shape))
  return np.float32(weight / weight.sum(-1, keepdims=True))


def keys(rows, seed=3):
  return sampler.request_keys(np.arange(rows), np.full(rows, seed))


def hot(ids, size):
  return np.eye(size, dtype=np.float32)[ids]


def case(rows=64, k=3, size=11, *, seed=0, with_q=True):
  """Arguments with ragged counts; half of the drafts are the likeliest."""
  draw = np.random.default_rng(seed)
  integers = lambda high, *shape: draw.integers(0, high, shape, np.int32)
  p, q = softmax(draw, rows, k, size), softmax(draw, rows, k, size)
  drafts = np.where(integers(2, rows, k), p.argmax(-1), integers(size, rows, k))
  return dict(
      target_probs=p, bonus_token_ids=integers(size, rows),
      draft_probs=q if with_q else None,
      draft_token_ids=drafts.astype(np.int32),
      num_draft_tokens=np.arange(rows, dtype=np.int32) % (k + 1),
      keys=keys(rows))


def sample(arguments, **changed):
  return np.asarray(sampler.rejection_sample(**{**arguments, **changed}))


@jax.jit
def compiled(arguments):
  return sampler.rejection_sample(**arguments)


def traced(arguments, **changed):
  return np.asarray(compiled({**arguments, **changed}))
