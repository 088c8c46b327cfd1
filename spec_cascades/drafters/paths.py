"""Shapes of trees whose nodes are ranks: (0, 2) is the third choice of head 2
behind the first choice of head 1."""
from __future__ import annotations

from collections.abc import Sequence
import heapq
import itertools

import numpy as np

Paths = tuple[tuple[int, ...], ...]


def cartesian(sizes: Sequence[int]) -> Paths:
  """The best sizes[0] of head 1, behind each the best sizes[1] of head 2, ...

  Reference: Cai et al. (2024), sec. 2.1.2, https://arxiv.org/abs/2401.10774
  """
  levels = [itertools.product(*map(range, sizes[:depth + 1]))
            for depth in range(len(sizes))]
  return tuple(itertools.chain(*levels))


def sparse(accuracies: np.ndarray, nodes: int) -> Paths:
  """The tree of `nodes` drafts of which most are right, by level.

  A draft is right if every rank down to it is, which the heads are taken to be
  independently; so no draft is worth more than the one before it, and the best
  drafts one by one are the best tree.

  Args:
    accuracies: [K, R], how often choice r of head k is right; rows sum to at
      most 1.
    nodes: Drafts, the root not counted.

  Raises:
    ValueError: There are not so many drafts, or accuracies that are none.

  Reference: Cai et al. (2024), sec. 2.3.3, https://arxiv.org/abs/2401.10774
  """
  accuracies = np.asarray(accuracies, np.float64)
  if accuracies.ndim != 2 or not ((accuracies >= 0) & (
      accuracies <= 1)).all() or (accuracies.sum(1) > 1 + 1e-6).any():
    raise ValueError(f'Accuracies of shape {accuracies.shape}; allowed: '
                     '[heads, ranks], from 0 to 1 and at most 1 in a row.')
  heads, ranks = accuracies.shape
  most = sum(ranks**depth for depth in range(1, heads + 1))
  if not 1 <= nodes <= most:
    raise ValueError(f'A tree of {nodes} drafts; allowed: 1 to {most} with '
                     f'{heads} heads of {ranks} ranks.')
  order = np.argsort(-accuracies, 1, kind='stable').tolist()
  # Behind a draft come its best child and the next of its siblings.
  entry = lambda before, place, worth: (
      -worth * accuracies[len(before), order[len(before)][place]],
      len(before), (*before, order[len(before)][place]), place, worth)
  queue, chosen = [entry((), 0, 1.)], []
  while len(chosen) < nodes:
    worth, depth, path, place, before = heapq.heappop(queue)
    chosen.append(path)
    if place + 1 < ranks:
      heapq.heappush(queue, entry(path[:-1], place + 1, before))
    if depth + 1 < heads:
      heapq.heappush(queue, entry(path, 0, -worth))
  return tuple(sorted(chosen, key=lambda path: (len(path), path)))


def expected(paths: Paths, accuracies: np.ndarray) -> float:
  """Tokens per verifier call of a tree, if the heads are right independently.

  One, and a draft's own chance of being accepted for every draft.
  """
  return 1 + sum(float(np.prod([accuracies[k][r] for k, r in enumerate(path)]))
                 for path in paths)


def parents(paths: Paths) -> tuple[int, ...]:
  """Each node's parent, -1 of the root: ((0,), (1,), (0, 2)) -> -1 0 0 1.

  Raises:
    ValueError: No tree, listed by level.
  """
  place = {(): 0} | {tuple(path): i for i, path in enumerate(paths, 1)}
  fine = len(place) == len(paths) + 1 and all(
      tuple(path[:-1]) in place and min(path) >= 0 for path in paths)
  if not paths or not fine or sorted(map(len, paths)) != list(map(len, paths)):
    raise ValueError(f'A tree of the paths {str(paths)[:80]}; allowed: ranks '
                     'from 0, each path once, by length, and behind the path '
                     'that it goes on from. Use drafters.paths.cartesian.')
  return (-1, *(place[tuple(path[:-1])] for path in paths))
