"""The batched rejection sampler: its law, its decisions, its independence."""
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import sampler, types, verify
from tests.common import p_value

LEVEL = 1e-9
SIZE, WIDTH, ROWS = 3, 2, 3 * 2**17
# p and q of the token at a place after the one before it; with zeros in both.
# Where they are close, rejections are few and a small lenience is loud.
P = np.array([[[.5, .2, .3], [.1, .2, .7], [.6, .4, 0.]],
              [[.2, .5, .3], [0., .1, .9], [.3, .3, .4]],
              [[.7, .1, .2], [.2, .8, 0.], [.1, .3, .6]]])
Q = np.array([[[.53, .24, .23], [.3, .3, .4], [.2, .2, .6]],
              [[.6, .1, .3], [.4, .6, 0.], [.3, .3, .4]]])


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


# The law.


def exact(n, with_q):
  """Joint of what a row with n drafts x_j ~ Q emits; index 0 is padding.

  Written from the formulas, in float64, and sharing nothing with the sampler.
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
        accept, rest = min(1, p[x] / q[x]), np.maximum(p - q, 0)
      else:
        accept, rest = p[x], np.where(np.arange(SIZE) == x, 0, p)
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
  """p-value of the joint of count and tokens."""
  arguments, row = drafted(), np.arange(ROWS)
  if not with_q:
    arguments = {**arguments, 'draft_probs': None}
  same = np.full(ROWS, 9)
  own = sampler.request_keys(*((row, same) if seeds else (same, row)))
  tokens = np.asarray(run(**arguments, keys=own))
  assert tokens.shape == (ROWS, WIDTH + 1) and tokens.dtype == np.int32
  counts = np.zeros((WIDTH + 1,) + (SIZE + 1,) * (WIDTH + 1))
  np.add.at(counts, (row % (WIDTH + 1), *(tokens.T + 1)), 1)
  return p_value(counts, np.stack(
      [exact(n, with_q) for n in range(WIDTH + 1)]))


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


# Traced numbers out of range, and input that is refused.


@pytest.mark.parametrize('with_q', [True, False])
def test_a_traced_id_out_of_range_ends_the_drafts(with_q):
  """The next token is from p there: here one-hot, and where q has its mass.

  An id clipped into range would be accepted, at either end.
  """
  best, bad = np.array([0, 10, 0]), np.array([-1, 11, 2**31 - 1, -2**31])
  at, ids = np.arange(64) % 3, np.tile(best, (64, 1))
  ids[np.arange(64), at] = bad[np.arange(64) % 4]
  one_hot = hot(np.tile(best, (64, 1)), 11)
  got = traced(case(), target_probs=one_hot, num_draft_tokens=np.full(64, 3),
               draft_probs=one_hot if with_q else None,
               draft_token_ids=ids.astype(np.int32))
  for row, end in zip(got, at):
    assert row.tolist() == [*best[:end + 1]] + [-1] * (3 - end)


def test_a_traced_bonus_token_is_emitted_as_given():
  """So rows that only fill up a batch, of bonus token -1, emit nothing."""
  some = case()
  got = traced(some, bonus_token_ids=np.full(64, -1),
               num_draft_tokens=np.zeros(64, np.int32))
  assert (got == -1).all() and (sampler.num_accepted(got) == 0).all()


def test_wide_ids_are_not_wrapped():
  """2**32 + 5 is 5 in 32 bits, and was never drafted."""
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    run = lambda x: traced(dict(
        target_probs=hot([[4, 5]], 11), bonus_token_ids=np.array([1]),
        draft_probs=None, draft_token_ids=np.array([[4, x]]),
        keys=keys(1))).tolist()
    assert run(5) == [[4, 5, 1]]
    assert run(2**32 + 5) == [[4, 5, -1]]


def test_traced_counts_are_clipped():
  some = case()
  for count, clipped in ((99, 3), (-5, 0)):
    np.testing.assert_array_equal(
        traced(some, num_draft_tokens=np.full(64, count)),
        sample(some, num_draft_tokens=np.full(64, clipped)))


def one_line(call, match, *arguments, **named):
  before = sampler._run._cache_size()
  with pytest.raises(ValueError, match=match) as error:
    call(*arguments, **named)
  assert '\n' not in str(error.value)
  assert sampler._run._cache_size() == before


@pytest.mark.parametrize('name,value,match', [
    ('target_probs', jnp.zeros((6, 11)),
     r'target_probs is float32 \[6, 11\]; allowed: float32 \[B, K, V\] with'),
    ('target_probs', jnp.zeros((6, 3, 0)), r'\[6, 3, 0\]; .* V of 1 or more'),
    ('target_probs', jnp.zeros((6, 3, 11), jnp.bfloat16),
     'target_probs is bfloat16.*Give float32 probabilities'),
    ('target_probs', jnp.zeros((6, 4, 11)), r'allowed: float32 \[6, 4, 11\]'),
    ('draft_probs', jnp.zeros((6, 3, 12)),
     r'draft_probs is float32 \[6, 3, 12\]; allowed: float32 \[6, 3, 11\]'),
    ('draft_probs', jnp.zeros((6, 3, 11), jnp.float16), 'probs is float16'),
    ('bonus_token_ids', np.zeros((6, 1), int),
     r'bonus_token_ids is int64 \[6, 1\]; allowed: int32 or int64 \[6\]. Give'),
    ('bonus_token_ids', np.zeros(6), 'bonus_token_ids is float64'),
    ('draft_token_ids', np.zeros((6, 4), int), r'\[6, 4\]; .* \[6, 3\]. Pad'),
    ('draft_token_ids', np.zeros((6, 3), bool), 'draft_token_ids is bool'),
    ('draft_token_ids', np.zeros((6, 3), np.float32), 'is float32'),
    ('num_draft_tokens', np.zeros(5, int), 'one count per row, or None for K'),
    ('num_draft_tokens', np.zeros(6), 'num_draft_tokens is float64'),
    ('keys', jnp.zeros((6, 2), jnp.uint32),
     r'keys is uint32 \[6, 2\]; allowed: keys \[6\]. Make them with request_k'),
    ('keys', keys(5), r'keys is key<fry> \[5\]; allowed: keys \[6\]'),
    ('keys', keys(1)[0], r'keys is key<fry> \[\]')])
def test_shapes_and_dtypes_are_refused(name, value, match):
  """Also at trace time, where there are no numbers to look at."""
  some = {**case(6), name: value}
  one_line(sampler.rejection_sample, match, **some)
  abstract = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, some))
  if jax.tree.map(lambda x: x.dtype, abstract[name]) == value.dtype:
    one_line(jax.eval_shape, match,
             lambda some: sampler.rejection_sample(**some), abstract)


@pytest.mark.parametrize('name,place,value,match', [
    ('bonus_token_ids', 2, 11, 'bonus_token_ids is 11 in row 2; .*: 0 to 10.'),
    ('bonus_token_ids', 2, -1, 'bonus_token_ids is -1 in row 2'),
    ('draft_token_ids', (2, 1), 11, 'draft_token_ids is 11 in row 2; allowed'),
    ('draft_token_ids', (5, 0), -1, 'draft_token_ids is -1 in row 5'),
    ('num_draft_tokens', 1, 4, 'num_draft_tokens is 4 in row 1; .*: 0 to 3.'),
    ('num_draft_tokens', 1, -1, 'num_draft_tokens is -1 in row 1')])
def test_concrete_numbers_out_of_range_are_refused(name, place, value, match):
  some = case(6)
  some[name][place] = value
  one_line(sampler.rejection_sample, match, **some)
  one_line(sampler.rejection_sample, match,
           **{**some, name: jnp.asarray(some[name])})


def test_wide_concrete_ids_are_refused():
  """Before NumPy's 64 bits become 32."""
  some = case(6)
  some['draft_token_ids'] = some['draft_token_ids'].astype(np.int64)
  some['draft_token_ids'][2, 1] += 2**32
  one_line(sampler.rejection_sample, 'draft_token_ids is 42949', **some)


@pytest.mark.parametrize('seeds,rounds,match', [
    (3, 0, r'seeds is int64 \[\]; allowed: int32, int64 or uint32 \[B\]'),
    ([1, 2], [0], r'rounds is int64 \[1\]; .* \[2\]. Count the calls'),
    ([[1], [2]], [[0], [0]], r'seeds is int64 \[2, 1\]; .* \[2\]'),
    ([1., 2.], [0, 0], 'seeds is float64'),
    ([1, -2], [0, 0], 'seeds is -2 in row 1; allowed: 0 to 4.29497e.09. Give'),
    ([1, 2**32], [0, 0], 'seeds is 4294967296 in row 1'),
    ([1, 2], [0, -1], 'rounds is -1 in row 1')])
def test_seeds_are_refused(seeds, rounds, match):
  one_line(sampler.request_keys, match, seeds, rounds)
