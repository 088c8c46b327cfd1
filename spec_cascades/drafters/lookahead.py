"""Lookahead decoding: n-grams of Jacobi trajectories, verified beside them."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key
import numpy as np

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import phrases
from spec_cascades.drafters.stateless import Stateless


@struct.dataclass
class Pool:
  """What lives from round to round."""
  levels: Int[Array, 'B K W']      # trajectories of W guesses, the oldest first
  ring: phrases.Ring               # n-grams of N = K + 1 tokens


@struct.dataclass
class Lookahead(Stateless):
  """Verifies pooled n-grams while the same pass makes new ones.

  The window holds order - 1 trajectories of `window` guesses. Guess i of
  trajectory j is at position 1 + i + j behind the root and sees the first i + 1
  guesses of the oldest trajectory, then one guess of each later one. What p
  ranks first behind the newest trajectory completes `window` n-grams, which go
  to a ring of `pool` n-grams a row, and is the next trajectory. Up to `guesses`
  pooled n-grams that begin with the root, the newest first, are the draft.
  Parameters are n-grams [M, N] that the pool begins with, or None: see
  `phrases.commonest`.

  Attributes:
    vocab_size: Of the verifier; the first trajectories are random tokens.
    window: W, guesses of a trajectory.
    order: N, tokens of an n-gram; N - 1 can be drafted.
    guesses: G, n-grams that are verified a round.
    pool: n-grams that are kept for each row.

  Reference: Fu et al. (2024), secs. 3.1 and 3.2,
    https://arxiv.org/abs/2402.02057
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
    return Pool(jnp.broadcast_to(guesses, (rows, *shape)),
                phrases.ring(params, rows, self.pool, self.order))

  def propose(self, params: Any, state: Pool, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A trie of pooled n-grams; the window follows, as scratch."""
    del params, keys
    tried = types.branches(
        ctx.root, *state.ring.after(ctx.root, self.guesses),
        1 + (self.order - 1) * self.guesses)
    nodes = self._beside(tried, state.levels.reshape(len(ctx.root), -1))
    draft = types.Draft(
        nodes, None, jnp.zeros_like(ctx.lengths), 'deterministic',
        self.order - 1, full=False, scratch=state.levels[0].size)
    return draft, state

  def observe(self, params: Any, state: Pool,
              feedback: types.Feedback) -> Pool:
    """Files the n-grams that the newest trajectory has completed."""
    del params
    check.own_vocabulary(self, feedback)
    new = warp_lib.argmax(feedback.logits[:, -self.window:])
    levels = jnp.concatenate([state.levels, new[:, None]], 1)   # [B, N, W]
    live = types.rows(feedback.live, levels)
    return Pool(jnp.where(live, levels[:, 1:], state.levels),
                state.ring.filed(levels.swapaxes(1, 2), feedback.live))

  def _beside(self, tree, window):
    """The tree with the window behind it, which sees the root and itself."""
    n, m = tree.tokens.shape[1], window.shape[1]
    level, i = np.divmod(np.arange(m), self.window)
    sees = np.zeros((m, n + m), bool)
    sees[:, 0] = True
    sees[:, n:] = ((level == 0) & (i <= i[:, None])) | (
        (i == i[:, None]) & (level <= level[:, None]))
    add = lambda x, more: jnp.concatenate(
        [x, jnp.broadcast_to(jnp.asarray(more), (len(x), *more.shape))], 1)
    return types.TokenTree(
        jnp.concatenate([tree.tokens, window], 1),
        add(tree.parents, np.full(m, -1)), add(tree.depth, 1 + i + level),
        add(jnp.pad(tree.mask, ((0, 0), (0, 0), (0, m))), sees))
