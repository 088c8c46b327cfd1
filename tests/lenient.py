"""Joint laws under verifiers that are 2 % too kind, for many warps at once.

Every acceptance probability that `judges.coin` would see is raised by 2 %. What
verifiers decide node by node is composed from one node's law, vectorised;
`exact` says the rest, and the same on trees that it can enumerate.
"""
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import judges, verify


def coin(chance):
  """2 % too kind."""
  return np.minimum(1., 1.02 * chance)


def enumerated():
  """Within it, `exact` enumerates verifiers that are too kind."""
  return mock.patch.object(judges, 'coin', lambda x: float(coin(x)))


def over(a, b):
  """a / b, 0 where b is."""
  return np.where(b > 0, a / np.where(b > 0, b, 1), 0)


def residual(pi, taken):
  rest = np.maximum(pi - taken, 0)
  mass = rest.sum(-1, keepdims=True)
  return np.where(mass > 1e-12, over(rest, mass), pi)


def rejection(q, pi, best, count, law, accept=coin):
  """One node with `count` children under token-wise rejection.

  q, pi: [..., V]; best: [..., V], tokens in order of raw logits, which drafts
  without replacement fall back on. Returns, [..., V] each: for every child, and
  the child whose token it repeats (itself, if it does not), the probability
  that it is accepted and is token v; the same of the token that follows a
  rejection of all.
  """
  size, last = q.shape[-1], np.zeros_like(q)
  kept = [np.zeros_like(q) for _ in range(count)]

  def judge(tried, chance, left, rest):
    """Once `tried` were rejected, with that chance."""
    if len(tried) == count:
      last[...] += chance * left
      return
    drawn = rest.sum(-1, keepdims=True) > 0
    free = ~np.isin(best, tried if law == 'distinct' else ())
    first = np.take_along_axis(best, free.argmax(-1)[..., None], -1)
    for token in range(size):
      at, point = slice(token, token + 1), np.eye(size)[token]
      own = np.where(drawn, rest, point)
      share = np.where(own[..., at] > 0, accept(over(
          left[..., at], own[..., at])), left[..., at] > 0)
      here = chance * np.where(drawn, rest[..., at], first == token)
      kept[len(tried)][..., at] += here * share
      after = rest * (1 - point) if law == 'distinct' else rest
      judge((*tried, token), here * (1 - share), residual(left, own),
            over(after, after.sum(-1, keepdims=True)))

  judge((), np.ones((*q.shape[:-1], 1)), pi, q)
  return {(m, m): x for m, x in enumerate(kept)}, last


def k_seq(q, pi, best, count, law, accept=coin):
  """The same under k-SEQ."""
  del best, law
  low, high = np.ones(q.shape[:-1]), np.full(q.shape[:-1], float(count))
  for _ in range(60):
    rho = (low + high) / 2
    b = np.minimum(q, pi / rho[..., None]).sum(-1)
    more = 1 - (1 - b)**count > rho * b
    low, high = np.where(more, rho, low), np.where(more, high, rho)
  rho = high[..., None]
  fair = np.minimum(q, pi / rho)
  one = q * accept(over(pi, rho * q))
  none, b = 1 - one.sum(-1, keepdims=True), fair.sum(-1, keepdims=True)
  share = over(1 - (1 - b)**count, b)
  others = none - (q - one)              # rejected, and not this token
  kept = {(m, m): one * others**m for m in range(count)}
  kept |= {(m, first): one * others**first * (q - one) * none**(m - first - 1)
           for m in range(count) for first in range(m)}
  return kept, none**count * residual(pi, fair * share)


NODES = {verify.Rejection: rejection, verify.KSeq: k_seq}


def joint(drafts, judge, target, warp, tables, cells=1, accept=coin):
  """Law of three tokens after any two, [cells, V, V, V, V, V].

  Args:
    drafts: An `exact.Drafts` from a model.
    judge: A verifier whose class is in `NODES`.
    target, warp: With numbers, or arrays of a number a cell.
    tables: Logits of p and q after any two tokens, [V, V, V].
    cells: How many.
    accept: Of the probability with which a draft should pass.
  """
  size = len(tables[0])
  p, q = (warp(jnp.broadcast_to(x.reshape(1, -1, size), (
      cells, size * size, size))) for x in tables)
  wide = lambda x: np.asarray(x, np.float64).reshape(cells, size, size, -1)
  pi, best = wide(target(q, p).pi), np.argsort(-np.asarray(tables[1]), -1)
  stops = drafts.stop is not None and wide(jax.vmap(drafts.stop)(q))
  nodes = []
  for node in range(len(drafts.parents)):
    below = [m for m, up in enumerate(drafts.parents) if up == node]
    place = lambda m, twin, below=below: below[
        twin if below[twin] in drafts.parents else m]
    kept, last = NODES[type(judge)](
        wide(q.probs), pi, best, len(below), drafts.law, accept)
    nodes.append(([(place(*both), np.where(stops, 0, x))
                   for both, x in kept.items()], np.where(stops, pi, last)))

  def after(node, length):
    """[cells, V, V] and an axis a token: what follows at a node of a round."""
    kept, last = nodes[node]
    ways = [*kept, (0, last)]                        # 0: a new round
    if length == 1:
      return sum(x for _, x in ways)
    names = 'xyz'[:length - 1]
    return sum(np.einsum(f'nabc,nbc{names}->nabc{names}', x,
                         after(m, length - 1)) for m, x in ways)
  return after(0, 3)
