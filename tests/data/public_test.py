"""Tasks on the nine public data sets, read from disk with TFDS's features."""
import io
from unittest import mock

import pytest
import requests

from tests import publicdata

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')
# Name: prompt 't5', target, references of one record, then prompt 'few_shot'
# of it with one solved record, where the style has any.
WANTED = {
    'wmt14_ende': (
        'translate English to German: Page 0 of validation.',
        'Seite 0 von validation.', ('Seite 0 von validation.',),
        'Translate from English to German.\n\n'
        'English: Page 10 of train.\nGerman: Seite 10 von train.\n\n'
        'English: Page 0 of validation.\nGerman:'),
    'cnn_dailymail': (
        'summarize: Story 0 of validation is long.',
        'Story 0 .\nIt is validation .', ('Story 0 .\nIt is validation .',),
        'Article: Story 0 of validation is long.\n\nHighlights of the article, '
        'in three or four short sentences:'),
    'xsum': (
        'summarize: Story 0 of validation.\nMore of it.',
        'A story, validation 0.', ('A story, validation 0.',),
        'Article: Story 0 of validation.\nMore of it.\n\n'
        'The article in one sentence:'),
    'gsm8k': (
        'question: In test, what is half of 2?',
        'Half of it is 2/2 = 1.\n#### 1', ('1',),
        'Question: In train, what is half of 20?\n'
        'Answer: Half of it is 20/2 = 10.\n#### 10\n\n'
        'Question: In test, what is half of 2?\nAnswer:'),
    'mbpp': (
        'python: Write a function to add 11. tests: '
        'assert add(0) == 11\nassert add(1) == 12',
        'def add(x):\n  return x + 11',
        ('assert add(0) == 11\nassert add(1) == 12',),
        'Write Python code for this task: Write a function to add 5.\n'
        'It has to pass these tests:\n'
        'assert add(0) == 5\nassert add(1) == 6\n'
        '[BEGIN]\ndef add(x):\n  return x + 5\n[DONE]\n\n'
        'Write Python code for this task: Write a function to add 11.\n'
        'It has to pass these tests:\n'
        'assert add(0) == 11\nassert add(1) == 12\n[BEGIN]\n'),
    'squad_v2': (
        'question: What is in validation not? '
        'context: There is 1 in validation.',
        'unanswerable', ('unanswerable',),
        'Answer each question with words of its passage, or with '
        '"unanswerable" if it has no answer there.\n\n'
        'Passage: There is 4 in train.\nQuestion: What is in train?\n'
        'Answer: 4\n\n'
        'Passage: There is 1 in validation.\n'
        'Question: What is in validation not?\nAnswer:'),
    'web_questions': (
        'wq question: who is 1 in test?', 'King 1', ('King 1', 'test 1'),
        'Answer each question with a few words.\n\n'
        'Question: who is 6 in train?\nAnswer: King 6\n\n'
        'Question: who is 1 in test?\nAnswer:'),
    'natural_questions': (
        'nq question: where is 0 in validation', 'Town 0',
        ('Town 0', 'validation 0'),
        'Answer each question with a few words.\n\n'
        'Question: where is 2 in train\nAnswer: Town 2\n\n'
        'Question: where is 0 in validation\nAnswer:'),
    'trivia_qa': (
        'trivia_qa question: Which river is 0 in validation?', 'The 0',
        ('The 0', 'River 0'),
        'Answer each question with a few words.\n\n'
        'Question: Which river is 1 in train?\nAnswer: The 1\n\n'
        'Question: Which river is 0 in validation?\nAnswer:'),
}
SOLVED = [x for x in WANTED if x not in ('cnn_dailymail', 'xsum')]


@pytest.fixture(name='data', scope='module')
def _data(tmp_path_factory):
  """Directory with all nine data sets."""
  directory = tmp_path_factory.mktemp('tfds')
  publicdata.prepare_all(directory, tmp_path_factory.mktemp('source'))
  return directory


def _register(name, data, **kwargs):
  import seqio  # TensorFlow only if tests run.
  from spec_cascades.data import public

  seqio.TaskRegistry.remove('tried')
  return public.register(name, seqio.ByteVocabulary(), tfds_data_dir=data,
                         task_name='tried', **kwargs)


def _rows(task, lengths, split):
  dataset = task.get_dataset(lengths, split, shuffle=False)
  return list(dataset.as_numpy_iterator())


def _prompts(name, data, **kwargs):
  from spec_cascades.data import public

  kwargs = {'style': 'few_shot', 'tfds_data_dir': data, **kwargs}
  return {x.id: x.prompt for x in public.Texts(name, **kwargs)}


