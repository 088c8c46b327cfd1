"""Lookahead decoding: n-grams of Jacobi trajectories, verified beside them."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key
import numpy as np

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.stateless import Stateless


@struct.dataclass
class Pool:
  """What lives from round to round."""
  levels: Int[Array, 'B K W']      # trajectories of W guesses, the oldest first
  grams: Int[Array, 'B P K1']      # a ring of n-grams, K1 = K + 1 tokens each
  filled: Int[Array, 'B']          # n-grams ever written


@struct.dataclass
class Lookahead(Stateless):
  """Verifies pooled n-grams while the same pass makes new ones.

  The window holds order - 1 trajectories of `window` guesses. Guess i of
  trajectory j is at position 1 + i + j behind the root and sees the first i + 1
  guesses of the oldest trajectory, then one guess of each later one. What p
  ranks first behind the newest trajectory completes `window` n-grams, which go
  to a ring of `pool` n-grams a row, and is the next trajectory. Up to `guesses`
  pooled n-grams that begin with the root, the newest first, are the draft.
  Parameters are n-grams [M, N] that the pool begins with, see `commonest`, or
  None.

  Attributes:
    vocab_size: Of the verifier; the first trajectories are random tokens.
    window: W, guesses of a trajectory.
    order: N, tokens of an n-gram; N - 1 can be drafted.
    guesses: G, n-grams that are verified a round.
    pool: n-grams that are kept for each row.

  Reference: Fu et al. (2024), https://arxiv.org/abs/2402.02057
  """
  vocab_size: int = struct.field(pytree_node=False)
  window: int = struct.field(pytree_node=False, default=7)
  order: int = struct.field(pytree_node=False, default=4)
  guesses: int = struct.field(pytree_node=False, default=7)
  pool: int = struct.field(pytree_node=False, default=128)

  def __post_init__(self):
    for name, low in (('vocab_size', 1), ('window', 1), ('order', 2),
                      ('guesses', 1), ('pool', 1)):
      check.interval(f'{name} of Lookahead', getattr(self, name), low, 2**31,
                     whole=True, hint='It is a count.')
    check.interval('pool of Lookahead', self.pool, self.window, 2**31,
                   hint='A round adds `window` n-grams.')

  @property
  def num_nodes(self) -> int:
    """The root, the n-grams that are verified, and the window."""
    return 1 + (self.order - 1) * (self.guesses + self.window)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Pool:
    """Random trajectories, the same for every row, and the pool."""
    del hidden, capacity
    rows, shape = len(prompt.prefix), (self.order - 1, self.window)
    guesses = jax.random.randint(jax.random.key(0), shape, 0, self.vocab_size)
    grams, known = jnp.zeros((rows, self.pool, self.order), jnp.int32), 0
    if params is not None:
      known = len(params)
      if params.shape[1:] != (self.order,) or known > self.pool:
        raise ValueError(f'Got n-grams of shape {params.shape}; allowed: up to '
                         f'{self.pool} of {self.order} tokens each.')
      grams = grams.at[:, :known].set(params)
    return Pool(jnp.broadcast_to(guesses, (rows, *shape)), grams,
                jnp.full(rows, known, jnp.int32))

  def propose(self, params: Any, state: Pool, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A trie of pooled n-grams; the window follows, as scratch."""
    del params, keys
    grams, found = jax.vmap(self.after)(state, ctx.root)
    tried = types.branches(ctx.root, grams, found * (self.order - 1),
                           1 + (self.order - 1) * self.guesses)
    nodes = self._beside(tried, state.levels.reshape(len(grams), -1))
    draft = types.Draft(
        nodes, None, jnp.zeros_like(ctx.lengths), 'deterministic',
        self.order - 1, full=False, scratch=state.levels[0].size)
    return draft, state

  def observe(self, params: Any, state: Pool,
              feedback: types.Feedback) -> Pool:
    """Files the n-grams that the newest trajectory has completed."""
    del params
    new = jnp.argmax(feedback.logits[:, -self.window:], -1).astype(jnp.int32)
    levels = jnp.concatenate([state.levels, new[:, None]], 1)   # [B, N, W]
    live = types.rows(feedback.live, levels)
    state = state.replace(levels=jnp.where(live, levels[:, 1:], state.levels))
    return self.filed(state, levels.swapaxes(1, 2), feedback.live)

  def filed(self, state: Pool, grams: Int[Array, 'B M N'],
            live: Bool[Array, 'B']) -> Pool:
    """Puts n-grams into the rings of live rows, the last one as the newest."""
    count = grams.shape[1]
    at = (state.filled[:, None] + jnp.arange(count)[None]) % self.pool
    at = jnp.where(live[:, None], at, self.pool)
    put = jax.vmap(lambda ring, i, some: ring.at[i].set(some, mode='drop'))
    return state.replace(grams=put(state.grams, at, grams),
                         filled=state.filled + jnp.where(live, count, 0))

  def after(self, state: Pool, root: Int[Array, '']
            ) -> tuple[Int[Array, 'G N1'], Int[Array, 'G']]:
    """One row's continuations of a token, the newest first, and which are."""
    age = (state.filled - 1 - jnp.arange(self.pool)) % self.pool
    known = (state.grams[:, 0] == root) & (age < state.filled)
    same = (state.grams[:, None] == state.grams[None]).all(-1) & known[None]
    known &= ~(same & (age[None] < age[:, None])).any(1)  # no newer one is it
    newest, at = jax.lax.top_k(jnp.where(known, self.pool - age, 0),
                               min(self.guesses, self.pool))
    grams, found = state.grams[at, 1:], (newest > 0).astype(jnp.int32)
    more = self.guesses - len(at)
    return jnp.pad(grams, ((0, more), (0, 0))), jnp.pad(found, (0, more))

  def _beside(self, tree, window):
    """The tree with the window behind it, which sees the root and itself."""
    b, n = tree.tokens.shape
    level, i = np.divmod(np.arange(window.shape[1]), self.window)
    sees = ((level == 0) & (i <= i[:, None])) | (
        (i == i[:, None]) & (level <= level[:, None]))
    spread = lambda x: jnp.broadcast_to(jnp.asarray(x), (b, *x.shape))
    behind = jnp.zeros((b, len(i), n), bool).at[:, :, 0].set(True)
    mask = jnp.concatenate([
        jnp.pad(tree.mask, ((0, 0), (0, 0), (0, len(i)))),
        jnp.concatenate([behind, spread(sees)], 2)], 1)
    add = lambda x, more: jnp.concatenate([x, more], 1)
    return types.TokenTree(
        add(tree.tokens, window), add(tree.parents, jnp.full_like(window, -1)),
        add(tree.depth, spread(1 + i + level)), mask)


def commonest(tokens: Array | np.ndarray, order: int, count: int
              ) -> Int[Array, 'M N']:
  """The n-grams that a text has most often, on the host: a pool to begin with.

  The commonest comes last: it is found first, and gives way last.

  Args:
    tokens: Of the text.
    order: N.
    count: n-grams, fewer if there are no more.

  Raises:
    ValueError: The text is shorter than an n-gram.
  """
  tokens = np.asarray(tokens)
  if tokens.ndim != 1 or len(tokens) < order:
    raise ValueError(f'Tokens of shape {tokens.shape}; allowed: a row of at '
                     f'least {order}, for one n-gram.')
  grams, times = np.unique(np.lib.stride_tricks.sliding_window_view(
      tokens, order), axis=0, return_counts=True)
  last = np.argsort(times, kind='stable')[-count:]
  return jnp.asarray(grams[last], jnp.int32)
