"""Drafters x targets x verifiers x temperatures x truncations draw from pi.

A group is a drafter, a verifier and a rule. Its batch mixes 16 warps and two
alphas by row, prompts of different lengths, rows that end early at an EOS and
rows that were finished before they began. Every cell (a warp and an alpha) is
tested against its own joint, and all cells together against the sum of theirs.
Where the joint is one text, as at temperature 0, all rows must be that text.
Where there are drafts, all rows of a group are tested once more for the one
bias that is hard to see, a lenience of 2 %: by the sum of its scores, in as
many batches as that takes.

Prints as it goes, and the time and the seed in the end: an hour on a busy
machine.
"""
import collections
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.warp import Warp
from tests import lenient
from tests.common import (
    CASES, JUDGED_CASES, JUDGED_LEVEL, LEVEL, LM, PRODUCT_CASES, PRODUCT_LEVEL,
    ROUND_CASES, ROUND_LEVEL, SAMPLER_LEVEL, SHARP, assert_counted, keys,
    lenience_p_value, lenience_power, p_value, select)
from tests.lawcases import drafts_of, exact_law

P, Q = SHARP
SEED, EOS, END = 2025, 1, 6
TREE, SMALL = (-1, 0, 0, 0, 1, 1, 2), (-1, 0, 0, 1)
DRAFTERS = dict(
    null=null.Null(), ngram=ngram.NGram(3, 1), chain=chain.Chain(LM, 2),
    stop=chain.Chain(LM, 3, chain.Below(.3)),
    iid=tree.Tree(LM, TREE, 'sampled'), distinct=tree.Tree(LM, TREE),
    small=tree.Tree(LM, SMALL), small_iid=tree.Tree(LM, SMALL, 'sampled'))
WITHOUT_Q = 'null', 'ngram'
EXACT = dict(reject=verify.Rejection(), block=verify.Block(),
             k_seq=verify.KSeq())
# Not pi: their law is `exact`'s, for drafters that it knows.
BIASED = dict(typical=verify.Typical(.3, .6), top_b=verify.TopB(2, 1.),
              rollback=verify.Rollback(2.), forced=verify.Forced(.7))
PAIRS = [(d, 'reject') for d in DRAFTERS if not d.startswith('small')] + [
    ('chain', 'block'), ('chain', 'k_seq'), ('stop', 'k_seq'), ('iid', 'k_seq')]
BIASED_PAIRS = [('chain', name) for name in BIASED] + [
    (drafter, name) for drafter in ('stop', 'ngram')
    for name in BIASED] + [
        ('small', 'typical'), ('small_iid', 'typical')]
# rule: two alphas, half of the rows each.
RULES = {
    targets.Lossy: (.3, .2), targets.LossyBeta: (.3, .2),
    targets.LossyBudget: (.1, .05), targets.Ensemble: (.5, .3),
    targets.Lenience: (.1, .3), targets.TruncatedTopP: (.1, .2),
    targets.TruncatedMinP: (.2, .1), targets.TruncatedEta: (.1, .05),
    targets.Chow: (.3, .5), targets.Diff: (0., .1), targets.OPT: (.2, .1),
    targets.ChowLog: (1., 1.2), targets.DiffLog: (0., -.2),
    targets.OPTLog: (.1, .2), targets.BiLD: (.8, 1.),
    targets.TokenV1: (0., -.1), targets.TokenV2: (.05, .1),
    targets.TokenV3: (.05, .2)}
MAKE = {'Lossless': lambda alpha: targets.Lossless(),
        **{rule.__name__: rule for rule in RULES}}
ALPHAS = {'Lossless': (0., 0.),
          **{rule.__name__: both for rule, both in RULES.items()}}
# These share a program: the branches of one `Choice`.
SHARED = [name for name, make in MAKE.items() if make(.3).uses_q]
BIASED_RULES = 'Lossless', 'TokenV1'
# Cells: every temperature, truncation and alpha.
GRID = np.array([(t, k, p, m, a) for t in (0., .5, 1., 1.5)
                 for k, p, m in ((0, 1., 0.), (3, 1., 0.), (0, .8, 0.),
                                 (0, 1., .1)) for a in (0, 1)])
