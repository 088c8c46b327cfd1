"""SPACE: masks behind every candidate, so that a pass judges and drafts."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import masked
from spec_cascades.drafters.line import Line
from spec_cascades.models import masks as masks_lib


@struct.dataclass
class Guessed:
  """Logits of the next draft's laws, in rows that have read masks."""
  logits: Float[Array, 'B K V']
  known: Bool[Array, 'B']


@struct.dataclass
class Space(Line, struct.Fixed):
  """Draws from masks that stood behind the last accepted candidate.

  The verifying pass also reads a group of K masks behind the root and behind
  each candidate, K being `length`, or one more if there are so many: (length +
  1) K scratch nodes. A group sees its candidate's path and itself. The group
  behind the node where a verdict ends predicts what follows the token that the
  verdict adds, so it is the law of the next draft, whatever was accepted: one
  pass a round. Masks don't see that token itself. A row's first draft is read
  as PaSS does, in a pass of its own that counts as the drafter's.

  q at depth d is the law of mask d + 1; it is carried from round to round, and
  drafts are draws from it, independent of each other. So every rule works where
  the leaf has a mask, too (`length` below the number of masks), and every
  verifier that takes chains.

  Attributes:
    masks: A `models.masks.Masked` around the verifier; parameters are what it
      packs.
    length: Tokens of a draft, at most as many as there are masks.

  Reference: Yi et al. (2024), fig. 2, https://arxiv.org/abs/2402.11809
  """
  masks: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)

  def __post_init__(self):
    check.gamma(self.length)
    masked.room(self, self.length)

  @property
  def count(self) -> int:
    """Masks of a group, K."""
    return min(self.masks.heads.count, self.length + 1)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts, and the masks behind each."""
    return (self.length + 1) * (1 + self.count)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Guessed:
    """Nothing is known yet."""
    del hidden, capacity
    check.own_params(self, params)
    rows = len(prompt.prefix)
    return Guessed(jnp.zeros((rows, self.count, self.masks.vocab_size)),
                   jnp.zeros(rows, bool))

  def propose(self, params: Any, state: Guessed, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, q, and masks as scratch."""
    masked.room(self, self.length + ctx.leaf_q)

    def read():
      found = self.masks.first(params, ctx.target_cache, ctx.root,
                               self.count - 1)
      return jnp.where(state.known[:, None, None], state.logits, found)

    logits = jax.lax.cond(state.known.all(), lambda: state.logits, read)
    draft = masked.drawn(ctx.root, ctx.warp(logits), keys, self.length)
    rows, groups = len(ctx.root), self.length + 1
    nodes = masks_lib.grouped(draft.tree, self.masks.embedded(
        params, rows, groups, self.count), self.count)
    return draft.replace(
        tree=nodes, scratch=groups * self.count,
        calls=(~state.known).astype(jnp.int32)), state

  def observe(self, params: Any, state: Guessed,
              feedback: types.Feedback) -> Guessed:
    """The laws of the group behind the last accepted node."""
    del params
    groups, size = self.length + 1, feedback.logits.shape[-1]
    said = feedback.logits[:, groups:].reshape(-1, groups, self.count, size)
    new = types.pick(said, feedback.verdict.count)
    live = feedback.live
    return Guessed(jnp.where(live[:, None, None], new, state.logits),
                   jnp.ones_like(state.known))      # or for good out of use
