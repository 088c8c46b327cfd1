"""Exact laws of speculative decoding on a vocabulary small enough to enumerate.

Every draft, every way to judge it and every continuation is summed in float64,
by code that shares nothing with `verify`: what the loop samples must follow it.
For rules that are not lossless it says how far they are from the verifier's own
law, as a number.

Models are functions from a context (a tuple of token ids) to logits [V]. The
cost is about V^drafts per context and V^length contexts.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np

from spec_cascades import check
from spec_cascades import types
from spec_cascades import verify

Context = tuple[int, ...]
Model = Callable[[Context], np.ndarray]
# Nodes accepted, in order; the probability of it; the law of the next token.
Outcome = tuple[list[int], float, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Drafts:
  """How a round's tokens are proposed.

  Attributes:
    parents: The tree, as in `types.tree`; a chain of 2 is (-1, 0, 1).
    law: As `types.Draft.law`.
    tokens: For 'deterministic' drafts, a function from the context to the
      tokens of nodes 1, 2, ...; fewer than there are nodes end the draft.
    stop: For chains, as `drafters.chain.Chain.stop`: says of q at a node
      whether to draft nothing after it.
  """
  parents: tuple[int, ...]
  law: str = 'sampled'
  tokens: Callable[[Context], Sequence[int]] | None = None
  stop: Any = None

  @classmethod
  def chain(cls, gamma: int, stop: Any = None) -> Drafts:
    """gamma draws, one after the other."""
    return cls(tuple(range(-1, gamma)), stop=stop)

  @property
  def is_chain(self) -> bool:
    """Whether every node has one child."""
    return self.parents == tuple(range(-1, len(self.parents) - 1))


@dataclasses.dataclass(frozen=True)
class Law:
  """What decoding does after a context.

  Attributes:
    joint: Probability of each continuation, [V] * length.
    target: The same for draws from pi, one token after the other.
    verifier: The same for draws from p~.
    accepted: Probability that the first round accepts j drafts, [D].
    rejection: Of first rounds that accept j drafts or more, how many reject
      all that they have at depth j + 1, [D - 1]; 0 where no round gets. A round
      that stopped or has no draft there rejects none.
  """
  joint: np.ndarray
  target: np.ndarray
  verifier: np.ndarray
  accepted: np.ndarray
  rejection: np.ndarray

  @property
  def bias(self) -> float:
    """Total variation between what is decoded and the verifier's own law."""
    return total_variation(self.joint, self.verifier)

  @property
  def error(self) -> float:
    """Total variation between what is decoded and pi: 0 for exact verifiers."""
    return total_variation(self.joint, self.target)

  @property
  def tokens_per_round(self) -> float:
    """Expected tokens of the first round, the one after the drafts included."""
    return float(1 + self.accepted @ np.arange(len(self.accepted)))


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
  """sum (a - b)+ of two laws of the same shape."""
  return float(np.maximum(a - b, 0).sum())


def law(q: Model | None, p: Model, target: Any, warp: Any, *, drafts: Drafts,
        judge: Any = verify.Rejection(), context: Context = (),
        length: int = 3) -> Law:
  """The exact law of the next `length` tokens and of the first round.

  Args:
    q: The drafter's logits; None for a target that ignores them and drafts
      that are deterministic.
    p: The verifier's logits.
    target: pi = T(q, p).
    warp: Of both models.
    drafts: What a round proposes.
    judge: `verify.Rejection`, `Block`, `KSeq`, `Typical`, `TopB`, `Rollback`
      or `Forced`.
    context: Tokens so far.
    length: Tokens of the continuation.

  Raises:
    ValueError: A verifier that is not in the list, or that does not support
      the drafts; a stop on a tree; no q where it is needed; numbers outside
      their domains, or one per row; a target that is not of
      `spec_cascades.struct`.
  """
  check.target(target)
  check.instance(warp)
  check.interval('length', length, 1, 1e6, whole=True)
  check.told_apart(target, warp)
  if type(judge) not in JUDGES:
    known = ', '.join(kind.__name__ for kind in JUDGES)
    raise ValueError(f'No exact law for {type(judge).__name__}; allowed: '
                     f'{known}.')
  for part in (target, warp, judge):
    part.validate()
    for number in jax.tree.leaves(part):
      check.scalar(f'A number of {type(part).__name__}', number)
  check.tree(drafts.parents)
  if q is None and (drafts.law != 'deterministic' or target.uses_q):
    raise ValueError(f'No q for {drafts.law!r} drafts and '
                     f'{type(target).__name__}; allowed: for deterministic '
                     'drafts and a target that ignores q.')
  if drafts.stop is not None and not drafts.is_chain:
    raise ValueError(f'A stop on a tree with parents {drafts.parents}; '
                     'allowed: on a chain.')
  depth = types.depths(drafts.parents)
  shape = np.zeros((1, len(drafts.parents)), np.int32)
  judge.supports.check(judge, types.Draft(
      types.TokenTree(shape, shape, shape, shape), None, shape, drafts.law,
      max(depth), full=drafts.stop is None))
  process = _Process(q, p, target, warp, drafts, judge)
  own = lambda name: lambda c: getattr(process.at(c), name)
  accepted, rejected = np.zeros((2, max(depth) + 1))
  for (path, chance, _), _, tried in process.round(context):
    accepted[len(path)] += chance
    rejected[len(path)] += chance * tried
  reached = accepted[::-1].cumsum()[::-1][:-1]
  rejection = rejected[:-1] / np.where(reached > 0, reached, 1)
  return Law(process.joint(context, length), _product(own('pi'), context,
             length), _product(own('p'), context, length), accepted, rejection)


