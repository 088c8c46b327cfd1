"""Several models draft one tree; each node has the law of who drew it."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, exact, targets, types, verify
from spec_cascades.drafters import specinfer, tree
from spec_cascades.models import prefill, table
from spec_cascades.warp import Warp, sample
from tests.common import (
    LEVEL, LM, P, Q, ROWS, SHARP, assert_same_slots, joint, keys, p_value,
    prompt, select, tally)
from tests.toys import PS, PS2, SMALL

LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.3)
REJECT = verify.Rejection()
OTHER = jnp.flip(Q, -1)
TREES = (-1, 0, 1), (-1, 0, 0, 1)
DRAFTER = specinfer.SpecInfer((LM, LM), TREES)


def test_nodes_are_listed_by_level_then_by_model():
  """Root; 1 of the first, 2 and 3 of the second; their children."""
  assert DRAFTER.nodes == ((-1, 0, 0, 0, 1, 2), (-1, 0, 1, 1, 0, 1))
  assert DRAFTER.num_nodes == 6


def judged(draw, rows=2**13):
  """What follows the root: `draw` gives two children and their laws."""
  q, pi = (jax.nn.softmax(x[2, 3]) for x in (Q, P))

  def one(key, q, other, pi):
    *drawing, judging = jax.random.split(key, 3)
    (x, law_x), (y, law_y) = draw(drawing, q, other)
    nodes = types.tree(jnp.array([[0, x, y]]), (-1, 0, 0))
    laws = jnp.stack([jnp.zeros(5), law_x, law_y])
    draft = types.Draft(select(nodes, 0), None, jnp.int32(0), 'given', 1,
                        laws=laws)
    rows = jnp.stack([pi] * 3)
    verdict = REJECT(judging, draft, types.Prediction(jnp.log(rows), rows),
                     rows)
    return jnp.where(verdict.count > 0, draft.tree.tokens[verdict.path[1]],
                     verdict.next_token)

  found = jax.jit(jax.vmap(one, (0, None, None, None)))(
      jax.random.split(jax.random.key(5), rows), q, jnp.roll(q, 1), pi)
  return p_value(np.bincount(np.asarray(found), minlength=5), np.asarray(pi))


def test_children_of_two_models_are_judged_by_their_own_laws():
  draw = lambda keys, q, other: ((sample(q, keys[0]), q),
                                 (sample(other, keys[1]), other))
  assert judged(draw) > LEVEL
  # Both judged as if the first model had drawn them; as if they were swapped.
  taken = lambda a, b: lambda keys, q, other: tuple(
      (x, (q, other)[i]) for (x, _), i in zip(draw(keys, q, other), (a, b)))
  assert judged(taken(0, 0)) < LEVEL and judged(taken(1, 0)) < LEVEL


def test_rows_follow_the_exact_joint():
  """Chow reads q of the first model, whoever drew a node."""
  assert followed(DRAFTER, CHOW, Warp(.7), 2**15) > LEVEL


def followed(drafter, target, warp, rows, tables=(P, Q, OTHER)):
  p, *draft = tables
  state = decode.GenSpecSample(LM, drafter, 6, eos=-1)(
      p, tuple(draft), prompt(rows), keys(rows), target, warp)
  assert not state.fault.any()
  return p_value(tally(state), joint(target, warp, (p, draft[0])))


@pytest.mark.slow
@pytest.mark.parametrize('target,warp', [
    (LOSSLESS, Warp()), (targets.TokenV1(0.), Warp(.7, top_p=.9)),
    (targets.Lossy(.3), Warp(1., top_k=3))])
@pytest.mark.parametrize('law', ['sampled', 'distinct'])
def test_more_rows_follow_the_exact_joint(law, target, warp):
  p, q = SHARP
  drafter = specinfer.SpecInfer((LM, LM), ((-1, 0, 0, 1), (-1, 0, 0, 1)), law)
  assert followed(drafter, target, warp, ROWS, (p, q, jnp.flip(q, -1))) > LEVEL


@pytest.mark.slow
def test_caches_equal_a_fresh_prefill_after_some_rounds():
  """Of both models, also where a node of the other one was accepted."""
  drafter = specinfer.SpecInfer((SMALL, SMALL), TREES)
  spec = decode.GenSpecSample(SMALL, drafter, 24, eos=-1)
  params, rows = SMALL.init_params(jax.random.key(3)), 64
  state = spec.init(params, (PS, PS2), prompt(rows), keys(rows))
  step = jax.jit(decode.GenSpecSample.step)
  crossed, models = 0, np.array(drafter.nodes[1])
  for _ in range(4):
    state, seen = step(spec, params, (PS, PS2), CHOW, Warp(), state)
    for path, count in zip(*jax.device_get((seen.verdict.path,
                                            seen.verdict.count))):
      crossed += len(set(models[path[1:count + 1]])) > 1
  fresh = jax.jit(prefill.prefill, static_argnums=(0, 3))
  read = types.Prompt(state.tokens, state.lengths)
  for cache, own in zip(state.drafter, (PS, PS2)):
    got, want = jax.device_get((cache, fresh(SMALL, own, read, 32)[1]))
    np.testing.assert_array_equal(got.length, want.length)
    assert_same_slots(got, want)
  assert crossed


def tokens_a_call(*params):
  """Of chains of 2, one a model: mean of 512 rows, known to .01 or better."""
  several = len(params) > 1
  drafter = (specinfer.SpecInfer((LM, LM), ((-1, 0, 1),) * 2) if several
             else tree.Tree(LM, (-1, 0, 1)))
  state = decode.GenSpecSample(LM, drafter, 40, eos=-1)(
      P, params if several else params[0], prompt(512), keys(512), LOSSLESS,
      Warp())
  return (state.stats.emitted / state.stats.rounds).mean()


@pytest.mark.slow
def test_models_that_complement_each_other_are_accepted_more_often():
  """Each is p after some tokens, and what p avoids after the others.

  By 2**15 rows 2.431 together, 2.016 and 2.094 alone, each within .002.
  """
  even = (jnp.arange(5) % 2 == 0)[:, None]
  models = [jnp.where(even == x, P, -P) for x in (True, False)]
  both = tokens_a_call(*models)
  assert all(both > tokens_a_call(model) + .2 for model in models)


@pytest.mark.slow
def test_a_model_only_adds_to_those_before_it():
  """Theirs are judged first, and are accepted as often as alone.

  By 2**15 rows 2.682 with Q behind a better model, which has 2.559 alone. The
  other way around what Q leaves of p is not what the better one is good at:
  2.544. So with p itself, which alone has all drafts accepted.
  """
  better = P + .3 * OTHER
  alone = tokens_a_call(better)
  assert tokens_a_call(better, Q) > alone + .05
  perfect = tokens_a_call(P)
  np.testing.assert_allclose(perfect, 37 / 13, rtol=1e-6)   # 12 rounds of 3
  assert tokens_a_call(P, Q) == perfect
  assert tokens_a_call(Q, P) < perfect - .1                 # 2.560


def test_a_second_model_that_is_broken_is_a_fault():
  state = decode.GenSpecSample(LM, DRAFTER, 20, eos=-1)(
      P, (Q, jnp.full_like(Q, jnp.nan)), prompt(2), keys(2), LOSSLESS, Warp())
  assert state.fault.tolist() == [1, 1] and state.lengths.tolist() == [3, 3]


def test_what_cannot_be_drafted_is_refused():
  with pytest.raises(ValueError, match='2 models and 1 trees'):
    specinfer.SpecInfer((LM, LM), (TREES[0],))
  with pytest.raises(ValueError, match="law 'given' of SpecInfer"):
    specinfer.SpecInfer((LM,), (TREES[0],), 'given')
  with pytest.raises(ValueError, match='got models of 5, 7 tokens; allowed'):
    specinfer.SpecInfer((LM, table.Table(7)), TREES)
  with pytest.raises(ValueError, match='laws of one model'):
    exact.law(lambda _: np.zeros(5), lambda _: np.zeros(5), LOSSLESS, Warp(),
              drafts=exact.Drafts((-1, 0, 0), 'given'))
  spec = decode.GenSpecSample(LM, DRAFTER, 20, verify.KSeq(), eos=-1)
  with pytest.raises(ValueError, match="KSeq does not support 'given'"):
    spec(P, (Q, OTHER), prompt(1), keys(1), LOSSLESS, Warp())


@pytest.mark.parametrize('params', [(Q,), (Q, OTHER, P), dict(model=Q)])
def test_each_model_has_to_have_its_parameters(params):
  """With too few, nodes of the others had no law at all."""
  with pytest.raises(ValueError, match='for SpecInfer a tuple of 2, the'):
    DRAFTER.init(params, prompt(1), None, 9)
