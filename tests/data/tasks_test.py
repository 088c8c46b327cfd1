"""TFDS builders and seqio Tasks on a tiny corpus, offline."""

import subprocess
import sys

import numpy as np
import pytest

from spec_cascades.data import corpus
from spec_cascades.data import split
from spec_cascades.data import vocabulary

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


def _rows(name, count):
  """Rows of a split: distinct sentences, every third a near-duplicate."""
  for i in range(count):
    yield {
        'id': f'mock/{name}{i}',
        'en': f'The {name} file number {i} is read.',
        'de': f'Die Datei {i} für {name} wird gelesen.',
        'document': f'A document on {name} and on {i} other things.',
        'synopsis': f'document on {name} {i}',
        'origin': 'mock',
        'group': f'mock/{i // 2}',
        'similarity': 0.5 if i % 3 == 2 else 0.25,
        'near_duplicate': i % 3 == 2,
    }


@pytest.fixture(name='prepared', scope='module')
def _prepared(tmp_path_factory):
  """Cache and data directories with both data sets, and a vocabulary."""
  from spec_cascades.data import builders  # TensorFlow only if tests run.

  cache = tmp_path_factory.mktemp('cache')
  data = tmp_path_factory.mktemp('tfds')
  texts = []
  for chosen in corpus.CORPORA.values():
    keys = {
        chosen.source, chosen.target, 'id', 'origin', 'group', 'similarity',
        'near_duplicate',
    }  # fmt: skip
    splits = {
        name: [
            {k: v for k, v in row.items() if k in keys}
            for row in _rows(name, count)
        ]
        for name, count in zip(chosen.splits, (20, 6, 9))
    }
    corpus.write(chosen, splits, corpus.corpus_dir(chosen.name, cache))
    builders.prepare(chosen.name, cache_dir=cache, data_dir=data)
    texts += vocabulary.interleave(
        splits['train'], (chosen.source, chosen.target)
    )
  model = vocabulary.train(texts, cache / 'v.model', vocab_size=300)
  return cache, data, model


@pytest.mark.parametrize('name', list(corpus.CORPORA))
def test_builder_keeps_every_row(prepared, name):
  import tensorflow_datasets as tfds

  cache, data, _ = prepared
  builder = tfds.builder(name, data_dir=data, cache_dir=cache)
  assert tuple(builder.info.splits) == corpus.find(name).splits
  for split_name in builder.info.splits:
    wanted = {x['id']: x for x in corpus.read(name, split_name, cache)}
    read = list(tfds.as_numpy(builder.as_dataset(split_name)))
    assert len(read) == builder.info.splits[split_name].num_examples
    assert {x['id'].decode() for x in read} == set(wanted)
    for row in read:
      other = wanted[row['id'].decode()]
      for key, value in other.items():
        got = row[key].decode() if isinstance(value, str) else row[key]
        assert got == value
  assert 'licence of each package' in builder.info.redistribution_info.license
  assert builder.info.citation and builder.info.homepage


def test_preparing_again_replaces_the_data_set(prepared, tmp_path):
  from spec_cascades.data import builders

  cache, _, _ = prepared
  chosen = corpus.DEBIAN_SYNOPSIS
  splits = {x: list(corpus.read(chosen.name, x, cache)) for x in split.SPLITS}
  sizes = []
  for name in ('train', 'test'):
    splits[name] = splits[name][1:]
    corpus.write(chosen, splits, corpus.corpus_dir(chosen.name, tmp_path))
    info = builders.prepare(
        chosen.name, cache_dir=tmp_path, data_dir=tmp_path / 'tfds'
    )
    sizes.append([info.splits[x].num_examples for x in split.SPLITS])
  assert sizes == [[19, 6, 9], [19, 6, 8]]


def _register(name, prepared, **kwargs):
  import seqio
  from spec_cascades.data import tasks

  _, data, model = prepared
  task_name = f'mock_{name}'
  seqio.TaskRegistry.remove(task_name)
  return tasks.register(
      task_name,
      corpus.find(name),
      vocabulary_path=model,
      tfds_data_dir=str(data),
      **kwargs,
  )


