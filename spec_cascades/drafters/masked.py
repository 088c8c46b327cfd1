"""For drafts from a verifier's mask tokens; PaSS, which reads them alone."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.line import Line
from spec_cascades.drafters.stateless import Reading


def drawn(root: Int[Array, 'B'], q: types.Prediction, keys: Key[Array, 'B'],
          length: int) -> types.Draft:
  """A chain of `length` draws, node n + 1 from row n of q, independently.

  Args:
    root: The last committed token.
    q: Of `length` nodes or one more, [B, M, V]; a leaf without q gets zeros.
    keys: Of the rows.
    length: Draws.
  """
  fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
  tokens = jax.vmap(jax.vmap(warp_lib.sample))(
      q.probs[:, :length], fold(keys, jnp.arange(length)))
  more = length + 1 - q.probs.shape[1]
  q = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, more), (0, 0))), q)
  return types.Draft(
      types.chain(jnp.concatenate([root[:, None], tokens], 1)), q,
      jnp.ones_like(root), max_depth=length)


@struct.dataclass
class PaSS(Line, Reading):
  """A pass of the verifier drafts, with masks behind the root; the next judges.

  Parallel speculative sampling: the drafting pass reads the root and
  `length` - 1 masks, which see the text up to the root and nothing of any
  draft. The first drafted token is drawn from the verifier's own prediction p
  at the root, the others from the masks'. As published, a round takes two
  passes of the verifier, one of which counts as the drafter's; it yields the
  first token (which lossless rejection accepts, to rounding), then what is
  accepted of the others, then a correction or a bonus. The published algorithm
  commits the first token before it verifies; here the second pass judges it
  with the rest, so the tokens and the passes are the same.

  q is p at the root and the mask's law at every later node, which depends on
  the node's depth and not on what was drawn before it; drafts are draws from
  it. So every rule works, and every verifier that takes chains; a rule that
  reads q takes a mask more, for the leaf.

  Attributes:
    masks: A `models.masks.Masked` around the verifier; parameters are what it
      packs.
    length: Tokens of a draft, at most one more than there are masks; with rules
      that read q, as many.

  Reference: Monea et al. (2023), https://arxiv.org/abs/2311.13581
  """
  masks: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)

  def __post_init__(self):
    check.gamma(self.length)
    room(self, self.length - 1)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A sampled chain, and q; the verifier's cache is left as it is."""
    count = self.length - 1 + ctx.leaf_q
    room(self, count)
    cache = check.target_cache(self, ctx)
    logits = self.masks.first(params, cache, ctx.root, count)
    return drawn(ctx.root, ctx.warp(logits), keys, self.length), state


def room(drafter: Any, count: int) -> None:
  """Refuses drafts for which more masks are needed than there are."""
  there = drafter.masks.heads.count
  if count > there:
    raise ValueError(
        f'{type(drafter).__name__} with length {drafter.length} takes {count} '
        f'masks here (one more where a rule reads q), but {there} were '
        'trained; give a shorter draft, or train more.')
