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
from typing import Any

import jax
import numpy as np

from spec_cascades import check
from spec_cascades import judges
from spec_cascades import types
from spec_cascades import verify

Context = tuple[int, ...]
Model = Callable[[Context], np.ndarray]


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
      `spec_cascades.struct`; logits that are not finite, or of two
      vocabularies.
  """
  check.target(target)
  check.interval('length', length, 1, 1e6, whole=True)
  check.told_apart(target, warp)
  if type(judge) not in judges.JUDGES:
    known = ', '.join(kind.__name__ for kind in judges.JUDGES)
    raise ValueError(f'No exact law for {type(judge).__name__}; allowed: '
                     f'{known}.')
  check.scalars(target, warp, judge)
  check.tree(drafts.parents)
  if q is None and (drafts.law != 'deterministic' or target.uses_q):
    raise ValueError(f'No q for {drafts.law!r} drafts and '
                     f'{type(target).__name__}; allowed: for deterministic '
                     'drafts and a target that ignores q.')
  if drafts.law == 'deterministic' and drafts.tokens is None:
    raise ValueError("Drafts(law='deterministic') without tokens; give the "
                     'function from a context to the drafted tokens.')
  if drafts.law == 'given':
    raise ValueError("Drafts(law='given'); allowed: laws of one model, "
                     "'sampled', 'distinct' or 'deterministic'.")
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


class _Process:
  """Decoding after a context, remembered by context."""

  def __init__(self, q, p, target, warp, drafts, judge):
    self._models, self._drafts, self._judge = (q, p), drafts, judge
    self._fuse = functools.partial(_fuse, target, warp)
    self.at = functools.lru_cache(maxsize=None)(self._at)
    self.round = functools.lru_cache(maxsize=None)(self._round)
    self.joint = functools.lru_cache(maxsize=None)(self._joint)

  def _at(self, context: Context) -> judges.Laws:
    logits = [None if m is None else _logits(m, name, context)
              for name, m in zip('qp', self._models)]
    if len({len(x) for x in logits if x is not None}) > 1:
      raise ValueError(f'After {context}, q has {len(logits[0])} logits and p '
                       f'{len(logits[1])}; allowed: one vocabulary for both.')
    q, p, pi = self._fuse(*logits)
    wide = lambda x: judges.normal(np.asarray(x, np.float64)[0])
    none = np.zeros(len(logits[1]))
    raw = [none if x is None else x.astype(np.float64) for x in logits]
    stop = self._drafts.stop
    return judges.Laws(
        none if q is None else wide(q.probs), wide(p.probs), wide(pi), *raw,
        stop is not None and bool(stop(q)[0]))

  def _round(
      self, context: Context) -> list[tuple[judges.Outcome, Context, bool]]:
    """Outcomes of a round, tokens accepted, whether drafts were rejected."""
    outcomes = []
    for tokens, chance in self._proposals(context):
      contexts, parents = [context], self._drafts.parents[:len(tokens)]
      for node, up in enumerate(parents[1:], 1):
        contexts.append(contexts[up] + (tokens[node],))
      draft = judges.Judged(
          tokens, parents, tuple(map(self.at, contexts)), self._drafts.law)
      for path, share, following in judges.JUDGES[type(self._judge)](
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


def _logits(model: Model, name: str, context: Context) -> np.ndarray:
  """A model's logits [V]; refuses what the loop would call a fault."""
  logits = np.asarray(model(context), np.float32)
  if not (logits.ndim == 1 and (logits < np.inf).all()
          and np.isfinite(logits).any()):
    raise ValueError(f'{name} after {context} has the logits {logits}; '
                     'allowed: [V] of finite numbers or -inf, not all -inf.')
  return logits


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


def _proposal(here: judges.Laws, taken) -> np.ndarray:
  """Law of the next sibling, given those that were drawn."""
  rest = here.q.copy()
  rest[list(taken)] = 0
  if rest.sum() > 0:
    return judges.normal(rest)
  logits = here.q_logits.copy()
  logits[list(taken)] = -np.inf
  return np.eye(len(rest))[logits.argmax()]
