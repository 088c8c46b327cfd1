"""Temporaries at 262,144 entries and 64 nodes stay under a GiB; compiled only.

`scripts/benchmark.py memory` prints all combinations of rules and verifiers.
"""
import pytest

from spec_cascades import verify
from spec_cascades.drafters import chain
from spec_cascades.evaluation import memory
from spec_cascades.evaluation import rules

LAST = {type(judge).__name__: (judge, shape)
        for judge, shape in memory.combinations()}
TREE = LAST['Rejection']
LAW = 4 * memory.VOCAB * memory.NODES            # bytes of one distribution


def test_every_verifier_has_the_drafts_it_takes():
  found = [(type(judge).__name__, shape.name, shape.law)
           for judge, shape in memory.combinations()]
  assert len(found) == len(set(found)) == 12
  assert {name for name, *_ in found} == {
      type(judge).__name__ for judge in memory.VERIFIERS}
  assert TREE[1].name == 'tree' and len(TREE[1].parents) == memory.NODES


@pytest.mark.parametrize('name', rules.RULES)
def test_a_rule_on_a_tree_stays_under_the_limit(name):
  # p~ itself must be kept: less would mean that something was left out.
  assert LAW <= memory.fusing(name, *TREE) <= memory.LIMIT


@pytest.mark.parametrize('judge', LAST.values(), ids=LAST)
def test_a_verifier_stays_under_the_limit_with_the_largest_rule(judge):
  assert LAW <= memory.fusing('LossyBudget', *judge) <= memory.LIMIT


def test_a_whole_round_stays_under_the_limit():
  drafter = lambda lm: chain.Chain(lm, memory.NODES - 1)
  size = memory.stepping('LossyBudget', verify.Rejection(), drafter)
  assert LAW <= size <= memory.LIMIT
