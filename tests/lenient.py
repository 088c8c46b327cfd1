"""Verifiers that are 2 % too kind, as `exact` enumerates them."""
import numpy as np

from spec_cascades import exact, verify


def own_law(left, rest, draft, token):
  """What a child was drawn from, as `exact` has it."""
  exhausted = draft.law == 'deterministic' or rest.sum() == 0
  return np.eye(len(left))[token] if exhausted else rest


def lenient_rejection(judge, draft):
  """`exact`'s account of token-wise rejection, 2 % too kind."""
  del judge

  def descend(node, path, chance):
    left, rest = draft.laws[node].pi, draft.laws[node].q
    for child in draft.children(node):
      token = draft.tokens[child]
      own = own_law(left, rest, draft, token)
      kind = min(1., 1.02 * left[token] / own[token]) if own[token] > 0 else 0.
      yield from descend(child, [*path, child], chance * kind)
      chance, left = chance * (1 - kind), exact._residual(left, own)
      if draft.law == 'distinct':
        rest = np.where(np.arange(len(rest)) == token, 0, rest)
        rest = rest / rest.sum() if rest.sum() > 0 else rest
    yield path, chance, left

  yield from descend(0, [], 1.)


def lenient_k_seq(judge, draft):
  """The same of k-SEQ."""
  del judge

  def descend(node, path, chance):
    here, below = draft.laws[node], draft.children(node)
    if not below:
      yield path, chance, here.pi
      return
    rho = exact._selection(here, len(below))
    for child in below:
      token = draft.tokens[child]
      kind = min(1., 1.02 * here.pi[token] / (rho * here.q[token]))
      yield from descend(child, [*path, child], chance * kind)
      chance *= 1 - kind
    b = (kept := np.minimum(here.q, here.pi / rho)).sum()
    yield path, chance, exact._residual(
        here.pi, kept * (1 - (1 - b)**len(below)) / b)

  yield from descend(0, [], 1.)


def lenient_block(judge, draft):
  """The same of block verification: every coin falls right 2 % too often."""
  blocks = list(exact._block(judge, draft))
  chances, laws = dict.fromkeys(range(draft.depth + 1), 0.), {}
  for path, chance, law in blocks:
    chances[len(path)], laws[len(path)] = chance, law
  left, biased = 1., 1.
  for j in range(draft.depth, -1, -1):      # the longest prefix comes first
    coin = min(1., 1.02 * chances[j] / left) if left > 0 else 0.
    if j in laws:
      yield list(range(1, j + 1)), biased * (coin if j else 1.), laws[j]
    left, biased = left - chances[j], biased * (1 - coin)


LENIENT = {verify.Rejection: lenient_rejection, verify.KSeq: lenient_k_seq,
           verify.Block: lenient_block}
