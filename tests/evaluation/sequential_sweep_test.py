"""Curves of sequential baselines, beside the rules that they are to equal."""
import dataclasses
from typing import ClassVar

import gin
import pytest

from spec_cascades import baselines
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import results
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import sweep as sweep_lib
from tests.evaluation.sweep_run_test import Bar

Curve = points.Curve
CURVES = (Curve(targets.Chow, (.6, .9)), Curve(targets.Diff, (.3,)),
          Curve(baselines.TokenCascade, (.6, .9)),
          Curve(baselines.OracleCascade, (.3,)),
          Curve(baselines.SeqCascade, (-1., .8, 1.)),
          Curve(baselines.OriginalBiLD, (0., 3.), (0.,)))


def expand(*curves, **kwargs):
  return points.expand(curves, **{'gamma': 3, **kwargs})


@pytest.fixture(scope='module')
def done(pair_dir, tmp_path_factory):
  run = sweep_lib.Run(sweep_lib.Sweep(
      str(tmp_path_factory.mktemp('sweep') / 'out'), CURVES,
      str(pair_dir / 'verifier'), str(pair_dir / 'drafter'), examples=3,
      gamma=3, buckets=((80, 20),), predicted=False))
  return run, run(Bar)


def records(done, method, alpha=None, heat=0.):
  """Tokens and counters of every example at a point."""
  run, _ = done
  key, = (k for k, p in run.points.items() if (
      p.method, p.alpha, p.temperature) == (method, alpha, heat))
  lines = (run.directory / sweep_lib.JOURNAL).read_text().splitlines()
  found = [results.Record(**x) for x in map(results.json.loads, lines)
           if x['kind'] == 'example' and x['key'] == key]
  return sorted(found, key=lambda r: r.example)


def tokens(done, *point):
  return [r.tokens for r in records(done, *point)]


@pytest.mark.slow
def test_a_program_a_baseline_and_none_while_the_clock_runs(done):
  """Both models alone, the rules with q, and four baselines."""
  _, found = done
  assert found.compilations.programs == 7
  assert found.compilations.while_timing == 0
  assert all(row.programs == 1 for row in found.rows)


@pytest.mark.slow
def test_rows_are_written_and_add_up(done):
  run, found = done
  rows = results.read_rows(run.directory / sweep_lib.RESULTS)
  assert rows == found.rows and len({row.key for row in rows}) == len(rows)
  for row in rows:
    assert row.emitted == row.accepted + row.corrected + row.bonus > 0
    assert sum(row.histogram) == row.rounds and row.latency_mean > 0
  shown = {row.method: row for row in rows}
  assert {name for name in rules.BASELINES
          if shown[name].rejection_rate is not None} == {'OriginalBiLD'}
  for name in rules.BASELINES:
    assert shown[name].gamma == (10 if name == 'OriginalBiLD' else 1)
    assert shown[name].drafter.endswith('/drafter') and shown[name].rule
    assert any(c.method == name for c in found.comparisons)


@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_rule_that_is_sped_up(done):
  for alpha in (.6, .9):
    assert tokens(done, 'TokenCascade', alpha) == tokens(done, 'Chow', alpha)
  assert tokens(done, 'OracleCascade', .3) == tokens(done, 'Diff', .3)
  assert tokens(done, 'SeqCascade', -1.) == tokens(done, 'verifier')
  assert tokens(done, 'OriginalBiLD', 0.) == tokens(done, 'verifier')
  for heat in (0., 1.):
    assert tokens(done, 'SeqCascade', 1., heat) == tokens(
        done, 'drafter', None, heat)
  assert tokens(done, 'verifier') != tokens(done, 'drafter')


@pytest.mark.slow
def test_calls_are_those_of_the_method(done):
  for r in records(done, 'SeqCascade', 1.):
    assert not r.stats['verifier_calls'] and r.stats['drafter_calls']
  for r in records(done, 'SeqCascade', -1.):
    assert r.stats['verifier_calls'] == r.stats['emitted']
  for r in records(done, 'OracleCascade', .3):
    assert (r.stats['verifier_calls'] == r.stats['drafter_calls']
            == r.stats['emitted'])


