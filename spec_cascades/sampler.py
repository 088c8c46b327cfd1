"""Rejection sampling for engines that keep their own decode loop.

One call verifies the drafts of a whole batch, ragged counts and all; nothing
but the two models' probabilities and token ids is needed of the engine:

    keys = request_keys(seeds, rounds)
    tokens = rejection_sample(
        target_probs, bonus_token_ids, draft_probs,
        draft_token_ids=draft_token_ids, num_draft_tokens=num_draft_tokens,
        keys=keys)

Axis letters: B rows, K drafted tokens per row, V vocabulary.
"""
from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
import numpy as np

from spec_cascades import check, types, verify
from spec_cascades.warp import sample

PADDING = -1                         # what follows the last token of a row
IDS = ('int32', 'int64')


def rejection_sample(
    target_probs: Float[Array | np.ndarray, 'B K V'],
    bonus_token_ids: Int[Array | np.ndarray, 'B'],
    draft_probs: Float[Array | np.ndarray, 'B K V'] | None = None, *,
    draft_token_ids: Int[Array | np.ndarray, 'B K'],
    num_draft_tokens: Int[Array | np.ndarray, 'B'] | None = None,
    keys: Key[Array, 'B']) -> Int[Array, 'B K+1']:
  """The tokens that follow from a row's drafts, distributed as the target's.

  Draft x with law q is accepted with probability min(1, p(x) / q(x)). A row
  emits its accepted drafts and one token more: from norm((p - q)+) at the first
  rejection, the bonus token if there was none. For one row and V = 3:

      target_probs  [[0, 1, 0], [1, 0, 0], [0, 0, 1]],  bonus 1
      drafts        1 2 .  of 2:    1  0 -1 -1    2 is rejected and corrected
      drafts        1 0 .  of 2:    1  0  1 -1    the bonus token
      drafts        . . .  of 0:    1 -1 -1 -1    the bonus token alone

  Equals `verify.Rejection`, draw for draw. A row's tokens depend on the row and
  its key only, not on its place, its batch mates or K (threefry keys). Draws
  are exact if q is the law that the drafts were drawn from, in float32 and
  after its temperature and truncation, and if the bonus token is drawn from p
  after the last draft. p may be any pi = T(q, p), see `targets`.

  Greedy rows are one-hot rows of p: a draft is accepted iff it is the argmax. A
  draft with q(x) = 0 cannot have come from q; it is accepted iff p(x) > 0.
  What lies beyond a row's count (NaN, -1, any id) is never looked at.
  Probabilities are taken as they are: a NaN yields some token below V.

  Args:
    target_probs: float32 [B, K, V], p at each drafted token, each row sums
      to 1.
    bonus_token_ids: int32 or int64 [B], emitted as given.
    draft_probs: float32 [B, K, V], q at each drafted token. None for drafts
      that were not sampled, such as n-grams: x is accepted with probability
      p(x), and corrected from p with x removed.
    draft_token_ids: int32 or int64 [B, K].
    num_draft_tokens: int32 or int64 [B], how many of the K are drafts; None
      for all.
    keys: One key per row, see `request_keys`; consumed.

  Returns:
    int32 [B, K + 1]; -1 after a row's last token.

  Raises:
    ValueError: A shape or dtype is wrong, also while tracing; or, where they
      are concrete, an id is outside [0, V) or a count outside [0, K]. Traced
      counts are clipped, and a traced id outside [0, V) ends its row's drafts:
      the next token is from p there.

  Reference: Leviathan et al. (2023), https://arxiv.org/abs/2211.17192
  """
  given = dict(target_probs=target_probs, bonus_token_ids=bonus_token_ids,
               draft_probs=draft_probs, draft_token_ids=draft_token_ids,
               num_draft_tokens=num_draft_tokens, keys=keys)
  for name, x in given.items():
    optional = name in ('draft_probs', 'num_draft_tokens')
    if not hasattr(x, 'shape') and not (x is None and optional):
      raise ValueError(f'{name} is a {type(x).__name__}; allowed: an array'
                       f'{" or None" if optional else ""}.')
  _check_shapes(target_probs, bonus_token_ids, draft_probs, draft_token_ids,
                num_draft_tokens, keys)
  b, k, v = target_probs.shape
  if num_draft_tokens is None:
    num_draft_tokens = np.full(b, k, np.int32)
  _check_numbers(bonus_token_ids, draft_token_ids, num_draft_tokens, k, v)
  return _run(target_probs, bonus_token_ids, draft_probs, draft_token_ids,
              num_draft_tokens, keys)


def request_keys(seeds: Int[Array | np.ndarray, 'B'] | Sequence[int],
                 rounds: Int[Array | np.ndarray, 'B'] | Sequence[int]
                 ) -> Key[Array, 'B']:
  """Keys from each row's own seed: fold_in(key(seeds[b]), rounds[b]).

  The same wherever a row is in its batch. `rounds` counts a row's calls: a key
  used twice repeats its draws, so drafts and bonus tokens need other keys.

  Args:
    seeds: Integers [B], 0 to 2**32 - 1.
    rounds: Integers [B], 0 to 2**32 - 1.

  Raises:
    ValueError: A shape or dtype is wrong, or a concrete number out of range.
  """
  seeds, rounds = _integers('seeds', seeds), _integers('rounds', rounds)
  for name, x, shape, hint in (
      ('seeds', seeds, seeds.shape[:1] or ('B',),
       'Give every row its seed; hash longer ones.'),
      ('rounds', rounds, seeds.shape, 'Count the calls of every row.')):
    if x.shape != shape or x.dtype.name not in (*IDS, 'uint32'):
      size = ', '.join(map(str, shape))
      raise ValueError(f'{name} is {_kind(x)}; allowed: int32, int64 or uint32 '
                       f'[{size}]. {hint}')
    if _concrete(x):
      check.interval(name, x, 0, 2**32 - 1, hint=hint)
  fold = lambda seed, i: jax.random.fold_in(jax.random.key(seed), i)
  return jax.vmap(fold)(jnp.asarray(seeds, jnp.uint32),
                        jnp.asarray(rounds, jnp.uint32))


