"""Public data sets as examples for sweeps, and their metrics."""
import subprocess
import sys

import pytest

from spec_cascades.evaluation import public_examples
from spec_cascades.evaluation import qualities
from tests import publicdata

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')
NAME = 'natural_questions'


@pytest.fixture(name='data', scope='module')
def _data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('tfds')
  publicdata.prepare(NAME, directory)
  return directory


def test_examples_are_the_tasks_texts(data):
  import seqio
  from spec_cascades.data import public

  seqio.TaskRegistry.remove('texts')
  task = public.register(NAME, seqio.ByteVocabulary(), style='few_shot',
                         seed=3, tfds_data_dir=data, task_name='texts')
  rows = list(task.get_dataset(None, 'validation', shuffle=False)
              .as_numpy_iterator())
  read = public_examples.examples(NAME, style='few_shot', seed=3,
                                  tfds_data_dir=data)
  assert [x.index for x in read] == [0, 1, 2]
  assert [x.id for x in read] == [x['id'].decode() for x in rows]
  assert [x.source for x in read] == [
      x['inputs_pretokenized'].decode() for x in rows]
  assert [x.reference for x in read] == [
      x['references'][0].decode() for x in rows]
  assert public_examples.examples(NAME, style='few_shot', seed=3, limit=2,
                                  tfds_data_dir=data) == read[:2]


def test_misuse_is_refused(data, tmp_path):
  with pytest.raises(ValueError, match='Got 0 examples; give at least 1'):
    public_examples.examples(NAME, style='t5', limit=0, tfds_data_dir=data)
  with pytest.raises(ValueError, match='prepare_public.py natural_questions'):
    public_examples.examples(NAME, style='t5', tfds_data_dir=tmp_path)


def test_an_answer_is_what_comes_before_the_next_question():
  text = ' Oslo\n\nQuestion: where is it?'
  assert public_examples.answer(NAME, 'few_shot', text) == 'Oslo'


def test_metrics_are_made_when_they_are_called(monkeypatch):
  from spec_cascades.data import public_datasets

  made = lambda name: lambda texts, references: (name, texts, references)
  functions = public_examples.metric_fns('squad_v2')
  monkeypatch.setattr(qualities, 'make', made)
  results = [x(targets=[('a', 'b')], predictions=['c']) for x in functions]
  assert results == [{x: (x, ['c'], [('a', 'b')])} for x in ('EM', 'F1')]
  for dataset in public_datasets.DATASETS.values():
    assert public_examples.metric_fns(dataset.name)


def test_importing_does_not_load_tensorflow():
  code = ('import sys, spec_cascades.evaluation.public_examples\n'
          'assert not {"tensorflow", "seqio"} & set(sys.modules)')
  subprocess.run([sys.executable, '-c', code], check=True)
