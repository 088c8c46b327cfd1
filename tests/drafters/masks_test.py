"""Masks: what they predict, PaSS's and SPACE's drafts, and their law."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import masked, null, space
from spec_cascades.models import masks, recompute, toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, ROWS, joint, keys, p_value, prompt, tally)

LOSSLESS = targets.Lossless()
PROMPT = types.Prompt(jnp.array([[3, 1, 4, 1], [2, 0, 0, 0], [0, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
TOY = toy.ToyLM(layers=1, width=8)
MASKED = masks.Masked(TOY, masks.MasksConfig(3))
TABLE = masks.Masked(LM, masks.MasksConfig(3))
PARAMS = jax.jit(MASKED.init_params)(jax.random.key(3))
OF_TABLE = dict(model=P, heads=dict(embedding=jax.random.dirichlet(
    jax.random.key(5), jnp.full(5, .3), (3,))))
ANY = recompute.Recompute(lambda *_: None, 5)
STEP, INIT = map(jax.jit, (decode.GenSpecSample.step,
                           decode.GenSpecSample.init))


@jax.jit
def behind(params, tokens, embedded):
  """Logits at masks behind a text, of a model that reads all in one chain."""
  nodes = types.chain(jnp.pad(tokens[None], ((0, 0), (0, len(embedded)))))
  empty = types.Prompt(tokens[None, :1], jnp.ones(1, jnp.int32))
  hidden, _ = TOY.extend(params, TOY.init(params, empty, 40), nodes.replace(
      embedded=embedded[None]))
  return TOY.head(params, hidden)[0, -1 - len(embedded):]


def laws_of(drafter, steps=4):
  """Round by round: texts before, laws of drafts, and which rows are live."""
  spec = decode.GenSpecSample(TOY, drafter, 16, eos=-1)
  state, given = INIT(spec, PARAMS['model'], PARAMS, PROMPT, keys(3)), []
  for _ in range(steps):
    before = jax.device_get((state.tokens, state.lengths))
    state, seen = STEP(spec, PARAMS['model'], PARAMS, targets.Chow(.4), Warp(),
                       state)
    given.append((*before, jax.device_get(seen)))
  return given


@pytest.mark.slow
def test_pass_reads_masks_behind_the_root():
  """The law at the root is p, and each mask's follows from the text alone."""
  table = PARAMS['heads']['embedding']
  for tokens, lengths, seen in laws_of(masked.PaSS(MASKED, 3), 2):
    logits = seen.draft.prediction.logits
    for row in range(3):
      want = behind(PARAMS['model'], jnp.asarray(tokens[row, :lengths[row]]),
                    table)
      np.testing.assert_allclose(logits[row], want, atol=1e-5)
    np.testing.assert_array_equal(seen.draft.calls, 1)


@pytest.mark.slow
def test_space_reads_masks_behind_the_last_accepted_candidate():
  """In the pass that accepted it: its path is seen, and nothing else is."""
  table, ends = PARAMS['heads']['embedding'], None
  for tokens, lengths, seen in laws_of(space.Space(MASKED, 2)):
    logits = seen.draft.prediction.logits
    for row in range(3):
      if ends is None:                     # as PaSS, in a pass of its own
        text, rows = tokens[row, :lengths[row]], slice(0, 3)
      else:                                # without the verdict's own token
        text, rows = tokens[row, :lengths[row] - 1], slice(1, 4)
      want = behind(PARAMS['model'], jnp.asarray(text), table)[rows]
      np.testing.assert_allclose(logits[row], want, atol=1e-5)
    np.testing.assert_array_equal(seen.draft.calls, ends is None)
    ends = seen.verdict.count
  assert seen.draft.scratch == 9 and seen.draft.tree.tokens.shape == (3, 12)


def test_groups_see_their_candidate_and_themselves():
  """A root, one draft, two masks each."""
  nodes = masks.grouped(types.chain(jnp.array([[4, 2]])), jnp.ones((1, 4, 8)),
                        2)
  assert nodes.depth[0].tolist() == [0, 1, 1, 2, 2, 3]
  assert nodes.parents[0].tolist() == [-1, 0, -1, -1, -1, -1]
  assert nodes.mask[0].astype(int).tolist() == [
      [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0],
      [1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]


@pytest.mark.parametrize('drafter', [
    pytest.param(masked.PaSS(MASKED, 3), marks=pytest.mark.slow),
    space.Space(MASKED, 3)], ids=lambda x: type(x).__name__)
def test_greedy_tokens_are_those_without_drafts(drafter):
  run = lambda drafter, given: decode.GenSpecSample(TOY, drafter, 24, eos=-1)(
      PARAMS['model'], given, PROMPT, keys(3), LOSSLESS, Warp(0.))
  got, want = run(drafter, PARAMS), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  assert (got.stats.rounds < want.stats.rounds).all()
  assert not np.asarray(got.fault).any()


@pytest.mark.parametrize('make,judge', [
    (space.Space, verify.Rejection()),
    *(pytest.param(make, judge, marks=pytest.mark.slow) for make, judge in (
        (masked.PaSS, verify.Rejection()), (space.Space, verify.Block()),
        (masked.PaSS, verify.Block())))], ids=lambda x: getattr(
            x, '__name__', type(x).__name__))
def test_sampled_rows_follow_the_exact_joint(make, judge):
  """Laws depend on what was drawn before; the joint must not."""
  spec = decode.GenSpecSample(LM, make(TABLE, 2), 6, judge, eos=-1)
  state = spec(P, OF_TABLE, prompt(ROWS), keys(ROWS), LOSSLESS, Warp())
  assert p_value(tally(state), joint(LOSSLESS, Warp())) > LEVEL
  assert p_value(tally(state), joint(LOSSLESS, Warp(.9))) < LEVEL
  assert (np.asarray(state.stats.accepted) > 0).mean() > .2


@pytest.mark.slow
def test_a_rule_that_reads_q_gets_that_of_the_round():
  """pi of each round from its own q: tokens that q is sure of, without p."""
  for make in (masked.PaSS, space.Space):
    spec = decode.GenSpecSample(LM, make(TABLE, 2), 20, eos=-1)
    run = lambda rule, spec=spec: spec(P, OF_TABLE, prompt(64), keys(64), rule,
                                       Warp())
    sure, never = run(targets.Chow(1.)), run(targets.Chow(0.))
    assert (sure.stats.rejected == 0).all() and (sure.stats.deferred == 0).all()
    assert (never.stats.deferred > 0).all() and never.stats.rejected.sum() > 0


@pytest.mark.parametrize('call,match', [
    (lambda: masked.PaSS(MASKED, 5), 'PaSS with length 5 takes 4 masks'),
    (lambda: space.Space(MASKED, 4), 'Space with length 4 takes 4 masks'),
    (lambda: space.Space(MASKED, 0), 'draft length'),
    (lambda: masks.MasksConfig(0), 'count of MasksConfig is 0'),
    (lambda: decode.GenSpecSample(TOY, space.Space(MASKED, 3), 8)(
        PARAMS['model'], PARAMS, PROMPT, keys(3), targets.Chow(.4), Warp()),
     'Space with length 3 takes 4 masks here'),
    (lambda: ANY.extend(
        None, ANY.init(None, PROMPT, 9), types.chain(PROMPT.prefix).replace(
            embedded=jnp.zeros((3, 2, 8)))),
     'Recompute reads tokens, but got embeddings')])
def test_what_cannot_be_drafted_is_refused(call, match):
  with pytest.raises(ValueError, match=match):
    call()