@dataclasses.dataclass(frozen=True, eq=False)
class _Laws:
  """Laws after a context, each [V]; told apart by which object they are."""
  q: np.ndarray
  p: np.ndarray
  pi: np.ndarray
  q_logits: np.ndarray
  p_logits: np.ndarray
  stops: bool = False


@dataclasses.dataclass(frozen=True)
class _Judged:
  """A draft as a verifier sees it: one `_Laws` a node."""
  tokens: tuple[int, ...]
  parents: tuple[int, ...]
  laws: tuple[_Laws, ...]
  law: str

  def children(self, node: int) -> list[int]:
    return [m for m, up in enumerate(self.parents) if up == node]

  @property
  def depth(self) -> int:
    """Of the deepest node."""
    return max(types.depths(self.parents))


class _Process:
  """Decoding after a context, remembered by context."""

  def __init__(self, q, p, target, warp, drafts, judge):
    self._models, self._drafts, self._judge = (q, p), drafts, judge
    self._fuse = functools.partial(_fuse, target, warp)
    self.at = functools.lru_cache(maxsize=None)(self._at)
    self.round = functools.lru_cache(maxsize=None)(self._round)
    self.joint = functools.lru_cache(maxsize=None)(self._joint)

  def _at(self, context: Context) -> _Laws:
    logits = [None if m is None else np.asarray(m(context), np.float32)
              for m in self._models]
    q, p, pi = self._fuse(*logits)
    wide = lambda x: _normal(np.asarray(x, np.float64)[0])
    none = np.zeros(len(logits[1]))
    raw = [none if x is None else x.astype(np.float64) for x in logits]
    stop = self._drafts.stop
    return _Laws(none if q is None else wide(q.probs), wide(p.probs), wide(pi),
                 *raw, stop is not None and bool(stop(q)[0]))

  def _round(self, context: Context) -> list[tuple[Outcome, Context, bool]]:
    """Outcomes of a round, tokens accepted, whether drafts were rejected."""
    outcomes = []
    for tokens, chance in self._proposals(context):
      contexts, parents = [context], self._drafts.parents[:len(tokens)]
      for node, up in enumerate(parents[1:], 1):
        contexts.append(contexts[up] + (tokens[node],))
      draft = _Judged(tokens, parents, tuple(map(self.at, contexts)),
                      self._drafts.law)
      for path, share, following in JUDGES[type(self._judge)](
          self._judge, draft):
        if chance * share > 0:
          tried = bool(draft.children(path[-1] if path else 0))
          outcomes.append(((path, chance * share, following),
                           tuple(tokens[m] for m in path), tried))
    return outcomes

  def _proposals(self, context) -> Iterator[tuple[tuple[int, ...], float]]:
    """All token assignments of the tree and their probabilities."""
    drafts, size = self._drafts, len(self.at(context).p)
    if drafts.law == 'deterministic':
      yield (0, *drafts.tokens(context)), 1.
      return

    def grow(tokens, contexts, tried, chance):
      node = len(tokens)
      if node == len(drafts.parents):
        yield tokens, chance
        return
      up = drafts.parents[node]
      here, taken = self.at(contexts[up]), tried.get(up, ())
      if here.stops:
        yield tokens, chance
        return
      own = _proposal(here, taken if drafts.law == 'distinct' else ())
      for token in range(size):
        if own[token] > 0:
          yield from grow(
              tokens + (token,), contexts + [contexts[up] + (token,)],
              {**tried, up: taken + (token,)}, chance * own[token])

    yield from grow((0,), [context], {}, 1.)

  def _joint(self, context: Context, length: int) -> np.ndarray:
    """Law of the next tokens, over as many rounds as they take."""
    size = len(self.at(context).p)
    total = np.zeros((size,) * length)
    for (_, chance, following), text, _ in self.round(context):
      if len(text) >= length:
        total[text[:length]] += chance
        continue
      for token in np.flatnonzero(following):
        more = text + (int(token),)
        weight, rest = chance * following[token], length - len(more)
        total[more] += weight * (
            self.joint(context + more, rest) if rest else 1.)
    return total


@jax.jit
def _fuse(target, warp, q, p):
  """Predictions of both models and pi; compiled once per rule."""
  predict = lambda x: None if x is None else warp(x[None])
  q, p = predict(q), predict(p)
  return q, p, target(q, p).pi


def _product(law_of, context, length):
  """Joint law of draws one after the other."""
  here = law_of(context)
  if length == 1:
    return here
  return np.stack([here[v] * _product(law_of, context + (v,), length - 1)
                   for v in range(len(here))])


