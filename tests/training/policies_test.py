"""Batches that the student writes."""
import numpy as np
import pytest

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.training import policies
from tests.models import tiny

INPUTS = np.array([[5, 6, 7, 0], [8, 9, 3, 4], [7, 0, 0, 0], [7, 0, 0, 0]])
BATCH = dict(inputs=INPUTS, input_lengths=np.array([3, 4, 1, 1], np.int32),
             targets=np.full((4, 5), 2),
             weights=np.ones((4, 5), np.float32) * [[1], [1], [1], [0]])


@pytest.mark.parametrize('name', ['t5_1_1', 'llama3'])
def test_targets_are_what_the_student_decodes(name):
  """Greedy, row by row; the last row only fills up, and has no weight."""
  lm = tiny.LMS[name]
  params = tiny.params_of(lm)
  new = policies.OnPolicy(1., temperature=0.)(BATCH, lm, params, 3, end=1)
  assert new['inputs'] is INPUTS and new['targets'].shape == (4, 5)
  encoder = name == 't5_1_1'
  for row in range(4):
    own = INPUTS[row, :BATCH['input_lengths'][row]]
    prompt = types.Prompt(
        np.zeros((1, 1), np.int32) if encoder else own[None],
        np.array([1 if encoder else len(own)], np.int32),
        own[None] if encoder else None)
    first = prompt.prefix.shape[1]
    spec = decode.GenSpecSample(lm, null.Null(), first + 5, eos=1)
    state = spec(lm.pack(params), None, prompt, decode.row_keys(0, [0]),
                 targets.Lossless(), warp.Warp(0.))
    want = np.asarray(state.tokens)[0, first:int(state.lengths[0])]
    np.testing.assert_array_equal(new['targets'][row, :len(want)], want)
    assert (new['targets'][row, len(want):] == 0).all()
    assert new['weights'][row].sum() == (len(want) if row < 3 else 0)


def test_what_is_drawn_depends_on_seed_and_step_alone():
  lm = tiny.LMS['llama3']
  params, draw = tiny.params_of(lm), policies.OnPolicy(1., seed=4)
  again = [draw(BATCH, lm, params, step, end=1)['targets']
           for step in (7, 7, 8)]
  np.testing.assert_array_equal(*again[:2])
  assert (again[0] != again[2]).any()
  assert (again[0][2] != again[0][3]).any()       # rows of one input, too


def test_a_batch_says_whether_the_student_wrote_it():
  """All batches of a run have the same arrays, for one program."""
  lm, draw = tiny.LMS['llama3'], policies.OnPolicy(.5, seed=4)
  params = tiny.params_of(lm)
  for step in range(6):
    new = draw(BATCH, lm, params, step, end=1)
    assert set(new) == {*BATCH, policies.WRITTEN}
    assert new[policies.WRITTEN].tolist() == [draw.chosen(step)] * 4
    assert draw.chosen(step) == (new['targets'] is not BATCH['targets'])


@pytest.mark.parametrize('share', [0., .3, 1.])
def test_a_share_of_the_batches_is_chosen(share):
  """Within 5 standard deviations: one failure in two million."""
  chosen = [policies.OnPolicy(share, seed=1).chosen(i) for i in range(2000)]
  assert abs(np.mean(chosen) - share) <= 5 * (share * (1 - share) / 2000)**.5
  if not share:
    assert policies.OnPolicy()(BATCH, None, None, 0, end=1) is BATCH


@pytest.mark.parametrize('changes,match', [
    (dict(share=1.5), 'share of OnPolicy'),
    (dict(temperature=-1.), 'temperature')])
def test_bad_settings_are_refused(changes, match):
  with pytest.raises(ValueError, match=match):
    policies.OnPolicy(**changes)
