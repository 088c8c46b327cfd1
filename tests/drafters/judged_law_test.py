"""Every drafter x every exact verifier that takes its drafts: texts follow p.

Lossless, up to an end that may be anywhere in a block; what q is does not
matter then, so that drafters whose q depends on where a round began have a
joint law, too.
"""
import jax
import numpy as np
import pytest

from spec_cascades import decode, targets, verify
from spec_cascades.warp import Warp
from tests.common import (
    JUDGED_CASES, JUDGED_LEVEL, P, ROWS, joint, keys, p_value, prompt)
from tests.conformance_test import DRAFTERS, verifier_of

END = 1
JUDGES = dict(rejection=verify.Rejection(), block=verify.Block(),
              k_seq=verify.KSeq())
# Drawn independently of each other, so that k-SEQ may judge them; of these
# block verification takes chains that never stop early.
FULL = ('Chain', 'EarlyExit', 'Vertical', 'TriForce', 'Drafted', 'Eagle',
        'Eagle3', 'PaSS', 'Space')
TAKEN = dict(
    rejection=tuple(DRAFTERS), block=FULL,
    k_seq=(*FULL, 'Below', 'Adaptive', 'Tracking', 'Horizontal', 'SpecTr'))
CASES = [(name, judge) for judge, names in TAKEN.items() for name in names]
LOSSLESS = targets.Lossless()


def spec_of(name, judge):
  return decode.GenSpecSample(
      verifier_of(name), DRAFTERS[name][0][0], 6, JUDGES[judge], eos=END)


def ended(law):
  """Of three tokens, or fewer with an end, which then fills up the rest."""
  found = law.copy()
  found[:, END], found[END] = 0, 0
  found[:, END, END] = law[:, END].sum(-1)
  found[END] = 0
  found[END, END, END] = law[END].sum()
  return found


def tallied(state):
  """How often each such text occurred."""
  place = np.arange(state.tokens.shape[1])
  texts = np.where(place < np.asarray(state.lengths)[:, None], state.tokens,
                   END)[:, 3:]
  counts = np.zeros((5,) * 3)
  np.add.at(counts, tuple(texts.T), 1)
  return counts


def test_the_table_says_what_verifiers_take():
  assert len(CASES) <= JUDGED_CASES
  for judge, names in TAKEN.items():
    for name in set(DRAFTERS) - set(names):
      spec, params = spec_of(name, judge), DRAFTERS[name][1]
      state = jax.eval_shape(spec.init, P, params, prompt(2), keys(2))
      with pytest.raises(ValueError, match='does not support'):
        jax.eval_shape(spec.step, P, params, LOSSLESS, Warp(), state)


def test_an_end_takes_the_place_of_all_behind_it():
  law = ended(joint(LOSSLESS, Warp()))
  assert law.sum() == pytest.approx(1) and np.count_nonzero(law) == 85


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_texts_follow_the_verifier_up_to_their_end(case):
  name, judge = case
  spec, params = spec_of(name, judge), DRAFTERS[name][1]
  state = spec(P, params, prompt(ROWS), keys(ROWS, 31), LOSSLESS, Warp())
  assert not np.asarray(state.fault).any()
  counts = tallied(state)
  assert counts.sum() == ROWS
  assert p_value(counts, ended(joint(LOSSLESS, Warp()))) > JUDGED_LEVEL
  assert p_value(counts, ended(joint(LOSSLESS, Warp(.9)))) < JUDGED_LEVEL
  if name != 'Null':
    assert np.asarray(state.stats.accepted).sum() > 0
