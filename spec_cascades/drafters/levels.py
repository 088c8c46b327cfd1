"""For trees that language models draw level by level."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.models import prefill


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


def drawn(q: types.Prediction, key: Key[Array, ''], parents: Mapping[int, int],
          law: str) -> Iterator[tuple[int, Array, Array]]:
  """Children of the nodes of one sequence, drawn from q [N, V] at them.

  Args:
    q: At each node.
    key: Folded with a child's number.
    parents: Of each child that is to be drawn, in their order.
    law: 'sampled' or 'distinct'.

  Yields:
    A child, its token, and what that was drawn from [V], as 'given' drafts say.
  """
  left = {}
  for child, up in parents.items():
    rest, tried = left.get(
        up, (q.probs[up], jnp.zeros(q.probs.shape[-1], bool)))
    some = warp_lib.sample(rest, jax.random.fold_in(key, child))
    best = jnp.argmax(jnp.where(tried, -jnp.inf, q.logits[up]))
    none = rest.sum() <= 0                # NaN is not: it must be seen outside
    token = jnp.where(none, best, some)
    yield child, token, jnp.where(
        none, jax.nn.one_hot(token, len(rest)), rest)
    if law == 'distinct':
      left[up] = warp_lib.without(rest, token), tried.at[token].set(True)


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
