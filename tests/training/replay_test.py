"""A buffer of texts, and windows of counts."""
import numpy as np
import pytest

from spec_cascades.training import replay


def memory_of(texts, size=4):
  memory = replay.empty(size, 5, 3, end=1, window=2)
  for i in range(texts):
    memory = memory.kept([7, i + 1], [i + 1, 9], np.array([0., 1.]))
  return memory


@pytest.mark.parametrize('texts', [0, 3, 4, 11])
def test_the_buffer_is_bounded_and_the_oldest_leave_it(texts):
  memory = memory_of(texts)
  batch = memory.drawn(6, (0, 5))
  own = batch['weights'].any(1)
  held = set(range(max(texts - 4, 0) + 1, texts + 1))
  assert sorted(batch['targets'][own, 0]) == sorted(held)
  np.testing.assert_array_equal(batch['inputs'][own, 1],
                                batch['targets'][own, 0])
  assert (batch['weights'][own] == [0, 1, 0]).all()
  assert (batch['input_lengths'] >= 1).all()
  assert batch['inputs'].shape == (6, 5) and batch['targets'].shape == (6, 3)


def test_batches_depend_on_the_seed_alone_and_a_memory_stays_as_it_is():
  memory = memory_of(4)
  one, same, other = (memory.drawn(2, seed)['targets'].tolist()
                      for seed in ((0, 1), (0, 1), (0, 2)))
  assert one == same != other
  before = memory.inputs.copy()
  memory.kept([8], [8], np.ones(1))
  memory.drawn(2, 0)['weights'][:] = 5
  np.testing.assert_array_equal(memory.inputs, before)
  assert memory.weights.max() == 1
  assert memory.kept([8], [8], np.zeros(1)) is memory       # nothing to learn


def test_windows_are_the_first_and_the_last_requests():
  memory = replay.empty(1, 1, 1, end=1, window=3)
  assert memory.last().tokens_per_call == 0
  for i in range(1, 6):
    memory = memory.counted(10 * i, i + 1, i, 2 * i)
  first, last = memory.first(), memory.last()
  assert str(first).startswith('requests 1-3: 6.667 tokens a call, 50.0%')
  assert (last.begin, last.end) == (3, 5) and last.tokens_per_call == 8