# Rows of a batch: few where nothing is drawn; then those that never start.
PER_CELL = np.where(GRID[:, 0] == 0, 128, 10240)
IDLE = 256
CELL = np.random.default_rng(SEED).permutation(
    np.repeat(np.arange(-1, len(GRID)), [IDLE, *PER_CELL]))
# All end in 2 3, which is what the models look at; 4 is padding.
PROMPTS, SIZES = np.array([[0, 2, 3], [2, 3, 4], [3, 2, 3]]), [3, 2, 3]
KIND = np.arange(len(CELL)) % len(PROMPTS)
SECONDS, WORK = collections.Counter(), collections.Counter()
LOWEST = {}


def rules_of(drafter):
  return [r for r in MAKE if drafter not in WITHOUT_Q or r not in SHARED]


def biased_rules(drafter):
  return [r for r in BIASED_RULES if r in rules_of(drafter)]


# Batches of a group, where one does not show a lenience of 2 %.
RUNS = {('ngram', 'reject'): 7, ('chain', 'block'): 2, ('iid', 'k_seq'): 2}
GROUPS = [(d, v, r) for d, v in PAIRS for r in rules_of(d)]
BIASED_GROUPS = [(d, v, r) for d, v in BIASED_PAIRS for r in biased_rules(d)]


def warp_of(cells):
  column = lambda i, kind: jnp.asarray(GRID[cells, i], kind)
  real = jnp.float32
  return Warp(column(0, real), column(1, jnp.int32), column(2, real),
              column(3, real))


def target_of(rule, cells):
  alphas = np.array(ALPHAS[rule])[GRID[cells, 4].astype(int)]
  return MAKE[rule](jnp.asarray(alphas, jnp.float32))


def program_of(rule, cells):
  if rule not in SHARED:
    return target_of(rule, cells)
  return targets.Choice(tuple(target_of(r, cells) for r in SHARED),
                        jnp.int32(SHARED.index(rule)))


def joints(rule):
  """Law of three tokens after 2 3 under pi, for every cell."""
  cells = np.arange(len(GRID))

  def laws(target, warp):
    q, p = (warp(jnp.broadcast_to(x.reshape(1, 25, 5), (len(GRID), 25, 5)))
            for x in (Q, P))
    return target(q, p).pi
  pi = np.asarray(jax.jit(laws)(target_of(rule, cells), warp_of(cells)),
                  np.float64).reshape(-1, 5, 5, 5)
  return np.einsum('ca,cab,cabd->cabd', pi[:, 2, 3], pi[:, 3], pi)


def enumerated(drafter, judge, rule):
  """What `exact` says, for every cell; lookups depend on the prompt."""
  drafts = drafts_of(DRAFTERS[drafter])
  kinds = KIND[CELL >= 0]
  weights = np.zeros((len(GRID), len(PROMPTS)))
  np.add.at(weights, (CELL[CELL >= 0], kinds), 1)
  weights /= weights.sum(1, keepdims=True)
  contexts = [tuple(int(x) for x in row[:size])
              for row, size in zip(PROMPTS, SIZES)]
  if drafts.law != 'deterministic':
    contexts, weights = [(2, 3)], np.ones((len(GRID), 1))
  return np.stack([sum(share * exact_law(
      drafts, judge, target_of(rule, cell), warp_of(cell), SHARP, context).joint
      for share, context in zip(shares, contexts))
                   for cell, shares in enumerate(weights)])


def lenient_joints(drafter, judge, rule):
  """The same if the verifier is 2 % too kind."""
  if drafter == 'ngram' or judge == 'block':
    with lenient.enumerated():
      return enumerated(drafter, EXACT[judge], rule)
  cells = np.arange(len(GRID))
  return lenient.joint(
      drafts_of(DRAFTERS[drafter]), EXACT[judge], target_of(rule, cells),
      warp_of(cells), SHARP, len(GRID))[:, 2, 3]


