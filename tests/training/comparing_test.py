"""Drafters side by side: what is trained, measured, said and refused."""
import dataclasses
import re

import numpy as np
import pytest

import tinypair
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.training import comparing
from spec_cascades.training import divergences
from spec_cascades.training import losses
from spec_cascades.training import policies
from tests.scripts import cli_test
from training.runs import run_of

LOSSES = dict(ce=losses.Distillation(mix=1.),
              tvd=losses.Distillation(divergences.TVD()))


@pytest.fixture(scope='module')
def teacher(corpus, tmp_path_factory):
  """A random verifier; every drafter here is of its size."""
  return tinypair.write(tmp_path_factory.mktemp('verifier'),
                        corpus.vocabulary.path, 0, scale=4.)


def comparison(corpus, teacher, directory, **changes):
  """Of the verifier as its own drafter with one that knows nothing."""
  small = tinypair.write(directory / 'small', corpus.vocabulary.path, 5)
  return comparing.Comparison(**{**dict(
      verifier=str(teacher), corpus=corpus, output=str(directory / 'out'),
      drafters=dict(small=str(small), itself=str(teacher)), examples=4,
      gamma=2, max_length=10, batch=4), **changes})


def product(corpus, teacher, directory):
  """Runs of two steps: two losses on the corpus, one on the drafter's own."""
  run = dataclasses.replace(
      run_of(corpus, directory / 'runs', steps=2, save_every=2, eval_every=2,
             warmup=1, cooldown=0), teacher=str(teacher),
      lm=t5.T5(tinypair.config(16, 1)))
  return comparing.product(run, LOSSES, dict(
      corpus=comparing.Policy(corpus),
      drafter=comparing.Policy(corpus, policies.OnPolicy(1.))))


def test_every_loss_is_trained_on_every_policys_texts(
    corpus, teacher, tmp_path):
  runs = product(corpus, teacher, tmp_path)
  assert list(runs) == ['ce-corpus', 'tvd-corpus', 'tvd-drafter']
  assert len({run.model_dir for run in runs.values()}) == 3
  for name, run in runs.items():
    assert run.model_dir.endswith(name)
    assert run.distillation == LOSSES[name.split('-')[0]]
    assert run.on_policy.share == name.endswith('drafter')


def test_what_is_no_distillation_is_no_loss_to_compare(
    corpus, teacher, tmp_path):
  run = run_of(corpus, tmp_path)
  with pytest.raises(ValueError, match=r'The loss b is Boosted\(\); allowed: '
                     'losses.Distillation'):
    comparing.product(run, dict(LOSSES, b=losses.Boosted()),
                      dict(corpus=comparing.Policy(corpus)))


def test_a_corpus_of_other_words_than_the_verifiers_is_refused(
    corpus, teacher, tmp_path):
  """Whether drafters are trained or only measured, before either."""
  words = tinypair.make_vocabulary(tmp_path, 500)
  other = dataclasses.replace(corpus, vocabulary=text.Vocabulary(str(words)))
  runs = product(corpus, teacher, tmp_path)
  bad = dataclasses.replace(runs['tvd-corpus'], corpus=other, lm=t5.T5(
      tinypair.config(16, 1, vocab_size=500)))
  chosen = comparison(corpus, teacher, tmp_path)
  for changes in (dict(corpus=other), dict(trained=dict(runs, x=bad))):
    with pytest.raises(ValueError, match='vocabularies of .* of the corpus'):
      comparing.compare(dataclasses.replace(chosen, **changes),
                        log=lambda line: None)
  assert not (tmp_path / 'out').exists() and not (tmp_path / 'runs').exists()


def test_drafters_are_trained_measured_and_said_once(
    corpus, teacher, tmp_path, monkeypatch):
  """Cut off in the middle of it all; the same call goes on."""
  runs = product(corpus, teacher, tmp_path)
  trained = {name: runs[name] for name in ('ce-corpus', 'tvd-drafter')}
  chosen = comparison(corpus, teacher, tmp_path, trained=trained,
                      temperatures=(0., 1.))

  def stop(line):
    if line.startswith('training tvd-drafter'):
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    comparing.compare(chosen, log=stop)
  lines = []
  rows = comparing.compare(chosen, log=lines.append)
  assert [x for x in lines if x.startswith('measuring')] == [
      'measuring tvd-drafter']
  assert [row['name'] for row in rows] == [
      'small', 'itself', 'ce-corpus', 'tvd-drafter']
  for cell in rows[1]['found']:        # nothing of its own drafts is rejected
    np.testing.assert_allclose(cell['accepted'], cell['tokens'], rtol=1e-4)
  greedy, drawn = (comparing.table([
      dict(row, found=[row['found'][i]]) for row in rows]) for i in (0, 1))
  assert lines[-len(greedy) - len(drawn) + 1:-1] == greedy[:-1] + drawn[:-1]
  first, second, *_ = (x for x in greedy if x.startswith('| small')
                       or x.startswith('| itself'))
  assert '| - |' in first and '| 1.000 [1.000, 1.000] | +' in second
  assert 'Predicted and decoded tokens a call are at most' in lines[-1]
  monkeypatch.setattr(comparing, '_measure', None)
  again = []
  assert comparing.compare(dataclasses.replace(chosen, trained={}),
                           log=again.append) == rows[:2]


