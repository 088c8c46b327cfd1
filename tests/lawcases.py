"""Which drafters, verifiers, rules and warps the law tests decode."""
import dataclasses
from typing import Any

import numpy as np

from spec_cascades import exact, targets, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.warp import Warp
from tests import lenient
from tests.common import LM, PREFIX, SHARP

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.3)
REJECT, BLOCK, KSEQ = verify.Rejection(), verify.Block(), verify.KSeq()
TREE = (-1, 0, 0, 0, 1)
CHAIN = chain.Chain(LM, 2)            # gamma < 3, or no bonus is ever seen
STOP = chain.Chain(LM, 3, chain.Below(.3))
IID, DISTINCT = tree.Tree(LM, TREE, 'sampled'), tree.Tree(LM, TREE)
PAIR = tree.Tree(LM, (-1, 0, 0), 'sampled')
LOOKUP = ngram.NGram(3, 1)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is decoded; `runs` batches, as many as 2 % of lenience need."""
  drafter: Any
  target: Any = LOSSLESS
  warp: Any = Warp()
  verifier: Any = REJECT
  runs: int = 1

  def __str__(self):
    rule = self.target
    if isinstance(rule, targets.Choice) and len(rule.rules) > 2:
      rule = rule.rules[rule.index]
    parts = self.drafter, self.verifier, rule
    names = '-'.join(type(x).__name__ + getattr(x, 'law', '') for x in parts)
    return names + '-warped' * (self.warp != Warp())


# In one program, which each of them takes a turn in.
PAPER = (targets.Lossy(.3), targets.LossyBeta(.3), targets.Diff(0.),
         targets.OPT(.2), targets.TokenV1(0.), targets.TokenV2(.05),
         targets.TokenV3(.05))
# Each drafter, law and verifier that draws from pi, and the paper's rules; the
# other rules are among the slow ones, and in every run in reference_test.py.
FAST = [
    Case(null.Null(), warp=Warp(.5, top_p=.8)),            # nothing to accept
    Case(LOOKUP, runs=8),
    Case(CHAIN),
    Case(CHAIN, CHOW, Warp(.7, top_k=4, top_p=.95, min_p=.05), runs=2),
    Case(STOP, CHOW),
    Case(IID), Case(DISTINCT),
    Case(CHAIN, targets.TokenV3(.05), verifier=BLOCK, runs=2),
    Case(PAIR, verifier=KSEQ, runs=2),
    Case(CHAIN, targets.Choice((LOSSLESS, CHOW), 1))] + [
        Case(CHAIN, targets.Choice(PAPER, i)) for i in range(len(PAPER))]
SLOW = [
    Case(STOP), Case(CHAIN, verifier=KSEQ),
    Case(IID, CHOW), Case(IID, targets.Lossy(.3), Warp(.5), runs=2),
    Case(DISTINCT, targets.TokenV1(0.), Warp(.7, top_p=.9), runs=2),
    Case(DISTINCT, CHOW), Case(DISTINCT, warp=Warp(.7, top_k=3), runs=2),
    Case(IID, verifier=KSEQ, runs=2),
    Case(IID, CHOW, Warp(.5), KSEQ, runs=3),
    Case(IID, targets.TokenV1(0.), Warp(.7, top_p=.9), KSEQ, runs=3),
    Case(CHAIN, verifier=BLOCK, runs=2),
    Case(CHAIN, CHOW, Warp(.7), BLOCK, runs=2)] + [
        Case(CHAIN, rule, warp, runs=2) for rule, warp in (
            (targets.ChowLog(1.), Warp()), (targets.DiffLog(0.), Warp()),
            (targets.OPTLog(.1), Warp()), (targets.BiLD(.8), Warp()),
            (targets.Lossy(.3), Warp(.7, top_p=.9)),
            (targets.LossyBudget(.1), Warp()), (targets.Ensemble(.5), Warp()),
            (targets.Lenience(.1), Warp()),
            (targets.TruncatedTopP(.1), Warp()),
            (targets.TruncatedMinP(.2), Warp(.7)),
            (targets.TruncatedEta(.1), Warp(1., eta=.02)),
            (targets.OPT(.2), Warp(1.5)), (targets.Diff(0.), Warp(.7)),
            (targets.TokenV1(0.), Warp(.7)), (targets.TokenV2(.05), Warp(1.3)),
            (targets.TokenV3(.05), Warp(1., top_k=3)))]


def drafts_of(drafter):
  """What `exact` calls the drafts of a drafter."""
  if isinstance(drafter, chain.Chain):
    return exact.Drafts.chain(drafter.length, drafter.stop)
  if isinstance(drafter, tree.Tree):
    return exact.Drafts(drafter.parents, drafter.law)
  most = drafter.length

  def copied(context):
    """What followed the latest occurrence of the most of the last tokens."""
    for size in range(min(drafter.order, len(context)), 0, -1):
      last = context[len(context) - size:]
      for at in range(len(context) - size - 1, -1, -1):
        if context[at:at + size] == last:
          return context[at + size:][:most]
    return ()
  return exact.Drafts(tuple(range(-1, most)), 'deterministic', copied)


def table(logits):
  """A model that `exact` can ask."""
  logits = np.asarray(logits)
  return lambda context: logits[context[-2], context[-1]]


def lenient_law(case):
  """Law of three tokens after `PREFIX` if a case's verifier is 2 % too kind."""
  drafts = drafts_of(case.drafter)
  parts = drafts, case.verifier, case.target, case.warp
  if drafts.law != 'deterministic' and type(case.verifier) in lenient.NODES:
    return lenient.joint(*parts, SHARP)[0][PREFIX[-2:]]
  with lenient.enumerated():
    return exact_law(*parts).joint


def exact_law(drafts, judge, target, warp, tables=SHARP, context=PREFIX):
  """`exact.law` after a context; without q for lookups."""
  p, q = map(table, tables)
  return exact.law(None if drafts.law == 'deterministic' else q, p, target,
                   warp, drafts=drafts, judge=judge, context=context)
