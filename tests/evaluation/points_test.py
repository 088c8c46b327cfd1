"""The grid, its names, and what it refuses."""
import dataclasses
import math

import flax
import pytest

from spec_cascades import baselines
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades.evaluation import points
from spec_cascades.evaluation import rules

Curve = points.Curve


def expand(*curves, **kwargs):
  return points.expand(curves, **{'gamma': 5, **kwargs})


def test_what_figures_can_not_tell_apart_needs_a_name():
  """Figures go by method and temperature."""
  chow = lambda **more: Curve(targets.Chow, (.2,), **more)
  for one, two in (
      (Curve(targets.Lossless), Curve(targets.Lossless, drafter='ngram')),
      (chow(gammas=(3,)), chow(gammas=(5,))),
      (chow(name='x'), Curve(targets.OPT, (.2,), name='x'))):
    with pytest.raises(ValueError, match='at one temperature, but differ'):
      expand(one, two)
    expand(one, dataclasses.replace(two, name='y'))
    expand(one, dataclasses.replace(two, temperatures=(.3,)))


def own(decorate=struct.dataclass, base=struct.Fixed, *, name='Own',
        **members):
  """A class of rules that is not the package's."""
  members = {'uses_q': False, '__call__': targets.Lossless.__call__,
             '__module__': __name__, **members}
  made = type(name, (base,), {
      key: x for key, x in members.items() if x is not None})
  return decorate(made) if decorate else made


def test_both_models_alone_run_at_every_temperature():
  grid = expand(Curve(targets.Lossless, temperatures=(1., 0.)),
                Curve(targets.Chow, (.2, .4), (.5,)))
  alone = [(p.model, p.temperature) for p in grid if not p.rule]
  assert sorted(alone) == sorted(
      (m, t) for m in ('verifier', 'drafter') for t in (1., 0., .5))
  assert [p.label for p in grid[6:]] == [
      'SpecDecode T=1', 'SpecDecode T=0', 'Chow alpha=0.2 T=0.5',
      'Chow alpha=0.4 T=0.5']
  assert all(p.gamma == 5 and p.drafter == 'chain' for p in grid[6:])
  assert all(p.gamma == 0 and not p.drafter for p in grid[:6])


@pytest.mark.parametrize('curve, kwargs, what', [
    (Curve(targets.Chow, (2.,)), {}, 'alpha of Chow is 2'),
    (Curve(targets.Lossy, (-.1,)), {}, 'allowed: 0 to 1'),
    (Curve(targets.TokenV3, (math.nan,)), {}, 'nan'),
    (Curve(targets.Lossless, (.1,)), {}, 'takes no alpha'),
    (Curve(targets.Diff), {}, 'needs an alpha'),
    (Curve(targets.Diff, (.1,), drafter='dream'), {}, "'dream'; allowed"),
    (Curve(targets.Diff, (.1,), drafter='ngram'), {}, 'take the drafter chain'),
    (Curve(targets.Lossless), dict(gamma=0), 'gamma'),
    (Curve(targets.Lossless), dict(gamma=2.5), 'whole numbers'),
    (Curve(targets.Lossless), dict(top_p=0.), 'top_p'),
    (Curve(targets.Lossless, temperatures=(-1.,)), {}, 'temperature'),
    (Curve(targets.Chow, (.1, .1)), {}, 'twice'),
    (Curve(targets.Lossless, name='drafter'), {}, 'Two curves are named drafter'
     ),
    (Curve(targets.OPT, tuple(range(300))), {}, 'allowed: 500')])
def test_bad_points_are_refused_in_one_line(curve, kwargs, what):
  with pytest.raises(ValueError, match=what) as error:
    expand(curve, **kwargs)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('fields, what', [
    (dict(rule='Chow'), "rule='Chow'; allowed: a class"),
    (dict(rule=targets.Lossless()), 'allowed: a class'),
    (dict(rule=targets.Choice), 'Choice; allowed: one rule'),
    (dict(rule=Curve), 'Curve, which has no uses_q of True or'),
    (dict(rule=own(None)), 'Own, which has no @struct.dataclass; allowed'),
    (dict(rule=own(None, targets.Diff)), 'no @struct.dataclass of spec_'),
    (dict(rule=own(dataclasses.dataclass)), 'no @struct.dataclass of spec_'),
    (dict(rule=own(flax.struct.dataclass)), 'Own is a flax.struct.dataclass'),
    (dict(rule=own(__annotations__={'share': float})), 'no default for each'),
    (dict(rule=own(__call__=None)), 'no __call__'),
    (dict(rule=own(base=object)), 'no validate'),
    (dict(rule=own(alpha=.5, __annotations__={'alpha': float})), 'no domain'),
    (dict(rule=targets.Lossless, drafter=5), 'drafter=5; allowed')])
def test_a_curve_of_something_else_is_refused(fields, what):
  with pytest.raises(ValueError, match=what) as error:
    Curve(**fields)
  assert '\n' not in str(error.value)


def test_a_curve_takes_a_rule_of_ones_own():
  assert [p.rule for p in expand(Curve(own(), temperatures=(0.,)))] == [
      '', '', 'Own']


@pytest.mark.parametrize('some', [
    (own(), own()), (own(name='SeqCascade'),), (own(name='Diff'),),
    (targets.Diff, own(name='Diff'))], ids=lambda x: len(x))
def test_two_rules_of_one_name_are_refused(some):
  """Or one of them would be decoded in place of the other."""
  with pytest.raises(ValueError, match='two rules named .* Rename') as error:
    expand(*(Curve(rule, drafter='chain', name=str(i))
             for i, rule in enumerate(some)))
  assert '\n' not in str(error.value)


def test_a_rule_may_have_several_curves():
  rule = own()
  assert len(expand(Curve(rule), Curve(rule, name='again'))) == 8
  assert expand(*(Curve(baselines.SeqCascade, (.5,), name=x) for x in 'ab'))


@pytest.mark.parametrize('given', [
    Curve(baselines.SeqCascade, (.5,), gammas=(3, 7)),
    Curve(baselines.OriginalBiLD, (5.,), (0.,), gammas=(3,)),
    Curve(targets.Lossless, drafter='tree:x.json', gammas=(3, 7))],
                         ids=lambda x: x.drafter)
def test_who_has_a_draft_length_takes_none(given):
  """Else two lines of one thing would be told apart by it."""
  with pytest.raises(ValueError, match='which drafts as far as it does; leave'):
    expand(given)
  assert expand(dataclasses.replace(given, gammas=()))


def test_typical_acceptance_is_no_rules_curve():
  assert expand(Curve(targets.Lossless, drafter='typical:x'))
  with pytest.raises(ValueError, match='Typical judges by p .* TokenV3 would'):
    expand(Curve(targets.TokenV3, (.1, .9), drafter='typical:x'))


@pytest.mark.parametrize('curves', [
    Curve(targets.Lossless), [targets.Lossless], 'all', None])
def test_what_is_no_list_of_curves_is_refused(curves):
  with pytest.raises(ValueError, match='allowed: a list of curves'):
    points.check_curves(curves)


def test_rules_have_names_and_defaults():
  assert rules.make('TokenV3', None) == targets.TokenV3()
  assert rules.make('OPT', 7.).alpha == 7.
  assert rules.make('Lossless', None) == targets.Lossless()
  with pytest.raises(ValueError, match="Unknown rule 'Nope'; allowed: Loss"):
    rules.make('Nope', .1)
  for name, rule in rules.RULES.items():
    assert getattr(targets, name) is rule