def _normal(x):
  return x / x.sum()


def _proposal(here: _Laws, taken) -> np.ndarray:
  """Law of the next sibling, given those that were drawn."""
  rest = here.q.copy()
  rest[list(taken)] = 0
  if rest.sum() > 0:
    return _normal(rest)
  logits = here.q_logits.copy()
  logits[list(taken)] = -np.inf
  return np.eye(len(rest))[logits.argmax()]


def _residual(pi, taken):
  rest = np.maximum(pi - taken, 0)
  return _normal(rest) if rest.sum() > 1e-12 else pi


def _rejection(judge, draft: _Judged) -> Iterator[Outcome]:
  """Token by token; children of a node in turn."""
  del judge

  def descend(node, path, chance):
    left, rest = draft.laws[node].pi, draft.laws[node].q
    for m in draft.children(node):
      token = draft.tokens[m]
      exhausted = draft.law == 'deterministic' or rest.sum() == 0
      own = np.eye(len(left))[token] if exhausted else rest
      accept = min(1., left[token] / own[token]) if own[token] > 0 else float(
          left[token] > 0)
      yield from descend(m, path + [m], chance * accept)
      chance, left = chance * (1 - accept), _residual(left, own)
      if draft.law == 'distinct':
        rest = np.where(np.arange(len(rest)) == token, 0, rest)
        rest = _normal(rest) if rest.sum() > 0 else rest
    yield path, chance, left

  yield from descend(0, [], 1.)


def _block(judge, draft: _Judged) -> Iterator[Outcome]:
  """Block verification: the longest prefix whose own coin falls right."""
  del judge
  gamma, weight = draft.depth, [1.]
  for j in range(gamma):
    here, token = draft.laws[j], draft.tokens[j + 1]
    weight.append(min(1., weight[-1] * here.pi[token] / here.q[token]))
  excess = [np.maximum(w * x.pi - x.q, 0) for w, x in zip(weight, draft.laws)]
  mass = [x.sum() for x in excess]
  h = [1.] + [m / (m + 1 - w) if m > 0 else 0.
              for m, w in zip(mass[1:gamma], weight[1:gamma])] + [weight[gamma]]
  for j in range(gamma + 1):
    chance = h[j] * np.prod([1 - x for x in h[j + 1:]])
    if chance == 0:
      continue
    last = draft.laws[j].pi
    following = last if j == gamma else _residual(
        weight[j] * last, draft.laws[j].q)
    yield list(range(1, j + 1)), chance, _normal(following)


def _k_seq(judge, draft: _Judged) -> Iterator[Outcome]:
  """k-SEQ at every node, for as many children as it has."""
  del judge

  def descend(node, path, chance):
    here, below = draft.laws[node], draft.children(node)
    if not below:
      yield path, chance, here.pi
      return
    k = len(below)
    rho = _selection(here, k)
    kept = np.minimum(here.q, here.pi / rho)
    for m in below:
      token = draft.tokens[m]
      accept = min(1., here.pi[token] / (rho * here.q[token]))
      yield from descend(m, path + [m], chance * accept)
      chance *= 1 - accept
    b = kept.sum()
    share = (1 - (1 - b)**k) / b if b > 0 else 0.
    yield path, chance, _residual(here.pi, kept * share)

  yield from descend(0, [], 1.)


@functools.lru_cache(maxsize=1024)
def _selection(here: _Laws, k: int) -> float:
  """rho of k-SEQ: 1 - (1 - b)^k = rho b, b = sum min(q, pi / rho)."""
  low, high = 1., float(k)
  for _ in range(100):
    rho = (low + high) / 2
    b = np.minimum(here.q, here.pi / rho).sum()
    low, high = (rho, high) if 1 - (1 - b)**k > rho * b else (low, rho)
  return high


def _typical(judge, draft: _Judged) -> Iterator[Outcome]:
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


def _greedy(judge, draft: _Judged) -> Iterator[Outcome]:
  """Drafts that stand, then the verifier's best token."""
  path = list(itertools.takewhile(
      lambda m: _stands(judge, draft.laws[m - 1].p_logits, draft.tokens[m]),
      range(1, len(draft.parents))))
  logits = draft.laws[len(path)].p_logits
  yield path, 1., np.eye(len(logits))[logits.argmax()]


def _forced(judge, draft: _Judged) -> Iterator[Outcome]:
  """Accepts with a fixed probability."""
  gamma, rate = draft.depth, float(judge.rate)
  for j in range(gamma + 1):
    here = draft.laws[j]
    own = (np.eye(len(here.pi))[draft.tokens[j + 1]]
           if draft.law == 'deterministic' and j < gamma else here.q)
    following = here.pi if j == gamma else _residual(here.pi, own)
    yield (list(range(1, j + 1)), rate**j * (1 - rate if j < gamma else 1),
           following)


JUDGES = {verify.Rejection: _rejection, verify.Block: _block,
          verify.KSeq: _k_seq, verify.Typical: _typical, verify.TopB: _greedy,
          verify.Rollback: _greedy, verify.Forced: _forced}