def num_accepted(tokens: Int[Array, 'B K+1']) -> Int[Array, 'B']:
  """How many drafts each row of `rejection_sample`'s tokens accepted."""
  return jnp.maximum((tokens >= 0).sum(-1, dtype=jnp.int32) - 1, 0)


@jax.jit
def _run(pi, bonus, q, ids, counts, keys):
  """`rejection_sample` without its checks."""
  b, k, v = pi.shape
  bonus = bonus.astype(jnp.int32)
  if not b * k:
    return jnp.broadcast_to(bonus[:, None], (b, k + 1))
  counts = jnp.clip(counts, 0, k).astype(jnp.int32)
  place = jnp.arange(k + 1, dtype=jnp.int32)[None]
  known = (ids >= 0) & (ids < v)
  ids = jnp.where(known, ids, 0).astype(jnp.int32)
  draft = _chain(ids, known & (place[:, :-1] < counts[:, None]), q)
  accepted, corrected = jax.vmap(_verify)(keys, draft, pi)
  last = jnp.where(accepted == counts, bonus, corrected)[:, None]
  tail = jnp.where(place == accepted[:, None], last, PADDING)
  return jnp.where(place < accepted[:, None],
                   jnp.pad(ids, ((0, 0), (0, 1))), tail)


def _chain(ids, proposed, q):
  """The drafts below a root; what is not `proposed` [B, K] is no candidate."""
  b, k = ids.shape
  below_root = lambda x: jnp.pad(x, ((0, 0), (1, 0)))
  nodes = types.chain(below_root(ids))
  nodes = nodes.replace(
      parents=jnp.where(below_root(proposed), nodes.parents, -1))
  law = 'deterministic' if q is None else 'sampled'
  prediction = None if q is None else types.Prediction(jnp.log(q), q)
  return types.Draft(nodes, prediction, jnp.zeros(b, jnp.int32), law, k)


def _verify(key, draft, pi):
  """`verify.Rejection` of one row, spared the row of pi below its last draft.

  That row is a bonus token here, and [B, K, V] need not be copied to append it;
  what is drawn in its place is not used.
  """
  key_accept, key_next = jax.random.split(key)
  uniform = jax.random.uniform(key_accept, (len(pi) + 1,))[1:]
  of_pi, of_law = verify.drawn(draft, pi)
  count = verify.leading(draft, uniform * of_law < of_pi)
  left = verify.left_after(draft, pi, jnp.minimum(count, len(pi) - 1))
  return count, sample(left, key_next)


def _check_shapes(pi, bonus, q, ids, counts, keys):
  """Refuses arrays that do not fit together; looks at no contents."""
  if np.ndim(pi) != 3 or not pi.shape[2] or pi.dtype.name != 'float32':
    raise ValueError(f'target_probs is {_kind(pi)}; allowed: float32 [B, K, V] '
                     'with V of 1 or more. Give float32 probabilities of the '
                     'next token at each of K drafts.')
  b, k, v = pi.shape
  for name, x, dtypes, shape, hint in (
      ('bonus_token_ids', bonus, IDS, (b,), 'Give one id per row.'),
      ('draft_probs', q, ('float32',), (b, k, v),
       'Give what the drafts were drawn from, in float32, or None for drafts '
       'that were not sampled.'),
      ('draft_token_ids', ids, IDS, (b, k), 'Pad every row to K ids.'),
      ('num_draft_tokens', counts, IDS, (b,),
       'Give one count per row, or None for K.')):
    if x is not None and (x.shape != shape or x.dtype.name not in dtypes):
      raise ValueError(f'{name} is {_kind(x)}; allowed: {" or ".join(dtypes)} '
                       f'{list(shape)}. {hint}')
  if (keys.shape != (b,)
      or not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)):
    raise ValueError(f'keys is {_kind(keys)}; allowed: keys [{b}]. Make them '
                     'with request_keys, or wrap raw ones with '
                     'jax.random.wrap_key_data.')


def _check_numbers(bonus, ids, counts, k, v):
  """Refuses ids and counts out of range, as far as they are concrete."""
  share = 'Check that both models share a vocabulary.'
  if _concrete(bonus):
    check.interval('bonus_token_ids', bonus, 0, v - 1, hint=share)
  if _concrete(counts):
    check.interval('num_draft_tokens', counts, 0, k,
                   hint='Count the drafts of a row, without its padding.')
    if _concrete(ids):
      drafted = np.arange(k)[None] < np.asarray(counts)[:, None]
      check.interval('draft_token_ids', np.where(drafted, ids, 0), 0, v - 1,
                     hint=share)


def _integers(name, x):
  """An array; an empty list is one of integers."""
  if isinstance(x, jax.Array):
    return x
  try:
    array = np.asarray(x)
  except ValueError as error:
    raise ValueError(f'{name} is a ragged list; allowed: one integer per '
                     'row.') from error
  return array if array.size else array.astype(np.int32)


def _concrete(x) -> bool:
  return not isinstance(x, jax.core.Tracer)


def _kind(x) -> str:
  return f'{x.dtype} {list(x.shape)}'
