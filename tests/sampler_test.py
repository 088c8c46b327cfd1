"""The batched rejection sampler: its decisions, its independence."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import sampler, types, verify
from tests.batches import case, hot, keys, sample, traced


# The decisions.


@pytest.mark.parametrize('with_q', [True, False])
def test_decisions_follow_from_the_uniforms(with_q):
  """With two tokens there is nothing left to draw: float64, row by row."""
  rows, k = 2000, 3
  some = case(rows, k, 2, seed=7, with_q=with_q)
  uniform = jax.vmap(lambda key: jax.random.uniform(
      jax.random.split(key)[0], (k + 1,)))(some['keys'])
  u, p = (np.float64(a) for a in (uniform[:, 1:], some['target_probs']))
  x = some['draft_token_ids']
  q = np.float64(some['draft_probs']) if with_q else np.eye(2)[x]
  got, close = sample(some), 0
  for b, n in enumerate(some['num_draft_tokens']):
    want, tie = [], False
    for j in range(n):
      ratio = p[b, j, x[b, j]] / q[b, j, x[b, j]]
      tie |= abs(ratio - u[b, j]) < 1e-5
      if u[b, j] >= ratio:
        (token,) = np.flatnonzero(p[b, j] > q[b, j])
        want.append(token)
        break
      want.append(x[b, j])
    else:
      want.append(some['bonus_token_ids'][b])
    close += tie
    if not tie:
      assert got[b].tolist() == want + [-1] * (k + 1 - len(want)), b
  assert close < 10


@pytest.mark.parametrize('with_q', [True, False])
def test_equals_the_verifier_of_the_loop(with_q):
  """Draw for draw, with the bonus token as a one-hot row."""
  some = case(seed=2, with_q=with_q)
  rows, k, size = some['target_probs'].shape
  x, n = some['draft_token_ids'], some['num_draft_tokens']
  one_more = lambda probs: np.pad(probs, ((0, 0), (0, 1), (0, 0)))
  pi = one_more(some['target_probs'])
  pi[np.arange(rows), n] = hot(some['bonus_token_ids'], size)
  q = one_more(some['draft_probs']) if with_q else None
  nodes = types.chain(jnp.pad(jnp.asarray(x), ((0, 0), (1, 0))),
                      jnp.asarray(n))
  draft = types.Draft(
      nodes, types.Prediction(q, q) if with_q else None,
      jnp.zeros(rows, jnp.int32), 'sampled' if with_q else 'deterministic', k)
  verdict = jax.device_get(jax.jit(jax.vmap(verify.Rejection()))(
      some['keys'], draft, types.Prediction(pi, pi), jnp.asarray(pi)))
  got, count = sample(some), verdict.count
  np.testing.assert_array_equal(sampler.num_accepted(got), count)
  np.testing.assert_array_equal(got[np.arange(rows), count],
                                verdict.next_token)
  kept = np.arange(k) < count[:, None]
  np.testing.assert_array_equal(got[:, :k][kept], x[kept])
  assert set(count.tolist()) == set(range(k + 1))


def test_point_masses_are_one_hot_laws():
  some = case(seed=4)
  given = sample(some, draft_probs=hot(some['draft_token_ids'], 11))
  np.testing.assert_array_equal(sample(some, draft_probs=None), given)


@pytest.mark.parametrize('with_q', [True, False])
def test_greedy_rows_are_accepted_while_they_match(with_q):
  some = case(seed=6, with_q=with_q)
  best = some['target_probs'].argmax(-1)
  got, complete = sample(some, target_probs=hot(best, 11)), 0
  for b, n in enumerate(some['num_draft_tokens']):
    x = some['draft_token_ids'][b, :n]
    same = int(np.cumprod(x == best[b, :n]).sum())
    last = some['bonus_token_ids'][b] if same == n else best[b, same]
    assert got[b].tolist() == [*x[:same], last] + [-1] * (3 - same)
    complete += same == n > 0
  assert 3 < complete < 40


def test_written_out():
  """The docstring's example, and a row whose first draft is refused."""
  p = hot([[1, 0, 2]] * 4, 3)
  got = sampler.rejection_sample(
      p, jnp.ones(4, jnp.int32), None, keys=keys(4),
      draft_token_ids=jnp.array([[1, 2, 0], [1, 0, 0], [0, 0, 0], [2, 0, 2]]),
      num_draft_tokens=jnp.array([2, 2, 0, 3]))
  np.testing.assert_array_equal(got, [
      [1, 0, -1, -1], [1, 0, 1, -1], [1, -1, -1, -1], [1, -1, -1, -1]])
  np.testing.assert_array_equal(sampler.num_accepted(got), [1, 2, 0, 0])