@pytest.mark.parametrize('name', WANTED)
def test_t5_task_is_exactly_this(name, data):
  from spec_cascades.data import public_datasets

  prompt, target, references, _ = WANTED[name]
  chosen = public_datasets.find(name)
  task = _register(name, data, style='t5')
  rows = _rows(task, chosen.lengths('t5'), chosen.evaluated)
  row, = [x for x in rows if x['inputs_pretokenized'].decode() == prompt]
  assert row['targets_pretokenized'].decode() == target
  assert task.postprocess_fn('', example=row, is_target=True) == references
  pieces = task.output_features['inputs'].vocabulary
  for key, text in (('inputs', prompt), ('targets', target)):
    limit = chosen.lengths('t5')[key]
    wanted = [*pieces.encode(text)[:limit - 1], pieces.eos_id]
    assert row[key].tolist() == wanted


@pytest.mark.parametrize('name', WANTED)
def test_few_shot_task_is_exactly_this(name, data):
  from spec_cascades.data import public_datasets

  _, target, references, prompt = WANTED[name]
  chosen = public_datasets.find(name)
  task = _register(name, data, style='few_shot', shots=int(name in SOLVED))
  rows = _rows(task, chosen.lengths('few_shot'), chosen.evaluated)
  row, = [x for x in rows if x['inputs_pretokenized'].decode() == prompt]
  pieces = task.output_features['inputs'].vocabulary
  assert row['inputs'].tolist() == pieces.encode(prompt)  # Without EOS.
  written = row['targets_pretokenized'].decode()
  assert written == f'{target}\n[DONE]' if name == 'mbpp' else f' {target}'
  cut = pieces.encode(written)[:chosen.targets - 1]
  assert row['targets'].tolist() == [*cut, pieces.eos_id]
  assert task.postprocess_fn('', example=row, is_target=True) == references
  going_on = f'{written}\n\nQuestion: and so on?\n[DONE]'
  assert task.postprocess_fn(going_on, example=row) == (
      target.split('\n')[0] if chosen.few_shot.stop == '\n' else target)


@pytest.mark.parametrize('name', SOLVED)
def test_solved_records_are_of_the_training_split(name, data):
  from spec_cascades.data import public_datasets

  chosen = public_datasets.find(name)
  number = {'wmt14_ende': 5, 'gsm8k': 8, 'mbpp': 3, 'squad_v2': 3,
            'web_questions': 1, 'natural_questions': 1, 'trivia_qa': 5}[name]
  for prompt in _prompts(name, data).values():
    *solved, asked = prompt.removeprefix(chosen.few_shot.head).split('\n\n')
    assert len(set(solved)) == number and asked not in prompt[:-len(asked)]
    if name == 'mbpp':
      ids = [int(x.split('add ')[1].split('.')[0]) for x in solved]
      assert set(ids) <= set(range(1, 11))
    else:
      assert all('train' in x and chosen.evaluated not in x for x in solved)
      assert chosen.evaluated in asked and 'train' not in asked


def test_the_draw_follows_the_seed_and_not_the_files(data, tmp_path):
  from spec_cascades.data import public

  name = 'gsm8k'
  publicdata.prepare(name, tmp_path, order=-1)
  first, other = ([x.id for x in public.Texts(
      name, style='t5', split='train', tfds_data_dir=x)]
                  for x in (data, tmp_path))
  assert first != other and sorted(first) == sorted(other)
  prompts = [_prompts(name, data, seed=i, shots=4) for i in (0, 0, 1, 2)]
  assert prompts[0] == prompts[1] == _prompts(name, tmp_path, shots=4)
  assert len({tuple(x.items()) for x in prompts}) == 3


def test_a_training_record_does_not_show_its_own_answer(data):
  prompts = _prompts('natural_questions', data, split='train', shots=3)
  assert len(prompts) == publicdata.NUM_TRAIN
  for prompt in prompts.values():
    bodies = [x.split('\nAnswer:')[0] for x in prompt.split('\n\n')[1:]]
    assert len(set(bodies)) == len(bodies) == 4


def test_records_without_an_answer_are_left_out(data):
  assert len(_prompts('web_questions', data)) == publicdata.NUM_OTHERS - 1


def test_t5_prompts_are_trimmed_and_few_shot_prompts_never(data):
  import tensorflow as tf

  lengths = {'inputs': 20, 'targets': 5}
  task = _register('xsum', data, style='t5')
  for row in _rows(task, lengths, 'validation'):
    assert len(row['inputs']) == 20 and len(row['targets']) == 5
    assert row['inputs'][-1] == row['targets'][-1] == 1
  task = _register('xsum', data, style='few_shot')
  with pytest.raises(tf.errors.InvalidArgumentError,
                     match='more than 20 tokens; give fewer shots'):
    _rows(task, lengths, 'validation')


@pytest.mark.parametrize('name', ['squad_v2', 'mbpp'])
def test_a_missing_data_set_is_refused_in_one_line(name, tmp_path):
  from spec_cascades.data import public

  use = [lambda: _register(name, tmp_path, style='t5'),
         lambda: public.Texts(name, style='t5', tfds_data_dir=tmp_path)]
  for function in use:
    with pytest.raises(ValueError) as error:
      function()
    message = str(error.value)
    assert '\n' not in message and f'in {tmp_path};' in message
    assert message.endswith('prepare it: python scripts/prepare_public.py '
                            f'{name} --data_dir={tmp_path}')


