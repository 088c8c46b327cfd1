"""Drafters x targets x verifiers x temperatures x truncations draw from pi.

A group is a drafter, a verifier and a rule. Its batch mixes 16 warps and two
alphas by row, prompts of different lengths, rows that end early at an EOS and
rows that were finished before they began. Every cell (a warp and an alpha) is
tested against its own joint, and all cells together against the sum of theirs.
Where the joint is one text, as at temperature 0, all rows must be that text.

Prints as it goes, and the time and the seed in the end: an hour on a busy
machine.
"""
import collections
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, exact, targets, types, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.warp import Warp
from tests.common import (
    CASES, LEVEL, LM, P, PRODUCT_CASES, PRODUCT_LEVEL, Q, SAMPLER_LEVEL,
    assert_counted, keys, p_value)

SEED, EOS, END = 2025, 1, 6
TREE, SMALL = (-1, 0, 0, 0, 1, 1, 2), (-1, 0, 0, 1)
DRAFTERS = dict(
    null=null.Null(), ngram=ngram.NGram(3, 1), chain=chain.Chain(LM, 2),
    stop=chain.Chain(LM, 3, chain.Below(.6)),
    iid=tree.Tree(LM, TREE, 'sampled'), distinct=tree.Tree(LM, TREE),
    small=tree.Tree(LM, SMALL))
WITHOUT_Q = 'null', 'ngram'
EXACT = dict(reject=verify.Rejection(), block=verify.Block(),
             k_seq=verify.KSeq())
# Not pi: their law is `exact`'s, for drafters that it knows.
BIASED = dict(typical=verify.Typical(.3, .6), top_b=verify.TopB(2, 1.),
              rollback=verify.Rollback(2.), forced=verify.Forced(.7))
SHAPES = dict(chain=exact.Drafts.chain(2),
              small=exact.Drafts(SMALL, 'distinct'))
PAIRS = [(d, 'reject') for d in DRAFTERS if d != 'small'] + [
    ('chain', 'block'), ('chain', 'k_seq'), ('stop', 'k_seq'), ('iid', 'k_seq')]
BIASED_PAIRS = [('chain', name) for name in BIASED] + [('small', 'typical')]
# rule: two alphas, half of the rows each.
RULES = {
    targets.Lossy: (.3, .6), targets.LossyBeta: (.3, .7),
    targets.LossyBudget: (.05, .2), targets.Ensemble: (.3, .7),
    targets.Lenience: (.3, .7), targets.TruncatedTopP: (.2, .5),
    targets.TruncatedMinP: (.2, .5), targets.TruncatedEta: (.05, .2),
    targets.Chow: (.4, .6), targets.Diff: (.1, -.1), targets.OPT: (.3, 1.),
    targets.ChowLog: (1., .6), targets.DiffLog: (.1, -.2),
    targets.OPTLog: (.2, 1.), targets.BiLD: (1., 2.),
    targets.TokenV1: (.3, .6), targets.TokenV2: (.1, .3),
    targets.TokenV3: (.2, .5)}
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
PER_CELL = np.where(GRID[:, 0] == 0, 128, 5504)
IDLE = 256
CELL = np.random.default_rng(SEED).permutation(
    np.repeat(np.arange(-1, len(GRID)), [IDLE, *PER_CELL]))
# All end in 2 3, which is what the models look at; 4 is padding.
PROMPTS = np.array([[0, 2, 3], [2, 3, 4], [3, 2, 3]])
SECONDS, WORK = collections.Counter(), collections.Counter()
LOWEST = {}


def rules_of(drafter):
  return [r for r in MAKE if drafter not in WITHOUT_Q or r not in SHARED]


GROUPS = [(d, v, r) for d, v in PAIRS for r in rules_of(d)]
BIASED_GROUPS = [(d, v, r) for d, v in BIASED_PAIRS for r in BIASED_RULES]


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


@functools.cache
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


def biased_joints(drafter, judge, rule):
  table = lambda x: lambda c, x=np.asarray(x): x[c[-2], c[-1]]
  return np.stack([exact.law(
      table(Q), table(P), target_of(rule, cell), warp_of(cell),
      drafts=SHAPES[drafter], judge=judge, context=(2, 3)).joint
                   for cell in range(len(GRID))])


def ended(laws):
  """The same where nothing follows an EOS: zeros."""
  out = np.zeros_like(laws)
  for text in np.ndindex(5, 5, 5):
    size = text.index(EOS) + 1 if EOS in text else 3
    out[(..., *text[:size], *(0,) * (3 - size))] += laws[(..., *text)]
  return out


def decoded(drafter, judge, rule, seed):
  """The first three tokens of every row that starts, and its cell."""
  kind = np.arange(len(CELL)) % len(PROMPTS)
  lengths = np.where(CELL < 0, 0, np.where(kind == 1, 2, 3))
  prompt = types.Prompt(jnp.asarray(PROMPTS[kind]), jnp.asarray(lengths))
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


def judged(group, laws, seed):
  """Tests of a group's cells and of their sum; returns the lowest p-value."""
  drafter, judge, rule = group
  judge = {**EXACT, **BIASED}[judge]
  tokens, cells = decoded(drafter, judge, rule, seed)
  counts = np.zeros((len(GRID), 5, 5, 5))
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
  LOWEST[group] = judged(group, ended(laws), SEED + number)
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
  laws = biased_joints(drafter, BIASED[judge], rule)
  number = len(GROUPS) + BIASED_GROUPS.index(group)
  settle(group, laws, number, report)


def test_false_alarms_of_all_law_tests_stay_under_one_in_a_million():
  groups = len(GROUPS) + len(BIASED_GROUPS)
  assert groups * (len(GRID) + 1) <= PRODUCT_CASES
  assert PER_CELL[GRID[:, 0] > 0].sum() >= 2**17
  assert (CASES * LEVEL + PRODUCT_CASES * PRODUCT_LEVEL
          + 4 * SAMPLER_LEVEL) < 1e-6


def test_the_product_has_every_rule_drafter_and_verifier():
  assert {v for _, v, _ in GROUPS} == set(EXACT)
  assert {d for d, _, _ in GROUPS} == set(DRAFTERS) - {'small'}
  assert {v for _, v, _ in BIASED_GROUPS} == set(BIASED)
  assert {r for _, _, r in GROUPS} == set(MAKE)
