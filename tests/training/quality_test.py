"""What evaluations say of a drafter: where figures disagree, or are none."""
import re

import jax
import numpy as np
import pytest

from spec_cascades.evaluation import forced
from spec_cascades.models import t5
from spec_cascades.training import bought
from spec_cascades.training import comparing
from spec_cascades.training import exits
from spec_cascades.training import online
from spec_cascades.training import quality
from spec_cascades.training import train_step
from training.runs import SIZES

LM = t5.T5(t5.T5Config(**{**SIZES, 'dropout_rate': 0.}))
PARAMS = LM.init_params(jax.random.key(0))
APART = ('1.00 tokens a call are predicted, {} were decoded; above 5% apart, '
         'so trust neither.')


@pytest.fixture(name='off')
def _off(monkeypatch):
  """All predictions are 1 token a call, as if no draft were accepted."""
  monkeypatch.setattr(forced, 'acceptance', lambda pair, rows, texts, *_: [
      np.zeros(len(text)) for text in texts])


def validation_of(corpus, monkeypatch, *, teacher=LM, gamma=2, objective=None):
  """Of what the model buys as its own drafter, and of nothing else."""
  monkeypatch.setattr(quality.Validation, 'means', lambda *unused: {})
  monkeypatch.setattr(quality.Validation, 'quality', lambda *unused: 0.)
  update = train_step.Update(LM, None, teacher=teacher, objective=objective)
  return quality.Validation(update, corpus, sentences=2, batch=2, max_length=8,
                            gamma=gamma)


def test_an_evaluation_warns_of_a_prediction_that_is_off(
    corpus, off, monkeypatch):
  figures, lines = validation_of(corpus, monkeypatch)(PARAMS, PARAMS)
  for heat in (0, 1):
    decoded = figures[f'tokens_per_call_T{heat}']
    assert decoded > 1.05 and figures[f'predicted_T{heat}'] == 1
    assert f'warning: at T={heat} ' + APART.format(f'{decoded:.2f}') in lines


def test_an_evaluation_while_decoding_warns(corpus, off, monkeypatch):
  update = train_step.Update(LM, None, teacher=LM)
  session = online.Session(online.Online(every=2, gamma=2), update, PARAMS,
                           corpus, steps=1, max_length=8)
  monkeypatch.setattr(session, 'serve', lambda params, ids: [
      online.Served([5, 6, 1], [False] * 3, 2, (1, 1)) for _ in ids])
  memory = session.fresh().counted(3, 2, 1, 1).counted(3, 2, 1, 1)
  _, lines = session.score(PARAMS, PARAMS, memory)
  assert f'warning: at T=0 {APART.format("1.50")} (2 texts)' in lines


def test_a_table_warns():
  """Of the drafter that it is, and of no other."""
  row = lambda name, predicted: dict(name=name, found=[dict(
      temperature=0., gamma=2, predicted=predicted, decoded=1.5,
      tokens=[3, 3], accepted=[1., 2.])])
  lines = comparing.table([row('a', 1.5), row('b', 1.)])
  assert [line for line in lines if 'warning:' in line] == [
      f'b: warning: at T=0 {APART.format("1.50")}']


@pytest.mark.parametrize('changes,why', [
    (dict(teacher=None), 'there is no verifier .*; set loop.Run.teacher'),
    (dict(gamma=0), 'gamma is 0; set loop.Recipe.gamma'),
    (dict(teacher=None, objective=exits.Exits()), 'Exits trains no model that '
     'drafts .*; scripts/calibrate_heads.py measures')], ids=[
         'teacher', 'gamma', 'objective'])
def test_why_nothing_is_predicted_is_said_once(
    corpus, monkeypatch, changes, why):
  validation = validation_of(corpus, monkeypatch, **changes)
  monkeypatch.setattr(bought, 'tokens_per_call', None)
  guide = PARAMS if changes.get('teacher', LM) else None
  (_, (line,)), (_, rest) = (validation(PARAMS, guide) for _ in range(2))
  assert rest == [] and '\n' not in line
  assert re.match(f'tokens a call not predicted: {why}', line)
