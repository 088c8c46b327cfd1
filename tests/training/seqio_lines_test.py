"""Training texts from seqio Tasks."""
import functools
import json
import pathlib

import pytest

import tinypair
from spec_cascades.evaluation import seqio_tasks
from spec_cascades.evaluation import text
from spec_cascades.training import checks
from spec_cascades.training import data
from training.data_test import write_corpus
from training.runs import run_of

seqio = pytest.importorskip('seqio')
from spec_cascades.training import seqio_lines  # noqa: E402


@pytest.fixture(scope='module')
def corpora(tmp_path_factory):
  """The same texts as JSON lines and as a Task; their vocabulary."""
  import tensorflow as tf
  directory = tmp_path_factory.mktemp('corpus')
  write_corpus(directory)
  path = str(tinypair.make_vocabulary(directory))

  def rows(split, shuffle_files=False, seed=None):
    del shuffle_files, seed
    lines = [json.loads(line) for line in
             (directory / f'{split}.jsonl').read_text().splitlines()]
    return tf.data.Dataset.from_tensor_slices(dict(
        inputs=[x['en'] for x in lines], targets=[x['de'] for x in lines],
        near_duplicate=[x['near_duplicate'] for x in lines]))

  feature = seqio.Feature(seqio.SentencePieceVocabulary(path))
  add = functools.partial(
      seqio.TaskRegistry.add, source=seqio.FunctionDataSource(
          rows, splits=('train', 'validation')),
      output_features=dict(inputs=feature, targets=feature))
  add('lines_test', preprocessors=[seqio.preprocessors.tokenize])
  add('lines_test_textless', preprocessors=[functools.partial(
      seqio.preprocessors.tokenize, copy_pretokenized=False)])
  whole = directory / 'whole.tfrecord'
  with tf.io.TFRecordWriter(str(whole)) as writer:
    for number in range(9):
      writer.write(b'text %d' % number)
  shard = directory / 'train.tfrecord-00001-of-00002'
  shard.write_bytes(whole.read_bytes()[:-30])

  def damaged(split, shuffle_files=False, seed=None):
    del split, shuffle_files, seed
    return tf.data.TFRecordDataset([str(whole), str(shard)]).map(
        lambda x: dict(inputs=x, targets=x))

  seqio.TaskRegistry.add(
      'lines_test_damaged', source=seqio.FunctionDataSource(
          damaged, splits=('train',)),
      output_features=dict(inputs=feature, targets=feature),
      preprocessors=[seqio.preprocessors.tokenize])
  def kept(name, count):
    """A Task of the first texts in so many files, the i-th text in file i."""
    texts = [x['inputs'] for x in rows('train').as_numpy_iterator()][:11]
    files = [str(directory / f'{name}-{i:05}-of-{count:05}')
             for i in range(count)]
    for i, file in enumerate(files):
      with tf.io.TFRecordWriter(file) as writer:
        for words in texts[i::count]:
          feature = tf.train.Feature(bytes_list=tf.train.BytesList(
              value=[words]))
          writer.write(tf.train.Example(features=tf.train.Features(
              feature=dict(inputs=feature, targets=feature)
              )).SerializeToString())
    shape = tf.io.FixedLenFeature((), tf.string)
    add(name, source=seqio.TFExampleDataSource(
        dict(train=files), dict(inputs=shape, targets=shape)),
        preprocessors=[seqio.preprocessors.tokenize])
    return files

  def drawn(dataset):
    @seqio.map_over_dataset(num_seeds=1)
    def noisy(x, seed):
      noise = tf.strings.as_string(tf.random.stateless_uniform(
          (), seed, maxval=10**6, dtype=tf.int32))
      return dict(x, inputs=tf.strings.join([x['inputs'], noise], ' '))
    return noisy(dataset)

  add('lines_test_drawn', preprocessors=[drawn, seqio.preprocessors.tokenize])
  kept('lines_test_files', 3)
  seqio.MixtureRegistry.add('lines_test_mixture', [
      ('lines_test', 1), ('lines_test_files', 5)])
  broken = pathlib.Path(kept('lines_test_one_damaged', 4)[1])
  broken.write_bytes(broken.read_bytes()[:-9])
  yield directory, text.Vocabulary(path)
  seqio.MixtureRegistry.remove('lines_test_mixture')
  for name in ('', '_textless', '_damaged', '_files', '_one_damaged',
               '_drawn'):
    seqio.TaskRegistry.remove(f'lines_test{name}')


