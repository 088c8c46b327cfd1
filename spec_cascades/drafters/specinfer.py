"""SpecInfer: trees of several small models, merged into one."""
from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import levels
from spec_cascades.drafters.cached import Keeping, Late
from spec_cascades.models import prefill


@struct.dataclass
class SpecInfer(struct.Fixed, Late, Keeping):
  """Each of several small models draws its tree; equal paths become one.

  A node is drawn from its own model, whose law goes with it ('given' drafts).
  Children of equal paths are children of the first. All models read all nodes,
  so that each has the cache of what is accepted. A target's q is that of the
  first model, whose children are judged first: give the best one first, behind
  a worse one it may be accepted less often than alone. Parameters and state are
  tuples, of one entry a model.

  Attributes:
    lms: The small models; all have the verifier's vocabulary.
    trees: Of each, the parents of its nodes by level, as in `Tree`.
    law: 'sampled' or 'distinct', of the children that a model draws for a node.

  Reference: Miao et al. (2023), Alg. 2, https://arxiv.org/abs/2305.09781
  """
  lms: tuple[Any, ...] = struct.field(pytree_node=False)
  trees: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
  law: Literal['sampled', 'distinct'] = struct.field(
      pytree_node=False, default='distinct')
  late: int = struct.field(pytree_node=False, default=0)      # see `Late`

  def __post_init__(self):
    if len(self.lms) != len(self.trees) or not self.lms:
      raise ValueError(f'SpecInfer of {len(self.lms)} models and '
                       f'{len(self.trees)} trees; allowed: a tree for each.')
    for parents in self.trees:
      check.tree(parents)
    check.one_vocabulary(self, self.lms)
    levels.check_law(self)

  @property
  def nodes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parents and models of all nodes, by level; of a level, by model."""
    return levels.together(self.trees)

  @property
  def num_nodes(self) -> int:
    """The root and all drafts."""
    return 1 + sum(len(parents) - 1 for parents in self.trees)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Any:
    """Each model's cache of the prompt."""
    del hidden
    check.params_of(self, params, len(self.lms))
    return tuple(prefill.prefill(lm, own, prompt, capacity)[1]
                 for lm, own in zip(self.lms, params))

  def propose(self, params: Any, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """The merged tree, its laws, and q of the first model."""
    parents, owners = self.nodes
    b, n, spans = len(ctx.lengths), self.num_nodes, levels.spans(parents)
    tokens = jnp.zeros((b, n), jnp.int32).at[:, 0].set(ctx.root)
    laws, caches = jnp.zeros((b, n, self.lms[0].vocab_size)), list(state)
    found = []
    for start, stop in spans[:len(spans) - (not ctx.leaf_q)]:
      block = types.head_of(types.tree(tokens, parents), stop)
      below = levels.families(parents, range(start, stop))
      for model, own in reversed(list(enumerate(params))):
        lm, cache = self.lms[model], caches[model]
        hidden, caches[model] = levels.read(lm, own, cache, ctx, block,
                                            self.late)
        q = ctx.warp(lm.head(own, hidden[:, start:]))
        mine = [[x for x in some if owners[x] == model] for some in below]
        draw = jax.vmap(functools.partial(self._children, mine))
        tokens, laws = draw(tokens, laws, q, keys)
      found.append(q)                    # of the first model, which reads last
    calls = jnp.full_like(ctx.lengths, len(caches) * len(found))
    return types.Draft(
        types.merged(types.tree(tokens, parents)), levels.joined(found, n),
        calls, 'given', len(spans) - 1, laws=laws), tuple(caches)

  def _children(self, families, tokens, laws, q, key):
    """Draws what a model has of a level's children; one sequence."""
    for node, token, law in levels.drawn(q, key, families, self.law):
      tokens, laws = tokens.at[node].set(token), laws.at[node].set(law)
    return tokens, laws
