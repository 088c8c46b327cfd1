"""Verifiers as programs of coins and laws, in NumPy float64.

A program yields (node, chance), once per coin that it tosses, is sent whether
the coin fell right, and returns the nodes accepted and the law of the next
token. `outcomes` takes both sides of every coin; `follow` asks for each.
Written from the papers; shares nothing with `verify` and `exact`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses

import numpy as np
from scipy import optimize

KINDS = ('random', 'sparse', 'one_hot', 'disjoint', 'near_tie')


@dataclasses.dataclass(frozen=True)
class Case:
  """A draft and the laws at its nodes, each [N, V]; q is 0 if there is none.

  Parents are -1 at the root and where a chain has stopped. `rho` [N] is that of
  k-SEQ, to be solved for if None.
  """
  tokens: np.ndarray
  parents: np.ndarray
  law: str
  q: np.ndarray
  pi: np.ndarray
  rho: np.ndarray | None = None

  def children(self, node: int) -> list[int]:
    """In the order in which they are tried."""
    return [m for m in range(1, len(self.parents)) if self.parents[m] == node]

  def path(self, node: int) -> list[int]:
    """From the root, which is left out, to a node."""
    return [] if node == 0 else self.path(self.parents[node]) + [node]


def rejection(case: Case, judge=None):
  """Leviathan et al. 2023; children in turn: SpecInfer and Sequoia."""
  del judge
  path, node = [], 0
  while True:
    left, rest = case.pi[node], case.q[node].copy()
    for m in case.children(node):
      x = case.tokens[m]
      known = case.law != 'deterministic' and rest.sum() > 0
      own = rest / rest.sum() if known else np.eye(len(left))[x]
      if case.law == 'given':              # q[m] is what m was drawn from
        own = case.q[m] / case.q[m].sum()
      if (yield m, _ratio(left[x], own[x])):
        path, node = path + [m], m
        break
      left = _left(left, own)
      if case.law == 'distinct':
        rest[x] = 0
    else:
      return path, left


def block(case: Case, judge=None):
  """Sun et al. 2024: from the longest prefix down."""
  del judge
  gamma, weight = len(case.tokens) - 1, [1.]
  for j in range(1, gamma + 1):
    x = case.tokens[j]
    weight.append(min(1., weight[-1] * case.pi[j - 1, x] / case.q[j - 1, x]))
  if (yield gamma, weight[gamma]):
    return list(range(1, gamma + 1)), case.pi[gamma]
  for j in range(gamma - 1, -1, -1):
    excess = np.maximum(weight[j] * case.pi[j] - case.q[j], 0)
    total = excess.sum()
    if j == 0 or (yield j, total / (total + 1 - weight[j]) if total else 0.):
      return list(range(1, j + 1)), excess / total if total else case.pi[j]


def k_seq(case: Case, judge=None):
  """SpecTr, Sun et al. 2023: k of a node is how many children it has."""
  del judge
  path, node = [], 0
  while below := case.children(node):
    q, pi, k = case.q[node], case.pi[node], len(below)
    rho = solved(q, pi, k) if case.rho is None else case.rho[node]
    for m in below:
      x = case.tokens[m]
      if (yield m, _ratio(pi[x], rho * q[x])):
        alike = [c for c in below if case.tokens[c] == x]
        node = alike[0] if any(case.children(alike[0])) and all(
            c > m for c in case.children(alike[0])) else m
        path = path + [node]
        break
    else:
      kept = np.minimum(q, pi / rho)
      b = kept.sum()
      share = _some(b, k) / b if b > 0 else 0.
      return path, _left(pi, kept * share)
  return path, case.pi[node]


def excess(rho, q, pi, k):
  """1 - (1 - b)^k - rho b, b = sum min(q, pi / rho): 0 at the rho of k-SEQ."""
  b = np.minimum(q, pi / rho).sum()
  return _some(b, k) - rho * b


def solved(q, pi, k):
  """The rho of k-SEQ in [1, k]."""
  if excess(1., q, pi, k) < 1e-12:
    return 1.
  return optimize.brentq(excess, 1, k, (q, pi, k), xtol=1e-15)


def typical(case: Case, judge):
  """Medusa, Cai et al. 2024; p is given as pi."""
  kept = {0}
  for m in range(1, len(case.tokens)):
    up = case.parents[m]
    if up in kept:
      p = case.pi[up]
      entropy = -sum(x * np.log(x) for x in p if x > 0)
      bar = min(judge.epsilon, judge.delta * np.exp(-entropy))
      kept |= {m} if p[case.tokens[m]] > bar else set()
  best = max(sorted(kept), key=lambda m: len(case.path(m)))
  return case.path(best), case.pi[best]
  yield                                        # a program without coins


def top_b(case: Case, judge):
  """SpecDec, Xia et al. 2023; p is given as pi."""
  stands = lambda p, x: (sum(p > p[x]) < judge.b and p[x] > 0
                         and np.log(p.max() / p[x]) <= judge.tau)
  return _greedy(case, stands)
  yield


def rollback(case: Case, judge):
  """BiLD, Kim et al. 2023; p is given as pi."""
  stands = lambda p, x: p[x] > 0 and -np.log(p[x]) <= judge.threshold
  return _greedy(case, stands)
  yield


def forced(case: Case, judge):
  """Coins of one chance, then what `rejection` would leave."""
  node = 0
  while below := case.children(node):
    if not (yield below[0], judge.rate):
      x = case.tokens[below[0]]
      own = (np.eye(len(case.pi[0]))[x] if case.law == 'deterministic'
             else case.q[node])
      return case.path(node), _left(case.pi[node], own)
    node = below[0]
  return case.path(node), case.pi[node]


def follow(program, decide: Callable[[int, float], bool]):
  """The outcome, path and law, where `decide` says how coins fall."""
  try:
    toss = next(program)
    while True:
      toss = program.send(decide(*toss))
  except StopIteration as end:
    return end.value


def outcomes(start: Callable) -> Iterator[tuple[list[int], float, np.ndarray]]:
  """All outcomes of a program: path, probability, law of the next token."""
  todo: list[list[bool]] = [[]]
  while todo:
    given, fell, reach = todo.pop(), [], [1.]

    def decide(node, chance, given=given, fell=fell, reach=reach):
      del node
      if len(fell) == len(given):
        if 0 < chance < 1:
          todo.append(fell + [False])
        given.append(chance > 0)
      fell.append(given[len(fell)])
      reach[0] *= chance if fell[-1] else 1 - chance
      return fell[-1]

    path, law = follow(start(), decide)
    yield path, reach[0], law


def edge(start: Callable, size: int, draw, tolerance: float):
  """Uniforms [size] at the edges of a program's coins, and what must follow.

  A coin that is tossed with probability `reach` gets a uniform within
  tolerance / reach of its chance, on either side: an outcome's probability is
  off by no more than that if the code under test decides alike.

  Returns the uniforms, the path, its law and the probability of the outcome;
  None where no uniform is that close to a coin.
  """
  uniform, reach, lost = draw.random(size), [1.], []

  def decide(node, chance):
    gap = tolerance / max(reach[0], 1e-300)
    sides = {True: chance - gap, False: chance + gap if chance else 0.}
    sides = {side: u for side, u in sides.items() if 0 <= u < 1}
    if not sides:
      lost.append(node)
      return chance > .5
    side = list(sides)[draw.integers(len(sides))]
    uniform[node] = sides[side]
    reach[0] *= chance if side else 1 - chance
    return side

  path, law = follow(start(), decide)
  return None if lost else (uniform, path, law, reach[0])


def _some(b, k):
  return -np.expm1(k * np.log1p(-min(b, 1 - 1e-15)))


def _ratio(a, b):
  return min(1., a / b) if b > 0 else float(a > 0)


def _left(pi, law):
  rest = np.maximum(pi - law, 0)
  return rest / rest.sum() if rest.sum() > 0 else pi


def _greedy(case, stands):
  node = 0
  while (below := case.children(node)) and stands(
      case.pi[node], case.tokens[below[0]]):
    node = below[0]
  last = case.pi[node]
  return case.path(node), np.eye(len(last))[last.argmax()]


def softmax(x):
  """In the precision of `x`; -inf is a mass of 0."""
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def laws(kind: str, shape: tuple[int, ...], draw):
  """A pair q, p of float32 laws [..., V] of one of the KINDS."""
  q, p = softmax(2 * draw.standard_normal((2, *shape)))
  size = shape[-1]
  if kind == 'sparse':
    for x in (q, p):
      kept = np.eye(size, dtype=bool)[draw.integers(size, size=shape[:-1])]
      x[(draw.random(shape) < .6) & ~kept] = 0
  elif kind == 'one_hot':                      # the same token half of the time
    at = draw.integers(size, size=(2, *shape[:-1]))
    q, p = np.eye(size)[at]
    p = np.where(draw.random((*shape[:-1], 1)) < .5, q, p)
  elif kind == 'disjoint':
    even = np.arange(size) % 2 == 0
    q, p = np.where(even, q, 0), np.where(even, 0, p)
  elif kind == 'near_tie':                     # of q and p, and within a law
    q[..., 1] = q[..., 0]
    small = 10. ** draw.integers(-7, -1, (*shape[:-1], 1))
    p = q * (1 + small * draw.standard_normal(shape))
  return (np.float32(x / x.sum(-1, keepdims=True)) for x in (q, p))