def reader(name='lines_test', **kwargs):
  return seqio_lines.SeqioLines(seqio_tasks.Registered(name), **kwargs)


def test_batches_are_those_of_the_same_texts_in_files(corpora):
  directory, words = corpora
  kwargs = dict(buckets=(24, 48), tokens_per_batch=192)
  files = data.ParallelText(str(directory), words, **kwargs)
  task = data.ParallelText(None, words, source='inputs', target='targets',
                           reader=reader(), **kwargs)
  assert task.splits == ('train', 'validation')
  assert task.steps_per_epoch == files.steps_per_epoch
  for step in (0, files.steps_per_epoch + 1):
    for name, want in files.batch(step).items():
      assert (task.batch(step)[name] == want).all()
  marks = lambda corpus: [x['near_duplicate']
                          for x in corpus.lines('validation')]
  assert marks(task) == marks(files) and len(set(marks(task))) == 2


@pytest.mark.parametrize('limit', [None, 3, 8])
@pytest.mark.parametrize('count', [1, 2, 3, 5])
def test_parts_are_files_and_together_all(corpora, count, limit):
  """Three files of 4, 4 and 3 lines: an example of each in turn."""
  directory, _ = corpora
  want = [json.loads(x)['en'] for x in
          (directory / 'train.jsonl').read_text().splitlines()][:11]
  parts = [reader('lines_test_files', limit=limit)('train', (i, count))
           for i in range(count)]
  for i, part in enumerate(parts):
    assert all(number % 3 % count == i for number, _ in part)
  found = sorted(((number, x['inputs']) for part in parts
                  for number, x in part))
  assert found == list(enumerate(want))[:limit]


def test_a_part_reads_no_file_of_others(corpora):
  """The second file is damaged."""
  del corpora
  part = reader('lines_test_one_damaged')('train', (0, 2))
  assert [number for number, _ in part] == [0, 4, 8, 2, 6, 10]
  with pytest.raises(ValueError, match='DataLossError'):
    reader('lines_test_one_damaged')('train', (1, 2))


@pytest.mark.parametrize('count', [1, 2])
def test_a_mixture_has_all_examples_of_its_tasks_once(corpora, count):
  """Validation, which one of them lacks, is the other's."""
  del corpora
  read, texts = reader('lines_test_mixture'), lambda found: sorted(
      (x['inputs'], x['near_duplicate']) for _, x in found)
  parts = [x for i in range(count) for x in read('train', (i, count))]
  assert len({number for number, _ in parts}) == len(parts)
  assert texts(parts) == texts(reader()('train') + reader(
      'lines_test_files')('train'))
  assert sorted(parts, key=lambda x: x[0]) == sorted(
      read('train'), key=lambda x: x[0])
  assert texts(read('validation')) == texts(reader()('validation'))
  assert read.splits == ('train', 'validation')


def text_of(words, read, **changes):
  return data.ParallelText(
      None, words, source='inputs', target='targets', reader=read,
      **{**dict(buckets=(48,), tokens_per_batch=192), **changes})


@pytest.mark.parametrize('name,rates,what', [
    ('lines_test_mixture', True,
     'an epoch has 16.7% of lines_test, 83.3% of lines_test_files'),
    ('lines_test_mixture', False, 'all their examples are there once an epoch'),
    ('lines_test', True, None)])
