"""Sequoia: the shape of a tree by how often each of a node's children is taken.

    rates = forced.by_rank(pair, inputs, texts, target, warp)      # [K]
    best = sequoia.best(rates, costs.times, uses_q=target.uses_q)
    drafter = tree.Tree(lm, best.parents)                      # law 'distinct'

Reference: Chen et al. (2024), https://arxiv.org/abs/2402.12374
"""
from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
import numpy as np
from scipy import optimize

from spec_cascades import check
from spec_cascades import theory
from spec_cascades import types
from spec_cascades import warp


def acceptance(key: Key[Array, ''], q: types.Prediction,
               pi: Float[Array, '*axes V'],
               ranks: int) -> Float[Array, '*axes K']:
  """Probability that a node's k-th child is accepted and none before it.

  For children drawn from q without replacement and judged by `Rejection`. The
  first is sum min(q, pi); later ones depend on what was rejected, which is
  drawn once: an unbiased estimate for each place. Consumes the key.

  Args:
    key: Of the draws.
    q: The drafter's predictions; where they are exhausted the next best logits
      follow, as in `Tree`.
    pi: What is to be drawn from.
    ranks: K, how many children.
  """
  def place(key, logits, probs, pi):
    def child(carry, key):
      left, rest, tried, alive = carry
      best = jnp.argmax(jnp.where(tried, -jnp.inf, logits))
      law = jnp.where(rest.sum() > 0, rest, jax.nn.one_hot(best, len(rest)))
      chance = jnp.minimum(jnp.minimum(left, law).sum(), 1)
      token = warp.sample(jnp.maximum(law - left, 0), key)   # given a rejection
      return (warp.residual(left, law), warp.without(rest, token),
              tried.at[token].set(True), alive * (1 - chance)), alive * chance

    start = pi, probs, jnp.zeros(len(pi), bool), jnp.float32(1)
    return jax.lax.scan(child, start, jax.random.split(key, ranks))[1]

  flat = [x.reshape(-1, pi.shape[-1]) for x in (q.logits, q.probs, pi)]
  found = jax.vmap(place)(jax.random.split(key, len(flat[0])), *flat)
  return found.reshape(*pi.shape[:-1], ranks)


def expected_tokens(rates: Sequence[float] | np.ndarray,
                    parents: Sequence[int]) -> float:
  """Tokens a round: sum over nodes of the rates on the way to each.

  Assumes that the rate of a child depends on its rank alone. A rank beyond
  `rates` has rate 0.
  """
  reached, ranks = [1.], [0] * len(parents)
  for parent in parents[1:]:
    rank = ranks[parent]
    ranks[parent] += 1
    reached.append(reached[parent] * rates[rank] if rank < len(rates) else 0.)
  return float(sum(reached))


def shape(rates: Sequence[float] | np.ndarray, nodes: int,
          depth: int) -> tuple[int, ...]:
  """The parents of the tree with the most expected tokens.

  F(n) = 1 + max over n_1 + .. + n_k = n - 1 of sum p_i F(n_i), of at most a
  depth; ranks are used in order. O(nodes^2 depth ranks) additions.

  Args:
    rates: p_i, the acceptance of the i-th child, see `acceptance`.
    nodes: n, the root among them.
    depth: Longest way from the root.

  Raises:
    ValueError: A rate outside [0, 1], or no tree of so many nodes.
  """
  tokens, sizes = _solve(rates, nodes, depth)
  if nodes < 2 or not tokens[depth, nodes]:
    raise ValueError(f'No tree of {nodes} nodes, {len(rates)} children a node '
                     f'and depth {depth}; allowed: 2 nodes or more, and no '
                     'more than fit.')
  parents, level = [-1], [(0, nodes - 1)]
  for below in range(depth, 0, -1):
    following = []
    for node, left in level:
      rank = 0
      while left:
        size = int(sizes[below, rank, left])
        following.append((len(parents), size - 1))
        parents.append(node)
        rank, left = rank + 1, left - size
    level = following
  return tuple(parents)


