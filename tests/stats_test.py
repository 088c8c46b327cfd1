"""Counters by position, and the ratios formed of them."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, exact, stats, targets, verify
from spec_cascades.drafters.chain import Chain
from spec_cascades.warp import Warp
from tests.common import LEVEL, LM, P, PREFIX, Q, keys, p_value, prompt

ROWS = 2**15


def one_round(target, length, verifier=verify.Rejection()):
  """Stats after the first round of many rows."""
  spec = decode.GenSpecSample(LM, Chain(LM, 3), length, verifier, eos=-1)
  state = spec.init(P, Q, prompt(ROWS), keys(ROWS))
  return jax.device_get(jax.jit(decode.GenSpecSample.step)(
      spec, P, Q, target, Warp(), state)[0].stats)


@pytest.mark.parametrize('target', [targets.Lossless(), targets.Chow(.4)],
                         ids=['Lossless', 'Chow'])
def test_rates_by_depth_are_the_exact_ones(target):
  """A shift by one depth is seen."""
  found = one_round(target, 12)
  q, p = (lambda context, t=t: np.asarray(t)[context[-2], context[-1]]
          for t in (Q, P))
  law = exact.law(q, p, target, Warp(), drafts=exact.Drafts.chain(3),
                  context=PREFIX, length=1)
  accepted, judged = (x.sum(0) for x in stats.acceptance(found))
  fits = lambda n, of, share: p_value(
      np.array([n, of - n]), np.array([1 - share, share])) > LEVEL
  assert all(map(fits, accepted, judged, law.rejection))
  assert not all(map(fits, accepted, judged, np.roll(law.rejection, 1)))
  tokens, calls = stats.block_efficiency(found)
  assert tokens.sum() / calls.sum() == pytest.approx(
      law.tokens_per_round, abs=.03)
  without, calls = stats.block_efficiency(found, bonus=False)
  assert (tokens - without).sum() == found.bonus.sum() > 0


def test_a_cut_round_judges_no_more_than_was_kept():
  """With room for one token, what follows the first draft is not judged."""
  accepted, judged = (x.sum(0) for x in stats.acceptance(one_round(
      targets.Lossless(), len(PREFIX) + 1)))
  assert judged.tolist() == [ROWS, 0, 0] and 0 < accepted[0] < ROWS
  assert accepted[1:].tolist() == [0, 0]


def test_ratios_on_an_example():
  """Rounds of 3 drafts: two kept all, one rejected the first, one the third."""
  zero = jnp.zeros((1, 4), jnp.int32)
  found = stats.zeros(1, 4).replace(
      rounds=jnp.array([4]), emitted=jnp.array([12]), bonus=jnp.array([2]),
      accepted=jnp.array([8]), corrected=jnp.array([2]),
      verifier_calls=jnp.array([4]),
      histogram=zero.at[0].set(jnp.array([1, 0, 1, 2])),
      rejected=zero.at[0].set(jnp.array([1, 0, 1, 0])))
  accepted, judged = stats.acceptance(found)
  assert accepted.tolist() == [[3, 3, 2]] and judged.tolist() == [[4, 3, 3]]
  assert stats.block_efficiency(found) == (12, 4)
  assert stats.block_efficiency(found, bonus=False) == (10, 4)
