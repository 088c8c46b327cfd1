"""For trees that language models draw level by level."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
import numpy as np

from spec_cascades import check
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.models import prefill


class Static:
  """For static trees, of nodes `parents`, that are drawn by a `law`."""

  def __post_init__(self):
    check.tree(self.parents)
    check_law(self)

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return len(self.parents)


def check_law(drafter: Any) -> None:
  """Refuses other laws than those that `drawn` has."""
  if drafter.law not in ('sampled', 'distinct'):
    raise ValueError(f'The law {drafter.law!r} of {type(drafter).__name__}; '
                     "allowed: 'sampled' or 'distinct'.")


def read(lm: Any, params: Any, cache: Any, ctx: types.Context,
         block: types.TokenTree, late: int = 0) -> tuple[Array, Any]:
  """Hidden states of the levels so far [B, N, E]; the cache is as long after.

  They go in as one block: only a block sees its ancestors. A root by itself is
  read with what the cache may lack before it: `late` tokens, and the last draft
  unless leaves are read.
  """
  unread = late + (not ctx.leaf_q)
  if block.tokens.shape[1] > 1 or not unread:
    return lm.extend(params, cache, block)
  hidden, grown = prefill.reread(lm, params, cache, ctx.tokens, unread + 1)
  return hidden[:, None], grown.truncate(cache.length)


def spans(parents: Sequence[int]) -> list[tuple[int, int]]:
  """Where each level of a tree begins and ends, the root's first."""
  depth = types.depths(parents)
  ends = [sum(d <= level for d in depth) for level in range(depth[-1] + 1)]
  return list(zip([0, *ends], ends))


def families(parents: Sequence[int], nodes: Sequence[int]) -> list[list[int]]:
  """The children of each of some nodes."""
  return [[child for child, up in enumerate(parents) if up == node]
          for node in nodes]


def joined(found: Sequence[types.Prediction], nodes: int) -> types.Prediction:
  """q of the levels as one of all nodes; 0 where none was read."""
  def whole(*levels):
    every = jnp.concatenate(levels, 1)
    return jnp.pad(every, ((0, 0), (0, nodes - every.shape[1]), (0, 0)))

  return jax.tree.map(whole, *found)


def drawn(q: types.Prediction, key: Key[Array, ''],
          families: Sequence[Sequence[int]], law: str
          ) -> Iterator[tuple[np.ndarray, Array, Array]]:
  """Children of some nodes of one sequence, drawn from q [M, V] at them.

  Args:
    q: At each node.
    key: Folded with a child's number.
    families: The children of each node, in their order.
    law: 'sampled' or 'distinct'.

  Yields:
    The first child of every node that has one, their tokens, and what those
    were drawn from [*, V], as 'given' drafts say; then the second ones, ...
  """
  rest, tried = q.probs, jnp.zeros(q.probs.shape, bool)
  for rank in range(max(map(len, families), default=0)):
    at = np.array([m for m, own in enumerate(families) if len(own) > rank])
    children = np.array([families[m][rank] for m in at])
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, children)
    some = jax.vmap(warp_lib.sample)(rest[at], keys)
    best = warp_lib.argmax(jnp.where(tried[at], -jnp.inf, q.logits[at]))
    none = rest[at].sum(-1) <= 0          # NaN is not: it must be seen outside
    token = jnp.where(none, best, some)
    yield children, token, jnp.where(
        none[:, None], jax.nn.one_hot(token, rest.shape[-1]), rest[at])
    if law == 'distinct' and rank + 1 < max(map(len, families)):
      left = jax.vmap(warp_lib.without)(rest[at], token)
      rest, tried = rest.at[at].set(left), tried.at[at, token].set(True)


def children(parents: Sequence[int], law: str, start: int, tokens: Array,
             q: types.Prediction, key: Key[Array, ''],
             token_of: Callable[[Array], Array] = lambda token: token) -> Array:
  """Tokens [N] of one sequence with the children of a level drawn.

  Args:
    parents: Of the tree.
    law: See `drawn`.
    start: The level's first node.
    tokens: Of the nodes down to that level.
    q: At the nodes of the level.
    key: Of the sequence.
    token_of: What a draw is called in `tokens`.
  """
  nodes = range(start, start + len(q.probs))
  for found, token, _ in drawn(q, key, families(parents, nodes), law):
    tokens = tokens.at[found].set(token_of(token))
  return tokens


def together(trees: Sequence[tuple[int, ...]]
             ) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """Parents of several trees under one root, and which tree a node is of.

  By level, and of a level by tree; the root is -1 in both.
  """
  depths = [types.depths(parents) for parents in trees]
  parents, owners, places = [-1], [-1], [{0: 0} for _ in trees]
  for level in range(1, 1 + max(map(max, depths))):
    for owner, own in enumerate(trees):
      for node, up in enumerate(own):
        if depths[owner][node] == level:
          places[owner][node] = len(parents)
          parents.append(places[owner][up])
          owners.append(owner)
  return tuple(parents), tuple(owners)
