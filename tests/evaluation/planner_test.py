"""Plans from a made-up sweep whose acceptance is known."""
import dataclasses

import fakecosts
import fakesweep
import pytest

from spec_cascades import targets
from spec_cascades import theory
from spec_cascades.evaluation import planner
from spec_cascades.evaluation import points
from spec_cascades.evaluation import results

# 1,000 rounds of gamma 3: of 800, 400 and 300 rounds the draft was accepted.
HALVES = dict(histogram=[200, 400, 100, 300], corrected=700, gamma=3,
              tokens_per_call=2.5)
COSTS = fakecosts.make({1: 10., 2: 11., 3: 12., 4: 13., 6: 15.}, drafter=1.)


@pytest.fixture(scope='module')
def rows():
  curves = (points.Curve(targets.Lossless), points.Curve(targets.Chow, (.2,)))
  return fakesweep.make(limit=3, curves=curves).rows


def with_counts(rows, **changes):
  """The rows that were drafted for, with these counts."""
  found = [dataclasses.replace(row, **{**HALVES, **changes})
           for row in rows if row.rule]
  assert {row.rule for row in found} == {'Lossless', 'Chow'}
  return found


def saved(path, rows):
  results.write_rows(path, rows)
  return path


def test_rates_tokens_and_speedups_are_the_formulas(rows):
  for x in planner.forecast(with_counts(rows), COSTS):
    assert x.rates == pytest.approx((.8, .5, .75))
    assert x.rate == pytest.approx(1500 / 2200)
    assert x.tokens == pytest.approx((1, 1.8, 2.2, 2.5))
    steps = (0, 2, 3, 4) if x.row.rule == 'Chow' else (0, 1, 2, 3)
    assert x.speedups == pytest.approx([
        10 * t / (d + b) for t, d, b in zip(x.tokens, steps,
                                            (10, 11, 12, 13))])
    assert x.best.gamma == 2 + (x.row.rule == 'Chow')
    assert x.speedups[x.best.gamma] == x.best.speedup == max(x.speedups)
    assert x.break_even == pytest.approx((11 + steps[1]) / 10 - 1)


def test_one_rate_reaches_beyond_the_measured_gamma(rows):
  lossless = [row for row in with_counts(rows) if row.rule == 'Lossless'][0]
  found, = planner.forecast([lossless], COSTS, acceptance='iid')
  assert len(found.tokens) == 6 and found.best.max_gamma == 5
  assert found.tokens[5] == pytest.approx(
      theory.expected_tokens(1500 / 2200, 5))
  found, = planner.forecast([lossless], COSTS, acceptance='iid', max_gamma=2)
  assert len(found.tokens) == 3


def test_drafts_that_never_pay_are_not_planned(rows):
  slow = fakecosts.make({1: 10., 4: 40.}, drafter=9.)
  for x in planner.forecast(with_counts(rows), slow):
    assert x.best.gamma == 0 and x.best.speedup == 1 and x.break_even > 1
    assert planner.cells(x, 3)[-2] == 'never'


def test_a_table_has_a_cell_for_every_column(rows):
  found = planner.forecast(with_counts(rows), COSTS)
  for x in found:
    cells = planner.cells(x, 5)
    assert len(cells) == len(planner.columns(5))
    assert cells[3] == f'1.80 {x.speedups[1]:.2f}x' and cells[7] == ''
    assert cells[0] == planner.label(x.row)


def test_what_chains_of_our_rules_did_not_draft_is_left_out(rows, tmp_path):
  drafted = with_counts(rows)
  other = [dataclasses.replace(drafted[0], drafter='tree:x'),
           dataclasses.replace(drafted[0], rule='SeqCascade')]
  alone = [row for row in rows if not row.rule]
  kept, left_out = planner.read(
      saved(tmp_path / 'r.jsonl', [*alone, *drafted, *other]))
  assert kept == drafted
  assert sum(left_out.values()) == len(alone) + 2 and len(left_out) == 3
  with pytest.raises(ValueError, match='no point to plan for'):
    planner.read(saved(tmp_path / 'r.jsonl', alone))


@pytest.mark.parametrize('changes,what', [
    (dict(histogram=[1, 2]), 'gamma 3'), (dict(histogram=None), 'histogram'),
    (dict(histogram=[.5] * 4), 'gamma 3'), (dict(alpha='x'), 'alpha'),
    (dict(relative_latency=None), 'relative_latency'),
    (dict(corrected='many'), 'corrected'), (dict(drafter=3), 'drafter')])
def test_rows_that_no_sweep_writes_are_refused(rows, tmp_path, changes, what):
  path = saved(tmp_path / 'r.jsonl', [rows[0], *with_counts(rows, **changes)])
  with pytest.raises(ValueError, match=what) as error:
    planner.read(path)
  assert f'{path}, line 2' in str(error.value)


def test_counts_that_cannot_be_name_their_point(rows):
  for bad in (dict(histogram=[0] * 4), dict(corrected=1001)):
    with pytest.raises(ValueError, match='SpecDecode T='):
      planner.forecast(with_counts(rows, **bad), COSTS)


def test_a_sweep_longer_than_the_costs_is_planned_up_to_them(rows):
  short = fakecosts.make({1: 10., 2: 11.}, drafter=1.)
  assert {x.best.max_gamma
          for x in planner.forecast(with_counts(rows), short)} == {1}
