"""Which points share a program."""
import pytest

from spec_cascades import targets
from spec_cascades.evaluation import kinds, points, programs

RULES = targets.Lossless, targets.Chow, targets.OPT


def curve(rule, **options):
  return points.Curve(rule, alphas=(.3,) if rule in RULES[1:] else (),
                      **options)


def names(curves):
  """Of all points but the models alone."""
  made = programs.Programs(None, curves)
  return {made.name(point) for point in points.expand(curves, gamma=3)
          if point.drafter}


@pytest.mark.parametrize('drafter, want', [
    ('chain', {'chain, gamma 3'}), ('tracking', {'tracking, gamma 3'}),
    ('skip', {'skip, gamma 3'}),
    ('tree', {'tree, gamma 3, rules with q',
              'tree, gamma 3, rules without q'})])
def test_rules_share_a_program_where_none_pays_for_another(drafter, want):
  curves = [curve(rule, drafter=drafter) for rule in RULES]
  assert set(map(str, names(curves))) == want
  alone = [curve(targets.Chow, drafter=drafter)]
  assert set(map(str, names(alone))) == {f'{drafter}, gamma 3'}


def test_a_drafter_without_q_does_not_ride_with_rules_that_read_it():
  curves = [curve(targets.Lossless, drafter='ngram', name='lookup'),
            *map(curve, RULES)]
  some = {x.drafter: x.family for x in names(curves)}
  assert some == {'chain': ('Chow', 'Lossless', 'OPT'), 'ngram': ('Lossless',)}


def test_every_kind_that_shares_has_q():
  """Or there would be nothing to share."""
  lazy = {name for name, kind in kinds.KINDS.items() if kind.lazy}
  assert lazy == {'chain', 'tracking', 'adaptive', 'skip', 'sublayers'}
  assert all(kinds.KINDS[name].q for name in lazy)