def test_figures_are_ratios_of_sums_over_texts():
  """Intervals hold the value; the difference is that of the values."""
  rng, rows = np.random.default_rng(0), []
  for name, rate in (('a', .3), ('b', .5)):
    tokens = rng.integers(3, 9, 40)
    rows.append(dict(name=name, found=[dict(
        temperature=1., gamma=3, predicted=1.53, decoded=1.5,
        tokens=tokens.tolist(), accepted=(rate * tokens).tolist())]))
  lines = comparing.table(rows)
  assert '40 texts; 95 % intervals' in lines[0]
  assert lines[4] == '| a | 0.300 [0.300, 0.300] | - | 1.500 | 1.530 (+2.0%) |'
  assert '| 0.500 [0.500, 0.500] | +0.200 [+0.200, +0.200] |' in lines[5]
  assert lines[-1].endswith('at most 2.0% apart; aim: 3%.')
  tokens = np.array(rows[0]['found'][0]['tokens'])
  rows[0]['found'][0]['accepted'] = rng.uniform(0, tokens).tolist()
  value, low, high = map(float, re.findall(
      r'[\d.]+', comparing.table(rows)[4])[:3])
  assert low < value < high
  want = sum(rows[0]['found'][0]['accepted']) / tokens.sum()
  assert value == pytest.approx(want, abs=5e-4)


@pytest.mark.parametrize('changes,match', [
    (dict(drafters={}), 'Got no drafter'),
    (dict(gamma=0), 'A draft length'), (dict(examples=0), 'examples of Compar'),
    (dict(temperatures=()), 'no temperatures'),
    (dict(temperatures=(-1.,)), 'temperature of Comparison is -1'),
    (dict(split='none'), 'No corpus at'),
    (dict(verifier='nowhere'), 'No checkpoint at nowhere')])
def test_what_can_not_be_compared_is_refused(
    corpus, teacher, tmp_path, changes, match):
  with pytest.raises(ValueError, match=match):
    comparing.compare(comparison(corpus, teacher, tmp_path, **changes),
                      log=lambda line: None)


def test_bad_runs_and_files_are_refused_before_anything_is_trained(
    corpus, teacher, tmp_path):
  runs = product(corpus, teacher, tmp_path)
  run = runs['tvd-drafter']
  chosen = comparison(corpus, teacher, tmp_path, trained=runs)
  absent = dataclasses.replace(corpus, directory=str(tmp_path / 'absent'))
  for bad, match in ((dict(teacher='other'), 'The teacher of x is other, the'),
                     (dict(corpus=absent), 'No corpus at .*absent')):
    with pytest.raises(ValueError, match=match):
      comparing.compare(dataclasses.replace(chosen, trained=dict(
          runs, x=dataclasses.replace(run, **bad))), log=lambda line: None)
  with pytest.raises(ValueError, match='small is among drafters and trained'):
    dataclasses.replace(chosen, trained=dict(small=run))
  assert not (tmp_path / 'runs').exists() and not (tmp_path / 'out').exists()
  (tmp_path / 'out').mkdir()
  for content in ('x', '{}', '[]'):
    (tmp_path / 'out' / comparing.FILE).write_text(content)
    with pytest.raises(ValueError, match='does not hold figures'):
      comparing.compare(chosen, log=lambda line: None)
  other = tinypair.write(tmp_path / 'other', tinypair.make_vocabulary(
      tmp_path, 511), 0)
  (tmp_path / 'out' / comparing.FILE).unlink()
  with pytest.raises(ValueError, match='vocabularies of .* differ'):
    comparing.compare(dataclasses.replace(
        chosen, drafters=dict(other=str(other))), log=lambda line: None)
  assert not (tmp_path / 'runs').exists()


def test_the_script_refuses_in_one_line(tmp_path):
  def given(*bindings):
    return ['--gin_file=gin/compare/debian_ende.gin',
            f'--gin.OUTPUT={tmp_path / "out"}',
            f'--gin.CORPUS={tmp_path / "nowhere"}', *bindings]

  cli_test.check('compare_drafters', [
      ([], '--gin_file'), (given(), 'No corpus at'),
      (given('--gin.DRAFTERS={}'), 'Got no drafter'),
      (given('--gin.EXAMPLES=0'), 'examples of Comparison is 0'),
      (given('--gin.LOSSES={}'), "Unknown gin name 'LOSSES'")])
  assert not (tmp_path / 'out').exists()
