"""Token Recycling against a matrix that is kept token by token."""
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import lookahead, recycling
from spec_cascades.warp import Warp
from tests.common import LEVEL, LM, P, RAGGED, keys, law_test

LOSSLESS = targets.Lossless()
DRAFTER = recycling.Recycling(5, (3, 2))


def spec(drafter=DRAFTER, length=20):
  return decode.GenSpecSample(LM, drafter, length, eos=-1)


def test_the_tree_is_looked_up_breadth_first():
  matrix = jnp.array([[[1, 2], [3, 4], [0, 1], [2, 2], [4, 0]]])
  ctx = types.Context(jnp.array([[3, 0, 0]]), jnp.array([2]), None, Warp())
  draft, after = recycling.Recycling(5, (2, 1, 2)).propose(
      None, matrix, ctx, keys(1))
  assert after is matrix and draft.calls.tolist() == [0]
  assert draft.tree.tokens[0].tolist() == [0, 1, 2, 3, 0, 2, 2, 1, 2]
  assert draft.tree.parents[0].tolist() == [-1, 0, 0, 1, 2, 3, 3, 4, 4]
  assert draft.max_depth == 3


def test_the_matrix_has_what_the_verifier_ranked_last():
  """Every scored node counts, rejected ones as well; done rows are left."""
  limits = jnp.array([20, 9, 14])
  want = np.tile(np.arange(3), (3, 5, 1))
  for found in decode.stream(spec(), P, None, RAGGED.replace(limits=limits),
                             keys(3), LOSSLESS, Warp()):
    seen = found.feedback
    for row in np.flatnonzero(seen.live):
      for token, logits in zip(seen.draft.tree.tokens[row].tolist(),
                               np.asarray(seen.logits[row])):
        want[row, token] = np.argsort(-logits)[:3]
    np.testing.assert_array_equal(found.state.drafter, want)


def test_an_earlier_matrix_may_be_begun_with():
  """A model that counts: four tokens a round at once."""
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  prompt = types.Prompt(jnp.array([[0]]), jnp.array([1]))
  run = lambda matrix: spec(recycling.Recycling(5, (1, 1, 1)), 17)(
      count, matrix, prompt, keys(1), LOSSLESS, Warp(0.))
  cold = run(None)
  warm = run(cold.drafter[0])
  assert cold.tokens[0].tolist() == [i % 5 for i in range(17)]
  np.testing.assert_array_equal(warm.tokens, cold.tokens)
  assert warm.stats.rounds[0] == 4 < cold.stats.rounds[0]


def test_sampled_rows_follow_the_exact_joint():
  assert law_test(DRAFTER, verify.Rejection(), LOSSLESS, Warp()) > LEVEL


@pytest.mark.parametrize('call,match', [
    (lambda: spec(lookahead.Lookahead(9, 2, 3, 1, 8))(
        P, None, RAGGED, keys(3), LOSSLESS, Warp()),
     "vocab_size of Lookahead is 9; allowed: the verifier's, 5"),
    (lambda: recycling.Recycling(5, (3, 6)), 'branching of Recycling is 6'),
    (lambda: recycling.Recycling(5, ()), 'draft length'),
    (lambda: spec(recycling.Recycling(4))(
        P, None, RAGGED, keys(3), LOSSLESS, Warp()),
     "vocab_size of Recycling is 4; allowed: the verifier's, 5"),
    (lambda: DRAFTER.init(jnp.zeros((5, 2), jnp.int32), RAGGED, None, 0),
     r'int32\[5, 2\] for Recycling; allowed: int32\[5, 3\]')])
def test_what_does_not_fit_is_refused(call, match):
  with pytest.raises(ValueError, match=match):
    call()
