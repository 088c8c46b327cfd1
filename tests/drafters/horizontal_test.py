"""Positions of two drafters: whose they are, what both have read, the law."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import (
    adaptive, chain, early_exit, horizontal, lookahead, masked, medusa, ngram,
    null, recycling, tree, vertical)
from spec_cascades.models import heads, masks, prefill, toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, assert_same_slots, joint, keys, p_value, prompt,
    tally)
from tests.toys import BIG, PB, PS, SMALL

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
PROMPT = types.Prompt(jnp.array([[3, 2, 3, 4], [3, 0, 0, 0], [2, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
TINY = toy.ToyLM(layers=1, scale=3.)
PT = TINY.init_params(jax.random.key(2))
LOOKUP, BOTH = ngram.NGram(2, 1), horizontal.Horizontal
TWIN = chain.Chain(BIG, 2)
TWO = [(BIG, PB)] * 2
# name: (drafter, parameters, models whose q is at each node). The first model
# is the verifier's twin, so that all that it drafts is accepted.
MADE = dict(
    chains=(BOTH(TWIN, chain.Chain(SMALL, 2)), (PB, PS),
            TWO + [(SMALL, PS)] * 2),
    lookup=(BOTH(TWIN, LOOKUP), (PB, None), TWO),
    vertical=(BOTH(vertical.Vertical(BIG, chain.Chain(SMALL, 1), 2), LOOKUP),
              ((PB, PS), None), TWO),
    tree=(BOTH(vertical.Vertical(BIG, tree.Tree(SMALL, (-1, 0, 0, 1)), 2),
               LOOKUP), ((PB, PS), None), TWO),
    three=(BOTH(chain.Chain(BIG, 1), BOTH(chain.Chain(SMALL, 2), LOOKUP)),
           (PB, (PS, None)), [(BIG, PB), (SMALL, PS), (SMALL, PS)]),
    inside=(vertical.Vertical(SMALL, BOTH(chain.Chain(SMALL, 1),
                                          chain.Chain(TINY, 2)), 3),
            (PS, (PS, PT)), [(SMALL, PS)] * 4))


def said(lm, params, tokens, lengths, nodes):
  """Logits of a model that has just read everything."""
  cache = prefill.prefill(lm, params, types.Prompt(tokens, lengths), 40)[1]
  return lm.head(params, lm.extend(params, cache, nodes)[0])


@pytest.mark.parametrize('name,rule', [
    *(pytest.param(name, LOSSLESS, marks=[pytest.mark.slow] * (name == 'tree'))
      for name in MADE), ('chains', CHOW)],
                         ids=lambda x: x if isinstance(x, str) else
                         type(x).__name__)
def test_each_position_has_q_of_its_model_having_read_everything(name, rule):
  """Whatever was accepted that the model had not read."""
  drafter, params, models = MADE[name]
  models = models + models[-1:] * (rule is CHOW)        # at the leaf, too
  spec = decode.GenSpecSample(BIG, drafter, 26, eos=-1)
  step, fresh = jax.jit(spec.step), jax.jit(said, static_argnums=0)
  state, accepted = jax.jit(spec.init)(PB, params, PROMPT, keys(3)), []
  for _ in range(5):
    before, (state, seen) = state, step(PB, params, rule, Warp(), state)
    nodes, q = seen.draft.tree, seen.draft.prediction
    for node, (lm, own) in enumerate(models):
      want = fresh(lm, own, before.tokens, before.lengths, nodes)[:, node]
      np.testing.assert_allclose(q.logits[:, node], want, atol=2e-4)
    accepted += seen.verdict.count.tolist()
  assert max(accepted) > (2 if name != 'inside' else 0)


@pytest.mark.parametrize('name', ['vertical', 'tree'])
def test_what_drafts_inside_reads_what_was_looked_up(name):
  """It lacks no token but the last lookups, and the one before the root."""
  drafter, params, _ = MADE[name]
  spec = decode.GenSpecSample(BIG, drafter, 26, eos=-1)
  step, accepted = jax.jit(spec.step), []
  state = jax.jit(spec.init)(PB, params, PROMPT, keys(3))
  for _ in range(4):
    state, seen = step(PB, params, LOSSLESS, Warp(), state)
    accepted += seen.verdict.count.tolist()
  assert max(accepted) > 2
  read = types.Prompt(state.tokens, state.lengths - LOOKUP.length - 1)
  assert_same_slots(state.drafter.first.inner,
                    prefill.prefill(SMALL, PS, read, 40)[1])


def test_a_draft_goes_on_where_the_first_one_stops():
  """In plain Python: greedy counts of a table, then what followed before."""
  stops = BOTH(chain.Chain(LM, 3, chain.Below(.6)), ngram.NGram(3, 1))
  spec = decode.GenSpecSample(LM, stops, 24, eos=-1)
  step = jax.jit(spec.step)
  logits, soft = np.asarray(Q), np.asarray(jax.nn.softmax(Q))
  state, ends = spec.init(P, (Q, None), PROMPT, keys(3)), set()
  for _ in range(6):
    before, (state, seen) = state, step(
        P, (Q, None), LOSSLESS, Warp(1., top_k=1), state)
    for row in np.flatnonzero(seen.live):
      text = before.tokens[row, :before.lengths[row]].tolist()
      start = len(text)
      while len(text) < start + 3:
        at = (0, *text)[-2:]
        if soft[at].max() < .6:
          break
        text.append(int(logits[at].argmax()))
      own = len(text) - start
      last = max((i for i in range(len(text) - 1) if text[i] == text[-1]),
                 default=None)
      copied = [] if last is None else text[last + 1:][:3]
      tree_ = seen.draft.tree
      drafts = tree_.tokens[row][tree_.parents[row] >= 0].tolist()
      assert drafts == text[start:] + copied
      ends.add((own, len(copied)))
      probs = seen.draft.prediction.probs[row]
      want = np.eye(5)[drafts]
      np.testing.assert_array_equal(probs[:len(drafts)], want)
  assert len({own for own, _ in ends}) > 1 and len({n for _, n in ends}) > 1


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] * (name == 'tree'))
    for name in MADE])
def test_greedy_tokens_are_those_without_drafts(name):
  drafter, params, _ = MADE[name]
  run = lambda drafter, params: decode.GenSpecSample(BIG, drafter, 26, eos=-1)(
      PB, params, PROMPT, keys(3), LOSSLESS, Warp(0.))
  got, want = run(drafter, params), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)


CASES = dict(
    lookup=(BOTH(chain.Chain(LM, 1), LOOKUP), None, verify.Rejection()),
    chains=(BOTH(chain.Chain(LM, 1), chain.Chain(LM, 1)), P + .5 * Q.T,
            verify.Block()),
    stops=(BOTH(chain.Chain(LM, 2, chain.Below(.5)), LOOKUP), None,
           verify.Rejection()))


@pytest.mark.parametrize('name', [
    'lookup', *(pytest.param(name, marks=pytest.mark.slow)
                for name in ('chains', 'stops'))])
def test_rows_follow_the_exact_joint(name):
  drafter, second, judge = CASES[name]
  spec = decode.GenSpecSample(LM, drafter, 6, judge, eos=-1)
  state = spec(P, (Q, second), prompt(ROWS), keys(ROWS), LOSSLESS, Warp())
  assert p_value(tally(state), joint(LOSSLESS, Warp())) > LEVEL
  assert p_value(tally(state), joint(LOSSLESS, Warp(.9))) < LEVEL


def test_block_verification_is_exact_where_the_first_drafts_an_end():
  """How long rows are is as without drafts, but once in 1e6."""
  def lengths(drafter, params):
    spec = decode.GenSpecSample(
        LM, drafter, 10, verify.Block() if params else verify.Rejection(),
        eos=1)
    state = spec(P, params, prompt(2**13), keys(2**13), LOSSLESS, Warp())
    return np.bincount(state.lengths, minlength=11)[4:]

  both = BOTH(chain.Chain(LM, 2), chain.Chain(LM, 2))
  some = lengths(both, (Q, P + .5 * Q.T)), lengths(null.Null(), None)
  assert stats.chi2_contingency(some).pvalue > 1e-6


def test_each_learns_of_its_own_drafts_only():
  """Of 2 + 2 drafts 1, 2 and 4 were accepted."""
  own = adaptive.Adaptive(chain.Chain(LM, 2), .01, weight=4., memory=.5)
  both = BOTH(own, own)
  state = both.init((Q, Q), prompt(3), None, 20)
  state = state.replace(own=jnp.full(3, 2), lengths=jnp.full(3, 3))
  nodes = types.chain(jnp.zeros((3, 5), jnp.int32))
  draft = types.Draft(nodes, None, jnp.zeros(3, jnp.int32), max_depth=4)
  verdict = types.Verdict(jnp.tile(jnp.arange(5), (3, 1)),
                          jnp.array([1, 2, 4]), jnp.zeros(3, jnp.int32))
  after = jax.jit(both.observe)((Q, Q), state, types.Feedback(
      draft, jnp.zeros((3, 5, 5)), jnp.zeros((3, 5, 5)), verdict,
      jnp.full(3, True)))
  begun = state.first
  new = lambda part: [part.accepted - .5 * begun.accepted,
                      part.judged - .5 * begun.judged]
  np.testing.assert_allclose(new(after.first), [[1, 2, 2], [2, 2, 2]], 1e-6)
  np.testing.assert_allclose(       # the first row was not told
      new(after.second), [[.5 * begun.accepted[0], 0, 2],
                          [.5 * begun.judged[0], 1, 2]], 1e-6, 1e-6)
  assert after.first.cache.length.tolist() == [4, 5, 7]
  assert after.second.cache.length.tolist() == [4, 5, 7]


SMALL_TREE = tree.Tree(LM, (-1, 0, 0))
EARLY = early_exit.EarlyExit(chain.Chain(LM, 2), 1)
MASKS = masks.Masked(LM, masks.MasksConfig(1))
HEADS = medusa.Medusa(heads.Headed(LM, heads.HeadsConfig(1)), ((0,),))


@pytest.mark.parametrize('drafter,params,rule,match', [
    (BOTH(chain.Chain(LM, 1), LOOKUP), (Q, None), CHOW,
     'no q of deterministic'),
    (BOTH(chain.Chain(LM, 1), lookahead.Lookahead(5, 2, 3, 1, 8)), (Q, None),
     LOSSLESS, 'got .deterministic. drafts, chain=False'),
    (BOTH(recycling.Recycling(5), LOOKUP), (None, None), LOSSLESS,
     'got .deterministic. drafts, chain=False'),
    (BOTH(chain.Chain(LM, 1), SMALL_TREE), (Q, Q), LOSSLESS,
     'Horizontal got .distinct. drafts, chain=False; allowed: chains'),
    (BOTH(chain.Chain(LM, 1), HEADS), (Q, Q), LOSSLESS,
     'Horizontal got Medusa, which has no `lagging`; allowed'),
    (BOTH(vertical.Vertical(LM, HEADS, 2), LOOKUP), ((Q, Q), None),
     LOSSLESS, 'Vertical got Medusa, which has no `lagging`; allowed'),
    (BOTH(chain.Chain(LM, 1), EARLY), (Q, Q), LOSSLESS, 'put it first'),
    (BOTH(chain.Chain(LM, 1), masked.PaSS(MASKS, 2)), (Q, Q), LOSSLESS,
     'PaSS drafts on the verifier.s cache, .* put it first'),
    (BOTH(chain.Chain(LM, 1), LOOKUP), dict(model=Q, heads=Q), LOSSLESS,
     'draft_params is a dict; allowed: for Horizontal a tuple of 2, the')])
def test_what_does_not_go_together_is_refused(drafter, params, rule, match):
  spec = decode.GenSpecSample(LM, drafter, 12, eos=-1)
  with pytest.raises(ValueError, match=match):
    spec(P, params, PROMPT, keys(3), rule, Warp())