def test_a_run_says_what_an_epoch_of_a_mixture_is(
    corpora, tmp_path, name, rates, what):
  """Of a Mixture alone."""
  said, corpus = [], text_of(corpora[1], reader(name, rates=rates))
  checks.begins(run_of(corpus, tmp_path, warmup=1, cooldown=1, max_length=49),
                said.append)
  assert said == ([f'lines_test_mixture is a Mixture of 2 Tasks: {what}' + (
      ', whatever their rates' * (not rates))] if what else [])


def test_an_epoch_of_a_mixture_has_its_rates(corpora):
  """One sixth is of the larger Task, which has 120 examples of 131."""
  _, words = corpora
  corpus, plain = (text_of(words, reader('lines_test_mixture', rates=x))
                   for x in (True, False))
  few = text_of(words, reader('lines_test_files'))
  small = {row.tobytes() for x in few.train.values() for row in x['inputs']}
  count = lambda corpus, epoch: sum(
      row.tobytes() in small for step in range(corpus.steps_per_epoch)
      for row in corpus.batch(epoch * corpus.steps_per_epoch + step)['inputs'])
  total = 4 * corpus.steps_per_epoch
  # Texts of the smaller Task are in the larger one, too: 11 of 120 there.
  for epoch in range(2):
    assert count(corpus, epoch) / total == pytest.approx(
        5 / 6 + 11 / 120 / 6, abs=.05)
    assert count(plain, epoch) / total == pytest.approx(22 / 131, abs=.05)
  assert corpus.steps_per_epoch == pytest.approx(plain.steps_per_epoch, abs=1)
  with pytest.raises(ValueError, match='a Mixture with rates and packed texts'):
    text_of(words, corpus.reader, packed=True).batch(0)
  assert text_of(words, plain.reader, packed=True).batch(0)


@pytest.mark.parametrize('rate,match', [
    (seqio.mixing_rate_num_examples, 'rate of lines_test in .* is not known '
     r'\(.*\); set seqio_lines.SeqioLines.rates=False'),
    (0, r'has the rates \[0.0\]; allowed: 0 or more, one above 0')])
def test_a_rate_that_is_none_is_explained(corpora, rate, match):
  seqio.MixtureRegistry.add('lines_test_odd', [('lines_test', rate)])
  try:
    with pytest.raises(ValueError, match=match) as error:
      text_of(corpora[1], reader('lines_test_odd')).batch(0)
    assert '\n' not in str(error.value)
    assert text_of(corpora[1], reader('lines_test_odd', rates=False)).batch(0)
  finally:
    seqio.MixtureRegistry.remove('lines_test_odd')


def test_what_preprocessors_draw_is_drawn_alike_again(corpora):
  del corpora
  one = reader('lines_test_drawn')('train')
  assert one == reader('lines_test_drawn')('train')
  assert one != reader('lines_test_drawn', seed=1)('train')
  assert len({x['inputs'].rsplit(' ', 1)[1] for _, x in one}) > 10


def test_a_limit_takes_the_first(corpora):
  del corpora
  assert reader(limit=3)('train') == reader()('train')[:3]


@pytest.mark.parametrize('make,match', [
    (lambda: reader('no_such_task')('train'), "No Task .*'no_such_task'"),
    (lambda: reader()('test'), "no split 'test'; it has train, validation"),
    (lambda: reader('lines_test_textless')('train'), 'keeps no text of inputs'),
    (lambda: reader('lines_test_damaged')('train'),
     "train of lines_test_damaged can't be read .DataLossError: .* prepare"),
    (lambda: reader(limit=0), 'limit of SeqioLines'),
    (lambda: data.ParallelText(None, None), 'one of the two'),
    (lambda: data.ParallelText('x', None, reader=reader()), 'one of the two')])
def test_what_can_not_be_read_is_explained(corpora, make, match):
  del corpora
  with pytest.raises(ValueError, match=match) as error:
    make()
  assert '\n' not in str(error.value)