def ended(laws):
  """The same where nothing follows an EOS: zeros."""
  out = np.zeros_like(laws)
  for text in np.ndindex(5, 5, 5):
    size = text.index(EOS) + 1 if EOS in text else 3
    out[(..., *text[:size], *(0,) * (3 - size))] += laws[(..., *text)]
  return out


def decoded(drafter, judge, rule, seed):
  """The first three tokens of every row that starts, and its cell."""
  lengths = np.where(CELL < 0, 0, np.array(SIZES)[KIND])
  prompt = types.Prompt(jnp.asarray(PROMPTS[KIND]), jnp.asarray(lengths))
  spec = decode.GenSpecSample(LM, DRAFTERS[drafter], END, judge, eos=EOS)
  params = None if drafter in WITHOUT_Q else Q
  own = np.maximum(CELL, 0)
  state = jax.block_until_ready(decode.run(
      spec, P, params, prompt, keys(len(CELL), seed), program_of(rule, own),
      warp_of(own)))
  assert_counted(state, lengths)
  assert not np.asarray(state.fault).any()
  tokens, ends = np.asarray(state.tokens), np.asarray(state.lengths)
  idle = CELL < 0
  assert (tokens[idle] == 0).all() and (ends[idle] == 0).all()
  three = tokens[np.arange(len(CELL))[:, None], lengths[:, None] + range(3)]
  full = ends == np.where(idle, 0, END)
  assert (full | (tokens[np.arange(len(CELL)), ends - 1] == EOS)).all()
  return three[~idle], CELL[~idle]


def judged(group, laws, lenient_laws, seed):
  """Tests of a group's cells and of their sum; returns the lowest p-value."""
  drafter, judge, rule = group
  judge, runs = {**EXACT, **BIASED}[judge], RUNS.get(group[:2], 1)
  counts = np.zeros((len(GRID), 5, 5, 5))
  for run in range(runs):
    tokens, cells = decoded(drafter, judge, rule, seed + 1000 * run)
    np.add.at(counts, (cells, *tokens.T), 1)
  low = 1.
  for cell, (law, count) in enumerate(zip(laws, counts)):
    if law.max() > 1 - 1e-6:                   # one text, so all rows are it
      assert count[np.unravel_index(law.argmax(), law.shape)] == count.sum(), (
          group, GRID[cell])
      continue
    p = p_value(count, law)
    assert p > PRODUCT_LEVEL, (group, GRID[cell], p)
    low = min(low, p)
  p = p_value(counts.sum(0), np.tensordot(PER_CELL, laws, 1))
  assert p > PRODUCT_LEVEL, (group, p)
  low = min(low, p)
  if lenient_laws is not None:
    assert lenience_power(
        laws, lenient_laws, runs * PER_CELL, PRODUCT_LEVEL) > .999, group
    p = lenience_p_value(counts, laws, lenient_laws)
    assert p > PRODUCT_LEVEL, (group, 'lenient', p)
  return min(low, p)


@pytest.fixture(scope='module')
def report(request):
  """Prints lines as they come, and a summary in the end."""
  capture = request.config.pluginmanager.getplugin('capturemanager')

  def say(line):
    with capture.global_and_fixture_disabled():
      print(line, flush=True)
  say('')
  yield say
  total = ', '.join(f'{name} {s:.0f} s' for name, s in SECONDS.items())
  say(f'Seed {SEED}, {len(LOWEST)} groups of {PER_CELL.sum()} rows in '
      f'{sum(SECONDS.values()):.0f} s, {sum(WORK.values()):.0f} s of processor '
      f'({total}); lowest p-value '
      f'{min(LOWEST.values(), default=1.):.2g}, each must exceed '
      f'{PRODUCT_LEVEL:.2g}; chance of a false alarm in the suite < 1e-6.')