def test_drafts_that_q_excludes():
  """q(x) = 0: accepted iff p(x) > 0; the correction is from (p - q)+."""
  some = case()
  rows, size = len(some['keys']), 11
  p, q = np.zeros((2, rows, 3, size), np.float32)
  p[..., [0, 2, 3]], q[..., [2, 3]] = [1e-6, .5, .499999], [.6, .4]
  run = lambda x: sample(
      some, target_probs=p, draft_probs=q,
      draft_token_ids=np.full((rows, 3), x),
      num_draft_tokens=np.full(rows, 1), bonus_token_ids=np.full(rows, 3))
  assert (run(0)[:, :2] == [0, 3]).all()
  tokens = run(1)
  assert (tokens[:, 1] == -1).all() and set(tokens[:, 0]) <= {0, 3}


@pytest.mark.parametrize('size', [1, 8193])
def test_ids_stay_in_the_vocabulary(size):
  """Mass in the last entry only, none left at all, or NaN everywhere."""
  first, last = (hot([[i]] * 4, size) for i in (0, size - 1))
  run = lambda p, q, x: sample(dict(
      target_probs=p, draft_probs=q, bonus_token_ids=np.zeros(4, int),
      draft_token_ids=np.full((4, 1), x), keys=keys(4)))[:, 0]
  assert (run(last, first, 0) == size - 1).all()
  assert (run(last, None, 0) == size - 1).all()
  assert (run(first, first, size - 1) == 0).all()
  bad = np.full_like(first, np.nan)
  for p, q in ((bad, None), (bad, bad), (first * 0, None), (first, bad)):
    tokens = run(p, q, 0)
    assert ((tokens >= 0) & (tokens < size)).all()


# Independence.


def spoilt(some, width):
  """The same rows, wider, with anything at all beyond the counts."""
  rows, k, size = some['target_probs'].shape
  beyond = np.arange(width) >= some['num_draft_tokens'][:, None]
  wide = lambda x: np.pad(
      x, ((0, 0), (0, width - k)) + ((0, 0),) * (x.ndim - 2))
  ids = np.resize([-1, 2**31 - 1, -2**31, 999], (rows, width))
  noise = np.resize(np.float32([np.nan, np.inf, -1, 7, 0]),
                    (rows, width, size))
  fill = lambda x: np.where(beyond[..., None], noise, wide(x))
  q = some['draft_probs']
  return dict(some, target_probs=fill(some['target_probs']),
              draft_probs=None if q is None else fill(q),
              draft_token_ids=np.where(
                  beyond, ids, wide(some['draft_token_ids'])).astype(np.int32))


@pytest.mark.parametrize('with_q,width,call', [
    (True, 3, sample), (True, 5, sample), (False, 3, sample),
    (False, 5, traced)])
def test_padding_never_changes_a_row(with_q, width, call):
  some = case(seed=9, with_q=with_q)
  want, got = sample(some), call(spoilt(some, width))
  np.testing.assert_array_equal(got[:, :4], want)
  assert (got[:, 4:] == -1).all()