def test_a_baseline_has_a_drafter_and_a_length_of_its_own():
  grid = expand(*CURVES)
  own = {p.method: (p.drafter, p.gamma) for p in grid if p.rule}
  assert own['SeqCascade'] == own['TokenCascade'] == ('chain', 1)
  assert own['OriginalBiLD'] == ('chain', 10) and own['Chow'] == ('chain', 3)


GIN = """
from __gin__ import dynamic_registration
from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import points
points.Curve.alphas = (.5,)
plain/points.Curve.rule = @baselines.SeqCascade
total/points.Curve.rule = @total/baselines.SeqCascade
total/baselines.SeqCascade.normalised = False
opt/points.Curve.rule = @opt/baselines.OracleCascade
opt/baselines.OracleCascade.rule = @targets.OPT
"""


@pytest.fixture
def clean():
  gin.clear_config()          # what a test before has left, a lock among it
  yield
  gin.clear_config()


def test_options_are_in_the_key_and_in_the_program(clean):
  gin.parse_config(GIN)
  curves = []
  for scope in ('plain', 'total', 'opt'):
    with gin.config_scope(scope):
      curves.append(gin.get_configurable(Curve)())
  one, two, opt = (p for p in expand(*curves) if p.rule and p.temperature)
  assert one.label == 'SeqCascade alpha=0.5 T=1'
  assert two.label == 'SeqCascade(normalised=False) alpha=0.5 T=1'
  assert opt.label == 'OracleCascade(rule=OPT) alpha=0.5 T=1'
  assert len({results.content_key(dataclasses.asdict(p))
              for p in (one, two)}) == 2
  made = programs.Programs(None, curves)
  assert len({str(made.name(p)) for p in (one, two, opt)}) == 3
  assert [made._target(p).normalised for p in (one, two)] == [True, False]


@struct.dataclass
class Shared(struct.Fixed):
  """A rule that is not the package's, with an option."""
  share: float = .5
  uses_q: ClassVar[bool] = False

  def __call__(self, q, p):
    return targets.Lossless()(q, p)


def test_so_are_those_of_a_rule_of_ones_own(clean):
  """Of two curves each decodes with its own."""
  def curve(rule=None):                # gin would know Curve by this name only
    return Curve(rule)
  gin.external_configurable(Shared, 'of_a_test.Shared')
  gin.external_configurable(curve, 'of_a_test.curve')
  curves = []
  for scope, share in (('one', .1), ('two', .9)):
    gin.parse_config(
        f'{scope}/of_a_test.curve.rule = @{scope}/of_a_test.Shared\n'
        f'{scope}/of_a_test.Shared.share = {share}')
    with gin.config_scope(scope):
      curves.append(gin.get_configurable('of_a_test.curve')())
  one, two = (p for p in expand(*curves) if p.rule and p.temperature)
  assert (one.label, two.label) == ('Shared(share=0.1) T=1',
                                    'Shared(share=0.9) T=1')
  made = programs.Programs(None, curves)
  assert made.name(one) == made.name(two)
  for point, share in ((one, .1), (two, .9)):
    rule = made._target(point)
    assert rule.rules[int(rule.index)].share == share


@pytest.mark.parametrize('curve,what', [
    (Curve(baselines.OriginalBiLD, (1.,)), 'temperature of OriginalBiLD is 1'),
    (Curve(baselines.OriginalBiLD, (-1.,), (0.,)), 'allowed: 0 to inf'),
    (Curve(baselines.SeqCascade, (3.,)), 'alpha of SeqCascade is 3'),
    (Curve(baselines.TokenCascade), 'TokenCascade needs an alpha'),
    (Curve(baselines.SeqCascade, (.1,), drafter='tree'), 'leave it out'),
    (Curve(baselines.SeqCascade, (.1,), drafter='ngram'), 'does not have')])
def test_bad_curves_are_refused_in_one_line(curve, what):
  with pytest.raises(ValueError, match=what) as error:
    expand(curve)
  assert '\n' not in str(error.value)
