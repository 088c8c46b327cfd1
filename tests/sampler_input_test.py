"""The batched rejection sampler on numbers out of range and bad arguments."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import sampler
from tests.batches import case, hot, keys, sample, traced


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


@pytest.mark.parametrize('name', [
    'target_probs', 'bonus_token_ids', 'draft_probs', 'draft_token_ids',
    'num_draft_tokens', 'keys'])
def test_what_is_no_array_is_refused(name):
  some = case()
  some[name] = [1, 2]
  with pytest.raises(ValueError, match=f'{name} is a list; allowed: an array'):
    sampler.rejection_sample(**some)
