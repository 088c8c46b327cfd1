"""Token Recycling: a tree of what the verifier ranked behind each token."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters.stateless import Stateless


@struct.dataclass
class Recycling(Stateless):
  """Looks up a static tree in the verifier's latest best successors.

  An adjacency matrix [V, k] has for each token the k best next tokens, best
  first, of the last time that the verifier scored it, accepted or not.
  Branching (3, 2): three successors of the root, and the two best of each.
  Every row has a matrix of its own. Parameters are the matrix that all rows
  begin with, such as a row of an earlier state, or None.

  Attributes:
    vocab_size: Of the verifier, V.
    branching: Children of each node, depth by depth; k is the largest.

  Reference: Luo et al. (2024), secs. 3.1 to 3.3 and Alg. 1 (of v1),
    https://arxiv.org/abs/2408.08696
  """
  vocab_size: int = struct.field(pytree_node=False)
  branching: tuple[int, ...] = struct.field(pytree_node=False,
                                            default=(4, 2, 1))

  def __post_init__(self):
    check.gamma(len(self.branching))
    for most in self.branching:
      check.interval('branching of Recycling', most, 1, self.vocab_size,
                     whole=True, hint='It counts the children of a node.')

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return len(self._parents)

  @property
  def _parents(self) -> tuple[int, ...]:
    parents, level = [-1], [0]
    for most in self.branching:
      above = [node for node in level for _ in range(most)]
      level = range(len(parents), len(parents) + len(above))
      parents += above
    return tuple(parents)

  def init(self, params: Int[Array, 'V K'] | None, prompt: types.Prompt,
           hidden: Any, capacity: int) -> Int[Array, 'B V K']:
    """The given matrix; without one the first k tokens behind every token."""
    del hidden, capacity
    shape = self.vocab_size, max(self.branching)
    if params is None:
      params = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    if params.shape != shape or params.dtype != jnp.int32:
      raise ValueError(f'A matrix {params.dtype}{list(params.shape)} for '
                       f'Recycling; allowed: int32{list(shape)}.')
    return jnp.broadcast_to(params, (len(prompt.prefix), *shape))

  def propose(self, params: Any, state: Int[Array, 'B V K'],
              ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A deterministic tree, breadth-first."""
    del params, keys
    levels = [ctx.root[:, None]]
    for most in self.branching:
      best = types.pick(state, levels[-1])[..., :most]
      levels.append(best.reshape(len(best), -1))
    nodes = types.tree(jnp.concatenate(levels, 1), self._parents)
    return types.Draft(nodes, None, jnp.zeros_like(ctx.lengths),
                       'deterministic', len(self.branching)), state

  def observe(self, params: Any, state: Int[Array, 'B V K'],
              feedback: types.Feedback) -> Int[Array, 'B V K']:
    """Rows of all scored tokens; of a token's several nodes, the last."""
    del params
    check.own_vocabulary(self, feedback)
    tokens = feedback.draft.tree.tokens
    best = jax.lax.top_k(feedback.logits, state.shape[-1])[1]
    again = jnp.triu(tokens[:, :, None] == tokens[:, None], 1).any(-1)
    kept = feedback.live[:, None] & ~again
    put = lambda matrix, at, new: matrix.at[at].set(new, mode='drop')
    return jax.vmap(put)(state, jnp.where(kept, tokens, self.vocab_size), best)
