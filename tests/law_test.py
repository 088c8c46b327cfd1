"""The heart: drafters x targets x verifiers x warps draw exactly from pi."""
import jax.numpy as jnp
import pytest

from tests.common import LEVEL, LM, law_test
from spec_cascades import targets, verify
from spec_cascades.drafters import chain, ngram, null
from spec_cascades.warp import Warp
from tests import trees as tree

TREE = (-1, 0, 0, 0, 1, 1, 2)
LOSSLESS, CHOW = targets.Lossless(), targets.Chow(.4)
CHAIN = chain.Chain(LM, 2)            # gamma < 3, or no bonus is ever seen
STOP = chain.Chain(LM, 3, chain.Below(.6))
IID = tree.SampledTree(LM, TREE, 'sampled')
DISTINCT = tree.SampledTree(LM, TREE)
RULES = (
    targets.Lossy(.3), targets.Diff(.1), targets.OPT(.3), targets.ChowLog(1.),
    targets.DiffLog(.1), targets.OPTLog(.2), targets.BiLD(1.),
    targets.TokenV1(.3), targets.TokenV2(.3), targets.TokenV3(.5),
    targets.Choice((targets.Lossless(), targets.Chow(.4)), 1))
SCORED = [(d, v, t, w)
          for d in (CHAIN, STOP, IID, DISTINCT) for t in (LOSSLESS, CHOW)
          for v, w in ((verify.Rejection(), Warp()),)]
CASES = SCORED + [
    (null.Null(), verify.Rejection(), LOSSLESS, Warp(.5, top_p=.8)),
    (ngram.NGram(3, 1), verify.Rejection(), LOSSLESS, Warp()),
    (CHAIN, verify.Block(), LOSSLESS, Warp()),
    (CHAIN, verify.Block(), CHOW, Warp(.7)),
    (CHAIN, verify.Block(), targets.TokenV3(.5), Warp()),
    (CHAIN, verify.Rejection(), CHOW, Warp(.7, top_k=4, top_p=.9, min_p=.05)),
    (DISTINCT, verify.Rejection(), LOSSLESS, Warp(.7, top_k=2)),
    (DISTINCT, verify.Rejection(), targets.TokenV1(.3), Warp(.5, top_p=.7)),
    (IID, verify.Rejection(), targets.Lossy(.3), Warp(.5)),
] + [(CHAIN, verify.Rejection(), rule, Warp()) for rule in RULES]


@pytest.mark.parametrize(
    'drafter,verifier,target,warp', CASES,
    ids=lambda x: type(x).__name__ + getattr(x, 'law', ''))
def test_decoded_rows_follow_the_exact_joint(drafter, verifier, target, warp):
  params = None if isinstance(drafter, (null.Null, ngram.NGram)) else False
  extra = {} if params is False else dict(draft_params=None)
  assert law_test(drafter, verifier, target, warp, **extra) > LEVEL


def test_alpha_and_temperature_per_row():
  """Half of a batch at one alpha and temperature, half at another."""
  import numpy as np
  from tests.common import P, Q, ROWS, joint, keys, p_value, prompt
  from spec_cascades import decode
  half = jnp.arange(ROWS) < ROWS // 2
  spec = decode.GenSpecSample(LM, CHAIN, 6, eos=-1)
  state = spec(P, Q, prompt(ROWS), keys(ROWS),
               targets.Chow(jnp.where(half, .2, .6)),
               Warp(jnp.where(half, 1., .5), top_p=jnp.where(half, .9, 1.)))
  new = np.asarray(state.tokens[:, 3:])
  for rows, target, warp in ((slice(None, ROWS // 2), targets.Chow(.2), Warp(1., top_p=.9)),
                             (slice(ROWS // 2, None), targets.Chow(.6), Warp(.5))):
    counts = np.zeros((5,) * 3)
    np.add.at(counts, tuple(new[rows].T), 1)
    assert p_value(counts, joint(target, warp)) > LEVEL
