"""Which points a prediction holds for, and where it is shown."""
import dataclasses

import fakesweep
import pytest

from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import points
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import sweep
from spec_cascades.evaluation.report import table
from tests.evaluation.sweep_run_test import Bar


def test_predictions_are_of_chains_of_models():
  curves = [points.Curve(targets.Lossless, temperatures=(0.,)),
            points.Curve(targets.Lossless, (), (0.,), 'ngram', 'copying'),
            points.Curve(targets.Lossless, (), (0.,), 'skip', 'layers'),
            points.Curve(baselines.OriginalBiLD, (2.,), (0.,))]
  made = programs.Programs(None, curves)
  fit = [x.method for x in points.expand(curves, gamma=2)
         if foretold.fits(x, made)]
  assert fit == ['SpecDecode']                   # of the pair's small one
  assert [x.method for x in points.expand(curves, gamma=2)
          if foretold.foreseen(x, made)] == ['SpecDecode', 'layers']


def test_five_per_cent_are_tolerated():
  assert foretold.warning('T=0', 2.09, 2.) is None
  assert foretold.warning('T=0', 1.91, 2.) is None
  assert 'at T=0 2.11 tokens a call' in foretold.warning('T=0', 2.11, 2.)
  assert 'warning: ' in foretold.warning('T=0', 1.89, 2.)
  assert foretold.shown(2.1, 2.) == '2.10 (+5.0%)'


@pytest.mark.parametrize('ratio,warned', [(1.04, 0), (1.2, 1), (.8, 1)])
def test_a_sweep_shows_what_was_predicted(ratio, warned):
  """Beside what was decoded, and nothing where there is no prediction."""
  made = fakesweep.make(limit=3)
  row = next(x for x in made.rows if x.drafter)
  assert 'predicted' not in table.everything(made)
  made = dataclasses.replace(made, predicted=[foretold.Foretold(
      row.key, row.sweep, 'a point', ratio * row.tokens_per_call,
      row.tokens_per_call)])
  head, body = table.points(made.rows, made.predicted)
  at = head.index('predicted')
  assert head[at - 1] == 'tokens/call' and {len(x) for x in body} == {len(head)}
  assert sorted(line[at] for line in body) == sorted([
      f'{ratio * row.tokens_per_call:.2f} ({ratio - 1:+.1%})',
      *['-'] * (len(body) - 1)])
  notes = table.everything(made)
  assert notes.count('warning: at a point ') == warned


@pytest.mark.slow
def test_chains_of_other_models_are_foreseen(pair_dir, tmp_path):
  """Exactly, where nothing is drawn; what looks texts up is not."""
  curves = [points.Curve(targets.Lossless, (), (0.,), name, name)
            for name in ('skip', 'ngram')]
  made = sweep.Run(sweep.Sweep(
      str(tmp_path), curves, str(pair_dir / 'verifier'),
      str(pair_dir / 'drafter'), examples=4, gamma=3,
      buckets=((80, 20),)))(Bar)
  skip, ngram = (next(x for x in made.rows if x.drafter == name)
                 for name in ('skip', 'ngram'))
  found, = made.predicted
  assert found.key == skip.key != ngram.key and skip.tokens_per_call > 1
  assert found.predicted == pytest.approx(skip.tokens_per_call)
