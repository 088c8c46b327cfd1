"""A chain in two parts: drafts are joined, and feedback is taken apart."""
from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from spec_cascades import types


def check(draft: types.Draft, ctx: types.Context) -> None:
  """Refuses what is no chain, and point masses under rules that read q."""
  if not draft.is_chain or draft.law not in ('sampled', 'deterministic'):
    raise ValueError(f'Horizontal got {draft.law!r} drafts, chain='
                     f'{draft.is_chain}; allowed: chains, sampled or '
                     'deterministic. Use other drafters.')
  if ctx.leaf_q and draft.law == 'deterministic':
    raise ValueError('Horizontal has no q of deterministic drafts; allowed: '
                     'rules that ignore q, such as Lossless, or drafters '
                     'with q, such as chains of Counts.')


def joined(one: types.Draft, two: types.Draft) -> types.Draft:
  """A chain, and behind its last draft another one.

  Each token keeps its law, a point mass where that is deterministic; without q
  where both are.
  """
  n, m = one.tree.tokens.shape[1], two.tree.tokens.shape[1]
  join = lambda a, b: put(
      jnp.pad(a, ((0, 0), (0, m - 1)) + ((0, 0),) * (a.ndim - 2)), b,
      one.tree.num_drafts)
  q, known = None, one.prediction or two.prediction
  if known is not None:
    laws = (_law(draft, known.probs.shape[-1]) for draft in (one, two))
    q = jax.tree.map(join, *laws)
  nodes = types.chain(join(one.tree.tokens, two.tree.tokens),
                      one.tree.num_drafts + two.tree.num_drafts)
  return types.Draft(nodes, q, one.calls + two.calls,
                     'deterministic' if q is None else 'sampled', n + m - 2,
                     full=one.full and two.full)


def part(feedback: types.Feedback, start: Int[Array, 'B'],
         last: Int[Array, 'B'], nodes: int) -> types.Feedback:
  """Feedback on the `last` drafts behind node `start` of a chain.

  As its drafter gets it that has drafted `nodes` nodes, the root among them.
  """
  cut = jax.vmap(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, nodes))
  of = lambda tree: jax.tree.map(lambda x: cut(x, start), tree)
  draft, verdict = feedback.draft, feedback.verdict
  tokens, reached = of(draft.tree.tokens), verdict.count - start
  count = jnp.clip(reached, 0, last)
  whole = draft.tree.tokens
  follows = types.pick(whole, jnp.minimum(start + count + 1,
                                          whole.shape[1] - 1))
  return types.Feedback(
      draft.replace(tree=types.chain(tokens, last), max_depth=nodes - 1,
                    prediction=of(draft.prediction)),
      of(feedback.hidden), of(feedback.logits),
      types.Verdict(verdict.path[:, :nodes], count, jnp.where(
          count < reached, follows, verdict.next_token)),
      feedback.live & (reached >= 0))


def put(rows: Array, new: Array, start: Int[Array, 'B']) -> Array:
  """Rows [B, N, ...] with `new` [B, M, ...] from `start` on."""
  return jax.vmap(lambda row, x, i: jax.lax.dynamic_update_slice_in_dim(
      row, x, i, 0))(rows, new, start)


def _law(draft, size):
  """q at each node of a chain; of a deterministic one the next token's mass."""
  if draft.law == 'sampled':
    return draft.prediction
  child = jnp.roll(draft.tree.parents, -1, 1) >= 0     # the root comes last: -1
  mass = jax.nn.one_hot(jnp.roll(draft.tree.tokens, -1, 1), size)
  mass = jnp.where(child[..., None], mass, 0)
  return types.Prediction(
      jnp.where(child[..., None], jnp.log(mass), 0), mass)
