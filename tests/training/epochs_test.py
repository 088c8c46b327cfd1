"""Which rows an epoch has, of a Mixture too."""
import numpy as np
import pytest

from spec_cascades.training import epochs

# Of three Tasks, by number modulo 3, in two buckets: 10, 10 and 2 rows.
NUMBERS = {8: [*range(0, 15, 3), *range(1, 19, 3), 2],
           16: [*range(15, 30, 3), *range(19, 30, 3), 5]}


def rows_of(plan, width):
  return np.concatenate([rows for w, rows in plan if w == width])


@pytest.mark.parametrize('rates,want', [
    ((1, 1, 1), (7, 7, 7)), ((3, 1, 0), (16, 6, 0)),
    ((10, 10, 2), (10, 10, 2))])
def test_an_epoch_is_as_large_as_all_rows_and_has_its_rates(rates, want):
  parts = epochs.mixed(NUMBERS, rates)
  counts = np.sum([[count for _, count in parts[w]] for w in NUMBERS], 0)
  np.testing.assert_allclose(counts, want, atol=1)
  for width, numbers in NUMBERS.items():
    for task, (rows, count) in enumerate(parts[width]):
      assert {numbers[row] % 3 for row in rows} <= {task}
      assert bool(count) == bool(want[task])


def test_rows_are_dealt_out_before_they_come_again():
  """Pass by pass: an epoch goes on where the one before has ended."""
  rows = np.array([3, 5, 6, 9])
  for count in (1, 3, 4, 6, 9):
    found = np.concatenate([epochs.dealt(rows, count, epoch, (7, 8, 0))
                            for epoch in range(4)])
    assert len(found) == 4 * count
    for start in range(0, len(found) - 3, 4):
      assert sorted(found[start:start + 4]) == rows.tolist()
  assert not len(epochs.dealt(rows, 0, 5, (7,)))
  assert not len(epochs.dealt(rows[:0], 0, 5, (7,)))


def test_an_epoch_depends_on_the_seed_and_its_number_alone():
  """So a run that goes on in the middle of any has the same batches."""
  make = lambda seed: epochs.Epochs(
      {8: 12, 16: 10}, {8: 3, 16: 2}, seed=seed,
      parts=epochs.mixed(NUMBERS, (3, 1, 0)))
  whole, again = make(0), make(0)
  for epoch in (0, 1, 2, 1):
    whole(epoch)
  for got, want in zip(again(2), whole(2), strict=True):
    assert got[0] == want[0] and (got[1] == want[1]).all()
  assert any((rows_of(make(1)(2), w) != rows_of(whole(2), w)).any()
             for w in NUMBERS)
  assert any((rows_of(whole(1), w) != rows_of(whole(2), w)).any()
             for w in NUMBERS)
  assert len(whole(2)) == sum(map(whole.batches, NUMBERS))