def settle(group, laws, number, report):
  start, work = time.time(), time.process_time()
  kind = group[0] != 'null' and group[1] in EXACT
  LOWEST[group] = judged(
      group, ended(laws), ended(lenient_joints(*group)) if kind else None,
      SEED + number)
  took = time.time() - start
  SECONDS['/'.join(group[:2])] += took
  WORK['/'.join(group[:2])] += time.process_time() - work
  report(f'{"/".join(group)}: {took:.1f} s, lowest p {LOWEST[group]:.2g}')


@pytest.mark.slow
@pytest.mark.parametrize('pair', PAIRS, ids='-'.join)
def test_exact_verifiers_follow_pi(pair, report):
  for number, group in enumerate(GROUPS):
    if group[:2] == pair:
      settle(group, joints(group[2]), number, report)
  jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize('group', BIASED_GROUPS, ids='-'.join)
def test_biased_verifiers_follow_their_exact_law(group, report):
  drafter, judge, rule = group
  laws = enumerated(drafter, BIASED[judge], rule)
  number = len(GROUPS) + BIASED_GROUPS.index(group)
  settle(group, laws, number, report)


def test_false_alarms_of_all_law_tests_stay_under_one_in_a_million():
  groups = len(GROUPS) + len(BIASED_GROUPS)
  assert groups * (len(GRID) + 2) <= PRODUCT_CASES
  assert PER_CELL[GRID[:, 0] > 0].sum() >= 2**17
  assert (CASES * LEVEL + PRODUCT_CASES * PRODUCT_LEVEL
          + ROUND_CASES * ROUND_LEVEL + JUDGED_CASES * JUDGED_LEVEL
          + 8 * SAMPLER_LEVEL) < 1e-6


def test_the_product_has_every_rule_drafter_and_verifier():
  assert {v for _, v, _ in GROUPS} == set(EXACT)
  assert {d for d, _, _ in GROUPS + BIASED_GROUPS} == set(DRAFTERS)
  assert {v for _, v, _ in BIASED_GROUPS} == set(BIASED)
  assert {r for _, _, r in GROUPS} == set(MAKE)


@pytest.mark.parametrize(
    'pair', [pair for pair in PAIRS if pair[0] != 'null'], ids='-'.join)
def test_rows_of_a_group_see_a_lenience_of_two_percent(pair):
  """For the rule that hides it best; every group asserts its own."""
  rule = 'TruncatedTopP' if pair[0] == 'ngram' else 'OPTLog'
  laws, kind = ended(joints(rule)), ended(lenient_joints(*pair, rule))
  np.testing.assert_allclose(kind.sum((1, 2, 3)), 1, atol=1e-6)
  assert lenience_power(laws, kind, RUNS.get(pair, 1) * PER_CELL,
                        PRODUCT_LEVEL) > .999


@pytest.mark.slow
@pytest.mark.parametrize('pair', PAIRS + BIASED_PAIRS, ids='-'.join)
def test_rows_alone_are_rows_of_a_batch(pair):
  """At batch 1 a stop or a missing match narrows the block for real.

  The texts must be those of a batch, whose law the product tests.
  """
  drafter, judge = DRAFTERS[pair[0]], {**EXACT, **BIASED}[pair[1]]
  rows, params = 24, None if pair[0] in WITHOUT_Q else Q
  lengths, cells = jnp.array(SIZES)[KIND[:rows]], np.maximum(CELL[:rows], 0)
  prompt = types.Prompt(jnp.asarray(PROMPTS[KIND[:rows]]), lengths)
  spec = decode.GenSpecSample(LM, drafter, END, judge, eos=EOS)
  reads = pair[0] not in WITHOUT_Q and judge.supports.pi
  rule = 'TokenV1' if reads else 'Lossless'
  run = lambda at: spec(
      P, params, select(prompt, at), keys(rows)[at],
      target_of(rule, cells[at]), warp_of(cells[at]))
  together = run(slice(None))
  for row in range(rows):
    alone = run(slice(row, row + 1))
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