def test_files_to_fetch_by_hand_are_asked_for_in_one_line(tmp_path):
  import tensorflow_datasets as tfds
  from spec_cascades.data import public

  listed = tmp_path / 'splits.json'
  listed.write_text('{}')
  fake = mock.patch.object(tfds.download.DownloadManager, 'download',
                           lambda *unused: listed)
  with fake, pytest.raises(ValueError) as error:
    public.prepare('xsum', tfds_data_dir=tmp_path)
  message = str(error.value)
  assert message.startswith('xsum: Manual directory ') and '\n' not in message
  assert 'xsum-extracts-from-downloads.tar.gz' in message


@pytest.mark.parametrize('status,what', [
    (404, 'DownloadError: .* 404'), (200, 'NonMatchingChecksumError: '),
    (None, 'ConnectionError: no route')])
def test_a_download_that_fails_is_told_in_one_line(tmp_path, status, what):
  """TFDS's own errors, of its own downloader: only the answer is made up."""
  from spec_cascades.data import public

  def answer(self, url, **unused):
    if status is None:
      raise requests.ConnectionError('no\nroute')
    found = requests.Response()
    found.status_code, found.url, found.raw = status, url, io.BytesIO(b'{}')
    return found

  name = 'web_questions'
  with (mock.patch.object(requests.Session, 'get', answer),
        pytest.raises(ValueError, match=f'^{name} could .*: {what}') as error):
    public.prepare(name, tfds_data_dir=tmp_path)
  assert '\n' not in str(error.value) and 'tries again' in str(error.value)


def test_what_is_prepared_is_not_downloaded_again(data):
  from spec_cascades.data import public

  for name in ('mbpp', 'gsm8k'):
    info = public.prepare(name, tfds_data_dir=data)
    assert info.full_name == f'{name}/1.0.0'


@pytest.mark.parametrize('kwargs, message', [
    (dict(name='wmt'), "Unknown data set 'wmt'; allowed: wmt14_ende, "),
    (dict(style='chat'), "Unknown prompt style 'chat'; allowed: t5, few_shot"),
    (dict(split='test'), "trivia_qa has no split 'test' with answers; allowed:"
                         ' train, validation'),
    (dict(style='t5', shots=2), "Got 2 shots for style 't5'"),
    (dict(shots=-1), 'Got -1 shots and seed 0'),
    (dict(seed=-1), 'shots and seed -1'),
    (dict(shots=12), 'Got 12 records of at most 1000 bytes to draw 13 from'),
])
def test_misuse_is_refused(kwargs, message, data):
  with pytest.raises(ValueError, match=message):
    _prompts(**{'name': 'trivia_qa', 'data': data, **kwargs})


@pytest.mark.parametrize('name', WANTED)
def test_metrics_take_the_targets_of_their_task(name, data):
  """The right answer, whatever a model writes behind it, and others' answers.

  Where any of several will do, the last one.
  """
  from spec_cascades.data import public_datasets
  from spec_cascades.evaluation import public_examples

  chosen = public_datasets.find(name)
  task = _register(name, data, style='few_shot', shots=int(name in SOLVED),
                   metric_fns=public_examples.metric_fns(name))
  rows = _rows(task, chosen.lengths('few_shot'), chosen.evaluated)[:3]
  read = lambda text, row, is_target: task.postprocess_fn(
      text, example=row, is_target=is_target)
  targets = [read('', row, True) for row in rows]
  last = name in ('web_questions', 'natural_questions', 'trivia_qa')
  texts = [x[-1] if last else row['targets_pretokenized'].decode()
           for x, row in zip(targets, rows)]
  said = [read(f' {x}{chosen.few_shot.stop}\nand so on', row, False)
          for x, row in zip(texts, rows)]
  score = lambda predictions: {name: x for metric in task.metric_fns
                               for name, x in metric(targets, predictions)
                               .items()}
  right, wrong = score(said), score(said[1:] + said[:1])
  assert right == dict.fromkeys(chosen.metrics, pytest.approx(100.))
  for metric, x in wrong.items():      # some count common words
    partly = metric.startswith(('BLEU', 'ROUGE', 'TriviaQA-F1'))
    assert 0 < x < 100 if partly else x == 0, metric


def test_the_evaluator_scores_answers_against_all_references(data):
  import numpy as np
  import seqio

  def right(targets, predictions):
    return {'right': np.mean([y in x for x, y in zip(targets, predictions)])}

  task = _register('trivia_qa', data, style='few_shot', metric_fns=[right])
  evaluator = seqio.Evaluator(
      task.name, eval_split='validation',
      sequence_length={'inputs': 512, 'targets': 32},
      feature_converter=seqio.EncDecFeatureConverter(pack=False))
  second = list(task.output_features['targets'].vocabulary.encode(
      ' River 0\nQuestion: and so on?'))
  metrics, _ = evaluator.evaluate(
      compute_metrics=True, step=0,
      predict_fn=lambda dataset: [(int(i), second) for i, _ in dataset])
  np.testing.assert_allclose(metrics.result()['tried']['right'], 1 / 3)
