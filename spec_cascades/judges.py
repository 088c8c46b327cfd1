"""How each verifier judges a draft, every outcome enumerated in float64.

Shares no code with `verify`: `exact` sums over these to say what the loop must
sample. A judge takes a verifier and a draft and yields its outcomes.
"""
from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import itertools

import numpy as np

from spec_cascades import types
from spec_cascades import verify

# Nodes accepted, in order; the probability of it; the law of the next token.
Outcome = tuple[list[int], float, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Laws:
  """Laws after a context, each [V]; told apart by which object they are."""
  q: np.ndarray
  p: np.ndarray
  pi: np.ndarray
  q_logits: np.ndarray
  p_logits: np.ndarray
  stops: bool = False


@dataclasses.dataclass(frozen=True)
class Judged:
  """A draft as a verifier sees it: one `Laws` a node."""
  tokens: tuple[int, ...]
  parents: tuple[int, ...]
  laws: tuple[Laws, ...]
  law: str

  def children(self, node: int) -> list[int]:
    return [m for m, up in enumerate(self.parents) if up == node]

  @property
  def depth(self) -> int:
    """Of the deepest node."""
    return max(types.depths(self.parents))


def coin(chance: float) -> float:
  """Probability that a draft passes; the tests' unfair verifiers change it."""
  return min(1., chance)


def normal(x: np.ndarray) -> np.ndarray:
  """x over its sum."""
  return x / x.sum()


def residual(pi: np.ndarray, taken: np.ndarray) -> np.ndarray:
  """normal((pi - taken)+); pi where nothing is left."""
  rest = np.maximum(pi - taken, 0)
  return normal(rest) if rest.sum() > 1e-12 else pi


def rejection(judge, draft: Judged) -> Iterator[Outcome]:
  """Token by token; children of a node in turn."""
  del judge

  def descend(node, path, chance):
    left, rest = draft.laws[node].pi, draft.laws[node].q
    for m in draft.children(node):
      token = draft.tokens[m]
      exhausted = draft.law == 'deterministic' or rest.sum() == 0
      own = np.eye(len(left))[token] if exhausted else rest
      accept = (coin(left[token] / own[token]) if own[token] > 0
                else float(left[token] > 0))
      yield from descend(m, path + [m], chance * accept)
      chance, left = chance * (1 - accept), residual(left, own)
      if draft.law == 'distinct':
        rest = np.where(np.arange(len(rest)) == token, 0, rest)
        rest = normal(rest) if rest.sum() > 0 else rest
    yield path, chance, left

  yield from descend(0, [], 1.)


def block(judge, draft: Judged) -> Iterator[Outcome]:
  """Block verification: the longest prefix whose own coin falls right."""
  del judge
  gamma, weight = draft.depth, [1.]
  for j in range(gamma):
    here, token = draft.laws[j], draft.tokens[j + 1]
    weight.append(min(1., weight[-1] * here.pi[token] / here.q[token]))
  excess = [np.maximum(w * x.pi - x.q, 0) for w, x in zip(weight, draft.laws)]
  mass = [x.sum() for x in excess]
  inner = [m / (m + 1 - w) if m > 0 else 0.
           for m, w in zip(mass[1:gamma], weight[1:gamma])]
  h = [1.] + [coin(x) for x in (*inner, weight[gamma])]
  for j in range(gamma + 1):
    chance = h[j] * np.prod([1 - x for x in h[j + 1:]])
    if chance == 0:
      continue
    last = draft.laws[j].pi
    following = last if j == gamma else residual(
        weight[j] * last, draft.laws[j].q)
    yield list(range(1, j + 1)), chance, normal(following)


def k_seq(judge, draft: Judged) -> Iterator[Outcome]:
  """k-SEQ at every node, for as many children as it has."""
  del judge

  def descend(node, path, chance):
    here, below = draft.laws[node], draft.children(node)
    if not below:
      yield path, chance, here.pi
      return
    k = len(below)
    rho = selection(here, k)
    kept = np.minimum(here.q, here.pi / rho)
    for m in below:
      token = draft.tokens[m]
      accept = coin(here.pi[token] / (rho * here.q[token]))
      place = _place(draft, m)
      yield from descend(place, path + [place], chance * accept)
      chance *= 1 - accept
    b = kept.sum()
    share = (1 - (1 - b)**k) / b if b > 0 else 0.
    yield path, chance, residual(here.pi, kept * share)

  yield from descend(0, [], 1.)


def _place(draft: Judged, node: int) -> int:
  """Where k-SEQ goes on: at a node's first twin, if that has later children."""
  twin = next(m for m in draft.children(draft.parents[node])
              if draft.tokens[m] == draft.tokens[node])
  return twin if min(draft.children(twin), default=0) > node else node


@functools.lru_cache(maxsize=1024)
def selection(here: Laws, k: int) -> float:
  """rho of k-SEQ: 1 - (1 - b)^k = rho b, b = sum min(q, pi / rho)."""
  low, high = 1., float(k)
  for _ in range(100):
    rho = (low + high) / 2
    b = np.minimum(here.q, here.pi / rho).sum()
    low, high = (rho, high) if 1 - (1 - b)**k > rho * b else (low, rho)
  return high


def typical(judge, draft: Judged) -> Iterator[Outcome]:
  """The deepest path of plausible tokens, the first of several."""
  best = []
  for node in range(1, len(draft.parents)):
    path = []
    while node > 0:
      path.insert(0, node)
      node = draft.parents[node]
    if len(path) > len(best) and all(
        _plausible(judge, draft.laws[draft.parents[m]].p, draft.tokens[m])
        for m in path):
      best = path
  yield best, 1., draft.laws[best[-1] if best else 0].p


def _plausible(judge, p, token):
  logs = np.log(np.where(p > 0, p, 1))
  return p[token] > min(judge.epsilon, judge.delta * np.exp((p * logs).sum()))


def _stands(judge, logits, token):
  """The tests of `TopB` and `Rollback`."""
  if isinstance(judge, verify.TopB):
    return ((logits > logits[token]).sum() < judge.b
            and logits.max() - logits[token] <= judge.tau)
  peak = logits.max()
  log_z = peak + np.log(np.exp(logits - peak).sum())
  return log_z - logits[token] <= judge.threshold


def greedy(judge, draft: Judged) -> Iterator[Outcome]:
  """Drafts that stand, then the verifier's best token."""
  path = list(itertools.takewhile(
      lambda m: _stands(judge, draft.laws[m - 1].p_logits, draft.tokens[m]),
      range(1, len(draft.parents))))
  logits = draft.laws[len(path)].p_logits
  yield path, 1., np.eye(len(logits))[logits.argmax()]


def forced(judge, draft: Judged) -> Iterator[Outcome]:
  """Accepts with a fixed probability."""
  gamma, rate = draft.depth, float(judge.rate)
  for j in range(gamma + 1):
    here = draft.laws[j]
    own = (np.eye(len(here.pi))[draft.tokens[j + 1]]
           if draft.law == 'deterministic' and j < gamma else here.q)
    following = here.pi if j == gamma else residual(here.pi, own)
    yield (list(range(1, j + 1)), rate**j * (1 - rate if j < gamma else 1),
           following)


JUDGES = {verify.Rejection: rejection, verify.Block: block,
          verify.KSeq: k_seq, verify.Typical: typical, verify.TopB: greedy,
          verify.Rollback: greedy, verify.Forced: forced}
