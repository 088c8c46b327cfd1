"""Trees of the best choices of heads beside the verifier's own."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
import numpy as np

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import paths as paths_lib


@struct.dataclass
class Medusa(struct.Fixed):
  """Drafts a static tree: head k's best tokens are the nodes at depth k.

  The heads read the state that the root was predicted from, which the verifier
  has computed already; with Hydra's, each node's children depend on the tokens
  down to it. After a prompt of one token there is no such state yet, and the
  first draft is made from zeros. Children are point masses, so that decoding is
  exact with every verifier that takes such trees; typical acceptance is
  `verify.Typical`.

  With more heads than the tree has levels, rules that read q get it: at depth d
  it is what head d + 1 says, so it depends on where a round begins.

  Attributes:
    heads: A `models.heads.Headed`; parameters are what it packs.
    paths: Nodes by level, as ranks: see `drafters.paths`.

  References: Cai et al. (2024), secs. 2.1.1, 2.1.2 and 2.3.3,
    https://arxiv.org/abs/2401.10774; Ankner et al. (2024), Hydra, sec. 3,
    https://arxiv.org/abs/2402.05109
  """
  heads: Any = struct.field(pytree_node=False)
  paths: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)

  def __post_init__(self):
    paths_lib.parents(self.paths)
    count, words = self.heads.heads.count, self.heads.vocab_size
    deepest, widest = len(self.paths[-1]), 1 + max(map(max, self.paths))
    if deepest > count or widest > words:
      raise ValueError(f'A tree {deepest} deep with {widest} choices of a '
                       f'head; allowed: {count} heads with {words} each.')

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return 1 + len(self.paths)

  @property
  def has_q(self) -> bool:
    """Whether a head is left for q at the deepest drafts."""
    return self.heads.heads.count > len(self.paths[-1])

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Float[Array, 'B E']:
    """The state that each root was predicted from; zeros without one."""
    del capacity
    check.own_params(self, params)
    if self.heads.heads.prefix is not None:
      raise ValueError('Got heads behind a prefix layer for Medusa; allowed: '
                       'heads without one. Take drafters.hydra_plus.HydraPlus.')
    like, last = self.heads.state(params), prompt.prefix_lengths - 2
    if hidden is None:
      return jnp.zeros((len(last), *like.shape), like.dtype)
    found = types.pick(hidden, jnp.maximum(last, 0)).astype(like.dtype)
    return jnp.where(last[:, None] >= 0, found, 0)

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The tree, level by level; q if it is asked for and there is a head."""
    del keys
    parents = paths_lib.parents(self.paths)
    depth = np.array(types.depths(parents))
    line = lambda node: (*line(parents[node]), node) if node > 0 else (0,)
    tokens = jnp.zeros((len(ctx.lengths), self.num_nodes), jnp.int32)
    tokens = tokens.at[:, 0].set(ctx.root)
    last, said = depth[-1], []
    with_q = ctx.leaf_q and self.has_q
    for level in range(1, last + 1 + with_q):
      nodes, above = (np.flatnonzero(depth == x) for x in (level, level - 1))
      if not with_q:
        above = np.unique([parents[node] for node in nodes])
      logits = self.heads.ahead(params, level, state[:, None],
                                tokens[:, np.array(list(map(line, above)))])
      said.append(jnp.broadcast_to(
          logits, (len(logits), len(above), logits.shape[-1])))
      if level > last:
        break
      ranks = np.array([self.paths[node - 1][-1] for node in nodes])
      _, best = jax.lax.top_k(logits, ranks.max() + 1)      # [B, M or 1, R]
      at = np.searchsorted(above, [parents[node] for node in nodes])
      tokens = tokens.at[:, nodes].set(best[:, at % best.shape[1], ranks])
    q = ctx.warp(jnp.concatenate(said, 1)) if with_q else None
    passes = len(said) if self.heads.heads.sequential else 1
    return types.Draft(types.tree(tokens, parents), q,
                       jnp.full_like(ctx.lengths, passes), 'deterministic',
                       int(last)), state

  def observe(self, params: Any, state: Any,
              feedback: types.Feedback) -> Float[Array, 'B E']:
    """The verifier's state at the last node that was accepted."""
    del params
    verdict = feedback.verdict
    last = types.pick(verdict.path, verdict.count)
    new = types.pick(feedback.hidden, last).astype(state.dtype)
    return jnp.where(feedback.live[:, None], new, state)