def test_task_gives_pieces_that_end_with_eos(prepared):
  task = _register('debian_ende', prepared, prefix='de: ')
  lengths = {'inputs': 64, 'targets': 64}
  rows = list(
      task.get_dataset(lengths, 'test', shuffle=False).as_numpy_iterator()
  )
  assert len(rows) == task.num_input_examples('test') == 9
  pieces = task.output_features['targets'].vocabulary
  for row in rows:
    assert row['inputs_pretokenized'].startswith(b'de: The ')
    assert row['inputs'][-1] == row['targets'][-1] == vocabulary.EOS_ID
    text = row['targets_pretokenized'].decode()
    assert pieces.decode(row['targets'].tolist()) == text
  short = task.get_dataset(
      {'inputs': 4, 'targets': 4}, 'test', shuffle=False
  ).as_numpy_iterator()
  assert all(x['targets'].tolist()[3:] == [vocabulary.EOS_ID] for x in short)


@pytest.mark.parametrize(
    'name, metric', [('debian_ende', 'bleu'), ('debian_synopsis', 'rouge1')]
)
def test_evaluator_reports_all_and_distinct_examples(prepared, name, metric):
  import seqio

  task = _register(name, prepared)
  evaluator = seqio.Evaluator(
      task.name,
      feature_converter=seqio.EncDecFeatureConverter(pack=False),
      eval_split='test',
  )

  cached = evaluator.cached_task_datasets[task.name]
  blank = [x['near_duplicate'] for x in cached.as_numpy_iterator()]

  def predict(dataset):
    """Perfect predictions, but nothing for near-duplicates."""
    return [
        (int(i), np.asarray(x['decoder_target_tokens']) * (not blank[i]))
        for i, x in dataset.as_numpy_iterator()
    ]

  metrics, _ = evaluator.evaluate(
      compute_metrics=True, step=0, predict_fn=predict
  )
  result = metrics.result()[task.name]
  np.testing.assert_allclose(result[f'{metric}_distinct'], 100.0)
  assert 0.0 < result[metric] < 99.0


def test_tasks_are_registered_on_import():
  import seqio
  from spec_cascades.data import tasks

  del tasks
  for name in corpus.CORPORA:
    assert name in seqio.TaskRegistry.names()
  mixed = seqio.get_mixture_or_task('debian_ende_docs').tasks
  assert {x.name for x in mixed} == {'debian_ende', 'debian_docs'}


def test_every_metric_says_what_it_depends_on():
  """In the words of sweeps, and by the names that the metrics give."""
  from spec_cascades.data import tasks
  from spec_cascades.evaluation import qualities

  target = {'text': 'a b', 'near_duplicate': False}
  of = lambda name: qualities.make(name).signature([('a b',)])
  # These texts are of one sentence each, and cut at line ends alone.
  lsum = of('ROUGE-Lsum').replace('|sentences:as in T5', '')
  for metric, wanted in (
      (tasks.bleu, {'bleu': of('BLEU')}),
      (tasks.rouge, {'rouge1': of('ROUGE-1'), 'rouge2': of('ROUGE-2'),
                     'rougeL': of('ROUGE-L'), 'rougeLsum': lsum})):
    found = metric.signatures([target])
    assert set(found) == set(metric([target], ['a b']))
    assert found == wanted | {f'{k}_distinct': x for k, x in wanted.items()}


def test_metrics_of_nothing_distinct_are_zero():
  from spec_cascades.data import tasks

  targets = [{'text': 'a b c d', 'near_duplicate': True}]
  assert tasks.bleu(targets, ['a b c d'])['bleu_distinct'] == 0.0
  assert tasks.rouge(targets, ['a b c d'])['rouge2_distinct'] == 0.0


def test_the_rest_of_the_package_does_not_load_tensorflow():
  code = (
      'import sys, spec_cascades.data.corpus, spec_cascades.data.vocabulary\n'
      'assert not {"tensorflow", "seqio"} & set(sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
