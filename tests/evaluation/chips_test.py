"""Slices by name, and a roofline against arithmetic by hand."""
import math

import pytest

from spec_cascades.evaluation import chips

CHIP = chips.Chip(flops=100., hbm=0, bandwidth=10., link=2., shapes={})


@pytest.mark.parametrize('name,size,libtpu', [
    ('v4-8', 4, 'v4:2x2x1'), ('v4-512', 256, 'v4:4x8x8'),
    ('v5p-8', 4, 'v5p:2x2x1'), ('v5p-128', 64, 'v5p:4x4x4'),
    ('v5e-16', 16, 'v5e:4x4'), ('v5e-256', 256, 'v5e:16x16'),
    ('v6e-8', 8, 'v6e:2x4')])
def test_names_of_slices(name, size, libtpu):
  found = chips.topology(name)
  assert (found.size, found.name) == (size, libtpu)


@pytest.mark.parametrize('name', ['v4-4', 'v4', 'v7x-8', '', 'v5e-7', 'v4:2x2'])
def test_unknown_slices_are_refused(name):
  with pytest.raises(ValueError, match='v4-8|v5e-16') as error:
    chips.topology(name)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('name, host', [
    ('v4-8', 4), ('v4-16', 4), ('v5e-4', 4), ('v5e-8', 8), ('v5e-16', 4),
    ('v5p-16', 4), ('v6e-8', 8), ('v6e-256', 4)])
def test_chips_of_a_host(name, host):
  assert chips.topology(name).host == host


def test_shapes_have_as_many_chips_as_they_say():
  for chip in chips.CHIPS.values():
    assert list(chip.shapes)[0] == 4 and list(chip.shapes)[-1] == 256
    for number, shape in chip.shapes.items():
      assert math.prod(shape) == number


@pytest.mark.parametrize('kind,nbytes,group,seconds', [
    # 4 chips: 2 * 8 * 3/4 = 12 bytes over 2 links of 2, and 2 * 2 hops.
    ('all-reduce', 8, 4, 12 / 4 + 4 * .5),
    ('all-gather', 8, 4, 6 / 4 + 2 * .5),
    ('reduce-scatter', 8, 2, 4 / 4 + 1 * .5),
    ('collective-permute', 8, 4, 8 / 2 + .5),
    # 2 of 4 neighbours away in the mean: 8 bytes * 4 / 8 over a link.
    ('all-to-all', 8, 4, 8 * 4 / 8 / 2 + 2 * .5),
    ('all-reduce', 8, 1, 0)])
def test_exchanges_by_hand(kind, nbytes, group, seconds):
  one = chips.Collective(kind, nbytes, group).seconds(CHIP, .5)
  assert one == pytest.approx(seconds)
  many = chips.Collective(kind, nbytes, group, 3).seconds(CHIP, .5)
  assert many == pytest.approx(3 * seconds)


def test_a_step_is_bound_by_the_slower_of_two_and_then_exchanges():
  assert chips.Work(1000, 10).seconds(CHIP) == pytest.approx(10)
  assert chips.Work(1000, 200).seconds(CHIP) == pytest.approx(20)
  both = chips.Work(1000, 200, (chips.Collective('all-gather', 8, 4, 2),))
  assert both.seconds(CHIP, .5) == pytest.approx(20 + 2 * 2.5)


def test_acceptance_is_one_rate_or_several():
  assert chips.rates('.8') == [.8] and chips.rates('1,0.5,0') == [1, .5, 0]
  for bad in ('', '1.2', '.8,', 'x', '-1', 'nan', '.8;.7'):
    with pytest.raises(ValueError, match='from 0 to 1'):
      chips.rates(bad)
