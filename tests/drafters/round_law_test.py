"""Every drafter x every rule: each token of a round is drawn from pi there.

A round visits nodes of its draft; whatever it has kept so far, its next token
has the law pi = T(q, p) of the node that it stands at. So of many rows at the
same place, those that kept the same drafts are draws from one law, and p there
has to be the table's. That holds for drafters of any kind: where q comes from a
head or from guessed states, where drafts are drawn, chosen or looked up, and of
trees, too. Greedy rounds come first, so that what is drafted from has been
written by rounds.

At temperature 0 a token is what pi leaves, for every rule that leaves one.

Texts as a whole are tested in law_test.py, for drafters whose q is the same
wherever a round begins.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, verify
from spec_cascades.warp import Warp
from tests.common import (
    P, ROUND_CASES, ROUND_LEVEL, keys, p_value, prompt)
from tests.conformance_test import DRAFTERS, RULES, reads_q, verifier_of
from tests.drafters.judged_law_test import TAKEN

ROWS, WARP = 2**13, Warp(.8, top_p=.95)
STEP, INIT = map(jax.jit, (decode.GenSpecSample.step,
                           decode.GenSpecSample.init))
PLAIN = {name: rule for name, rule in RULES.items()
         if not rule.uses_q and name != 'Choice'}
# Lossless among them: what rounds that read q do without it.
READING = {'Lossless': RULES['Lossless'],
           **{name: rule for name, rule in RULES.items() if rule.uses_q}}
# Greedy rounds before: those that look up need a text that repeats itself.
BEFORE = dict(NGram=6, Jacobi=6, Lookahead=6)
CASES = [(name, judge) for judge in ('rejection', 'k_seq')
         for name in TAKEN[judge]]
JUDGES = dict(rejection=verify.Rejection(), k_seq=verify.KSeq())


def made(name, judge='rejection'):
  drafter, params = DRAFTERS[name][0][0], DRAFTERS[name][1]
  return decode.GenSpecSample(
      verifier_of(name), drafter, 40, JUDGES[judge], eos=-1), params


def choice(rules, name):
  return targets.Choice(tuple(rules.values()),
                        jnp.int32(list(rules).index(name)))


def rules_of(name):
  """Those that a drafter serves: with q, if it has one."""
  return {**PLAIN, **READING} if reads_q(name) else PLAIN


def rounds(name, judge, rules, warp=WARP, size=ROWS):
  """Of each rule: what rows emitted, the nodes they stood at, p and pi there.
  """
  spec, params = made(name, judge)
  start = INIT(spec, P, params, prompt(size), keys(size, 21))
  for _ in range(BEFORE.get(name, 2)):
    start, _ = STEP(spec, P, params, choice(rules, 'Lossless'), Warp(0.), start)
  begun = np.asarray(start.tokens[0, :start.lengths[0]])
  assert (np.asarray(start.lengths) == len(begun)).all()    # greedy: all alike
  for rule in rules:
    target = choice(rules, rule)
    end, seen = STEP(spec, P, params, target, warp, start)
    assert not np.asarray(end.fault).any()
    judged = seen.draft.judged
    p = warp(seen.logits[:, :judged.tree.tokens.shape[1]])
    pi = target(judged.prediction if target.uses_q else None, p).pi
    count = np.asarray(end.lengths) - len(begun)
    nodes = np.asarray(seen.verdict.path)
    new = np.asarray(end.tokens)[:, len(begun):len(begun) + nodes.shape[1]]
    yield rule, begun, count, new, nodes, np.asarray(p.probs), np.asarray(pi)


def laws(begun, count, new, nodes, p, pi):
  """By depth: how often each token followed each text, and how often it is due.

  By pi, and as if the rule was lossless. Asserts that p is the table's, and
  that pi depends on nothing but the text.
  """
  table = np.asarray(WARP(P.reshape(1, 25, 5)).probs).reshape(5, 5, 5)
  for depth in range(count.max()):
    rows = np.flatnonzero(count > depth)
    here = p[rows, nodes[rows, depth]], pi[rows, nodes[rows, depth]]
    context = np.concatenate(
        [np.broadcast_to(begun[-2:], (len(rows), 2)), new[rows, :depth]], 1)
    np.testing.assert_allclose(
        here[0], table[context[:, -2], context[:, -1]], atol=1e-5)
    texts, which = np.unique(context, axis=0, return_inverse=True)
    counts, plain, due = np.zeros((3, len(texts), 5))
    np.add.at(counts, (which, new[rows, depth]), 1)
    np.add.at(plain, which, here[0])
    np.add.at(due, which, here[1])
    own = due / due.sum(1, keepdims=True)
    np.testing.assert_allclose(here[1], own[which], atol=2e-5)
    yield counts, due, plain


def assert_possible(count, new, nodes, pi):
  """Greedy tokens have some pi where they stand, all of it where they must."""
  for depth in range(count.max()):
    rows = np.flatnonzero(count > depth)
    here = pi[rows, nodes[rows, depth]]
    assert (here[np.arange(len(rows)), new[rows, depth]] > 0).all()
    sure = here.max(1) == 1
    np.testing.assert_array_equal(new[rows, depth][sure],
                                  here.argmax(1)[sure])


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_each_token_of_a_round_is_drawn_from_pi(case):
  name, judge = case
  kinds, told, deep = rules_of(name), 0, 0
  for rules in (PLAIN, READING)[:1 + (kinds is not PLAIN)]:
    for _, _, *found, _, pi in rounds(name, judge, rules, Warp(0.), 8):
      assert_possible(*found, pi)
    for rule, *found in rounds(name, judge, rules):
      for depth, (counts, due, plain) in enumerate(laws(*found)):
        assert p_value(counts, due) > ROUND_LEVEL, (rule, depth)
        deep = max(deep, depth)
        # Of enough rows, those whose law the rule changes show it.
        if due.sum() > 2000 and np.abs(plain - due).sum() > .2 * due.sum():
          assert p_value(counts, plain) < ROUND_LEVEL, (rule, depth)
          told += 1
  assert deep or name == 'Null'
  assert kinds is PLAIN or told > 4


def test_false_alarms_are_allowed_for():
  """A round emits no more tokens than its draft has nodes."""
  depths = sum(made(*case)[0].drafter.num_nodes for case in CASES)
  most = (len(PLAIN) + len(READING)) * depths
  assert most <= ROUND_CASES, f'Raise ROUND_CASES of common.py to {most}.'


def test_the_drafters_with_q_are_known():
  without = {'Null', 'NGram', 'Jacobi', 'Recycling', 'Retrieval', 'Lookahead'}
  found = {name for name in DRAFTERS if rules_of(name) is PLAIN}
  assert found == without