def test_a_row_depends_on_itself_only():
  """Not on its place, its batch mates or how many they are."""
  some = case(seed=12)
  want = sample(some)
  assert len({tuple(row) for row in want}) > 40
  take = lambda rows: {name: x[rows] for name, x in some.items()}
  shuffled = np.random.default_rng(0).permutation(64)
  for rows in (np.arange(64)[::-1], shuffled, np.full(64, 7), np.array([5])):
    np.testing.assert_array_equal(sample(take(rows)), want[rows])
  mates = case(seed=13)
  for row in (0, 7, 63):
    alone = np.arange(64) == row
    mixed = {name: jax.vmap(jnp.where)(alone, some[name], mates[name])
             for name in some if name != 'keys'}
    got = sample(mixed, keys=mates['keys'].at[row].set(some['keys'][row]))
    np.testing.assert_array_equal(got[row], want[row])


def test_keys_are_those_of_the_seeds():
  got = sampler.request_keys([7, 2**32 - 1, 7], [0, 3, 1])
  want = [jax.random.fold_in(jax.random.key(np.uint32(seed)), i)
          for seed, i in ((7, 0), (2**32 - 1, 3), (7, 1))]
  data = jax.random.key_data(got)
  np.testing.assert_array_equal(
      data, [jax.random.key_data(key) for key in want])
  assert len(np.unique(data, axis=0)) == 3
  seeds = jnp.array([7, 0, 9]), jnp.array([1, 2, 3])
  np.testing.assert_array_equal(
      jax.random.key_data(jax.jit(sampler.request_keys)(*seeds)),
      jax.random.key_data(sampler.request_keys(*seeds)))


def test_no_rows_have_no_keys():
  assert sampler.request_keys([], []).shape == (0,)
  with pytest.raises(ValueError, match='seeds is a ragged list'):
    sampler.request_keys([1, [2, 3]], [0, 0])


def test_rounds_of_one_seed_differ():
  some = case()
  same = {name: np.repeat(x[3:4], 64, 0)
          for name, x in some.items() if name != 'keys'}
  same.update(target_probs=np.full((64, 3, 11), 1 / 11, np.float32),
              draft_probs=None)
  run = lambda rounds: sample(same, keys=sampler.request_keys(
      np.full(64, 5), rounds))
  assert len({tuple(row) for row in run(np.arange(64))}) > 5
  assert len({tuple(row) for row in run(np.zeros(64, int))}) == 1


def test_jit_and_vmap_change_nothing():
  some = case()
  want = sample(some)
  np.testing.assert_array_equal(traced(some), want)
  single = lambda row: sampler.rejection_sample(
      **{name: x[None] for name, x in row.items()})[0]
  np.testing.assert_array_equal(jax.vmap(single)(some), want)


def test_other_numbers_compile_nothing():
  some = case()
  sample(some)
  before = sampler._run._cache_size()
  sample(case(seed=1), num_draft_tokens=some['num_draft_tokens'][::-1])
  assert sampler._run._cache_size() == before


def test_no_counts_are_full_counts():
  some = case()
  np.testing.assert_array_equal(
      sample(some, num_draft_tokens=None),
      sample(some, num_draft_tokens=np.full(64, 3)))


@pytest.mark.parametrize('rows,k', [(0, 3), (0, 0), (4, 0)])
@pytest.mark.parametrize('with_q', [True, False])
@pytest.mark.parametrize('call', [sample, traced])
def test_nothing_to_verify(rows, k, with_q, call):
  probs = np.zeros((rows, k, 5), np.float32)
  got = call(dict(
      target_probs=probs, draft_probs=probs if with_q else None,
      bonus_token_ids=np.arange(rows), draft_token_ids=np.zeros((rows, k), int),
      num_draft_tokens=np.zeros(rows, int), keys=keys(rows)))
  assert got.shape == (rows, k + 1) and got.dtype == np.int32
  np.testing.assert_array_equal(got[:, 0], np.arange(rows))
  assert sampler.num_accepted(jnp.asarray(got)).shape == (rows,)