def _solve(rates, nodes, depth):
  """F [depth + 1, nodes + 1], 0 for no tree; nodes of each first child."""
  rates = np.asarray(rates, np.float64)
  check.interval('Acceptance by rank', rates, 0, 1)
  for name, number in (('nodes', nodes), ('depth', depth)):
    check.interval(f'{name} of a tree', number, 1, 2**31, whole=True)
  tokens = np.zeros((depth + 1, nodes + 1))
  tokens[0, 1] = 1
  sizes = np.zeros((depth + 1, len(rates), nodes), int)
  for below in range(1, depth + 1):
    # Of m nodes under children of a rank and later ones; none is always a way.
    forest = np.where(np.arange(nodes) == 0, 0., -np.inf)
    for rank in reversed(range(len(rates))):
      child = np.where(tokens[below - 1] > 0,
                       rates[rank] * tokens[below - 1], -np.inf)
      grown = forest.copy()
      for m in range(1, nodes):
        ways = child[1:m + 1] + forest[m - 1::-1]
        sizes[below, rank, m] = 1 + np.argmax(ways)
        grown[m] = ways.max()
      forest = grown
    tokens[below, 1:] = np.maximum(1 + forest, 0)
  return tokens, sizes


@dataclasses.dataclass(frozen=True)
class Shape:
  """A tree, what it is expected to emit a round, and the speed-up of that."""
  parents: tuple[int, ...]
  tokens: float
  speedup: float


@dataclasses.dataclass(frozen=True)
class Beside:
  """What a round of a tree takes beside the verifier's block.

  fixed + level d + node n: d levels are read by the drafter, of n nodes each is
  drawn, judged and kept or not.
  """
  fixed: float
  level: float
  node: float

  def __call__(self, levels: int, nodes: int) -> float:
    return self.fixed + self.level * levels + self.node * nodes


def beside(times: theory.StepTimes,
           rounds: Sequence[Sequence[float]]) -> Beside:
  """Least squares, none below 0, of rounds: [levels, nodes, time] each."""
  levels, nodes, took = np.float64(rounds).T
  rest = took - [times.block(int(n)) for n in nodes]
  return Beside(*optimize.nnls(
      np.stack([np.ones_like(levels), levels, nodes], 1), rest)[0].tolist())


def best(rates: Sequence[float] | np.ndarray, times: theory.StepTimes, *,
         uses_q: bool, max_nodes: int | None = None,
         max_depth: int = 16, rest: Beside | None = None) -> Shape:
  """The size and depth with the greatest predicted speed-up over no drafts.

  F(n, depth) r(0, 1) / r(d, n), r(d, n) = t_p(n) + rest(d, n) being a round, d
  depth, or depth + 1 for rules that use q.

  Args:
    rates: Acceptance by rank.
    times: Measured verifier and drafter times.
    uses_q: Whether the rule needs q at the leaves.
    max_nodes: None for the widest block that was measured.
    max_depth: Deepest tree to try.
    rest: What a round takes beside the block; None for d t_q, as if a level
      took the drafter as long as one token and nothing else took time.

  Raises:
    ValueError: As `shape` does; or blocks that were not measured.
  """
  most = max(times.verifier) if max_nodes is None else max_nodes
  check.interval('nodes of a tree', most, 2, 2**31, whole=True,
                 hint='Measure blocks of 2 tokens or more.')
  tokens, _ = _solve(rates, most, max_depth)
  rest = rest or Beside(0., times.drafter, 0.)
  took = lambda levels, nodes: times.block(nodes) + rest(levels, nodes)
  speed = {(depth, n): tokens[depth, n] * took(0, 1) / took(depth + uses_q, n)
           for depth in range(1, max_depth + 1) for n in range(2, most + 1)
           if tokens[depth, n]}
  depth, n = max(speed, key=speed.get)
  return Shape(shape(rates, n, depth), float(tokens[depth, n]),
               float(speed[depth, n]))
