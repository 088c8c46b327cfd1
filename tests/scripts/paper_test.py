"""The paper's configurations can tell what they say that the paper found."""
import pathlib
import sys

import numpy as np
import pytest

from spec_cascades.evaluation import contests
from spec_cascades.evaluation import findings
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import points
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import sweep as sweep_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402
import sweep  # noqa: E402


@pytest.mark.parametrize('name,claims', [
    ('paper_t5', ('token rules are no slower', 'OPT is no slower',
                  'sequential cascades')),
    ('paper_temperatures', ('token rules are no slower', "OPT's lead",
                            'sequential cascades')),
    ('paper_gammas', ('a larger gamma reaches', 'a larger gamma is slower')),
    ('paper_lossy', ('Lossy with beta = 1',)),
    ('paper_rules', ('Lossy with beta = 1',))])
def test_each_has_curves_for_its_claims(name, claims):
  for files, bindings in sweep.several(ROOT / 'configs' / f'{name}.py'):
    _cli.configure(files, bindings)
    made = _cli.call(sweep_lib.Sweep)
    grid = dict(enumerate(points.expand(made.curves, gamma=made.gamma)))
    draw = np.random.default_rng(0).random
    found = findings.check(contests.lines(grid, {
        key: frontier.Samples(draw(), draw(), draw(9), draw(9))
        for key in grid}))
    told = {x.claim for x in found if x.verdict != findings.ABSENT}
    for claim in claims:
      assert any(x.startswith(claim) for x in told), claim


def test_together_they_have_every_rule_and_baseline():
  found = set()
  for path in (ROOT / 'configs').glob('paper_*.py'):
    for files, bindings in sweep.several(path):
      _cli.configure(files, bindings)
      found |= {x.rule.__name__ for x in _cli.call(sweep_lib.Sweep).curves}
  assert found == {*rules.RULES, *rules.BASELINES}


def test_the_lead_of_opt_is_told_at_1_and_0():
  (files, bindings), *_ = sweep.several(
      ROOT / 'configs/paper_temperatures.py')
  _cli.configure(files, bindings)
  heats = {t for x in _cli.call(sweep_lib.Sweep).curves
           for t in x.temperatures}
  assert heats == {0., .1, .5, 1.}
