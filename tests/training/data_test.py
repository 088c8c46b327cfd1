"""Batches are a function of (seed, step)."""
import dataclasses
import json

import numpy as np
import pytest

import tinypair
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import text
from spec_cascades.training import data


def write_corpus(directory, limit=120):
  """The hand-written sentences as a corpus: 120 to train on, 40 to validate."""
  rows = [dict(id=x.id, en=x.source, de=x.reference, near_duplicate=i % 4 == 0)
          for i, x in enumerate(examples.read())]
  splits = dict(train=rows[:limit], validation=rows[limit:limit + 40],
                test=rows[limit + 40:])
  for split, lines in splits.items():
    (directory / f'{split}.jsonl').write_text(
        '\n'.join(map(json.dumps, lines)), encoding='utf-8')


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  write_corpus(directory)
  vocabulary = text.Vocabulary(str(tinypair.make_vocabulary(directory)))
  return data.ParallelText(str(directory), vocabulary, buckets=(24, 48),
                           tokens_per_batch=192)


@pytest.mark.parametrize('changes,match', [
    (dict(buckets=()), r'Got buckets=\(\); allowed: one width or more'),
    (dict(buckets=24), 'Got buckets=24; allowed: one width or more'),
    (dict(buckets='24'), "Got buckets='24'"),
    (dict(buckets=(48, 24)), r'ascending widths. Give \(24, 48\)'),
    (dict(buckets=(24, 24)), r'ascending widths. Give \(24,\)'),
    (dict(buckets=(0, 24)), 'buckets of ParallelText is 0 in row 0'),
    (dict(buckets=(24., 48.)), 'buckets of ParallelText is an array of float'),
    (dict(cut=0), 'cut of ParallelText is 0; .*None is allowed'),
    (dict(target_width=0), 'target_width of ParallelText is 0'),
    (dict(target_width=2.), 'target_width of ParallelText is 2.0'),
    (dict(tokens_per_batch=0), 'tokens_per_batch of ParallelText is 0'),
    (dict(tokens_per_batch=None), 'tokens_per_batch of ParallelText is None'),
    (dict(seed=-1), 'seed of ParallelText is -1'),
    (dict(more='far'), r"Got more='far'; .* such as \('far',\)")])
def test_what_is_no_setting_of_a_corpus_is_refused(corpus, changes, match):
  with pytest.raises(ValueError, match=match) as error:
    dataclasses.replace(corpus, **changes)
  assert '\n' not in str(error.value)


def test_lists_and_readers_without_a_hash_give_the_same_batches(corpus):
  """As gin's square brackets make them."""
  @dataclasses.dataclass                # eq without frozen: there is no hash
  class Reader:
    splits: tuple[str, ...] = ('train',)

    def __call__(self, split, part=data.ALL):
      return corpus.numbered(split, part)

  lists = dataclasses.replace(corpus, buckets=[24, 48], more=[])
  reader = dataclasses.replace(corpus, directory=None, reader=Reader())
  for other in (lists, reader):
    for name, x in corpus.batch(1).items():
      np.testing.assert_array_equal(other.batch(1)[name], x)
    assert other.where(1) == corpus.where(1)


def test_an_epoch_shows_every_pair_once(corpus):
  seen = []
  for step in range(corpus.steps_per_epoch):
    batch = corpus.batch(step)
    assert batch['inputs'].shape == batch['targets'].shape
    assert batch['weights'].shape == batch['targets'].shape
    seen += [tuple(row) for row in batch['inputs']]
  held = [tuple(row) for x in corpus.train.values() for row in x['inputs']]
  assert len(seen) == len(set(seen))
  assert set(seen) <= set(held)
  left = len(held) - len(seen)
  assert left < sum(corpus.rows(width) for width in corpus.train)


@pytest.mark.parametrize('count', [1, 2, 7, 200])
def test_parts_of_a_split_are_together_the_split(corpus, count):
  parts = [corpus.numbered('train', (i, count)) for i in range(count)]
  numbers = [number for part in parts for number, _ in part]
  assert numbers == sorted(set(numbers))
  assert [x for part in parts for _, x in part] == corpus.lines('train')
  sizes = [len(part) for part in parts]
  assert max(sizes) - min(sizes) <= .2 * len(numbers) / count + 2


def test_a_part_goes_on_through_more_directories(corpus):
  more = dataclasses.replace(corpus, more=(corpus.directory,))
  once, twice = ([x for _, x in c.numbered('train', (1, 7))]
                 for c in (corpus, more))
  assert twice == 2 * once and more.lines('train') == 2 * corpus.lines('train')
  numbers = [i for k in range(7) for i, _ in more.numbered('train', (k, 7))]
  assert len(set(numbers)) == len(numbers) == 2 * len(corpus.lines('train'))


def test_a_part_reads_no_line_of_another(corpus, tmp_path):
  lines = [json.dumps(x) for x in corpus.lines('train')[:4]]
  path = tmp_path / 'train.jsonl'
  path.write_text('\n'.join([*lines, '{', *lines]))
  mine = dataclasses.replace(corpus, directory=str(tmp_path))
  assert len(mine.numbered('train', (0, 3)) + mine.numbered('train', (2, 3))
             ) < 8
  with pytest.raises(ValueError, match=f'{path}, line 5 is not JSON'):
    mine.numbered('train', (1, 3))


def test_an_example_is_called_by_its_file_and_line(corpus, tmp_path):
  lines = [json.dumps(x) for x in corpus.lines('train')[:3]]
  lines[1] = json.dumps(dict(json.loads(lines[1]), en=' '))
  (tmp_path / 'train.jsonl').write_text('\n'.join(lines))
  both = dataclasses.replace(corpus, more=(str(tmp_path),))
  with pytest.raises(ValueError, match=f'{tmp_path}.*line 2 is empty'):
    _ = both.train


def test_a_batch_depends_on_seed_and_step_alone(corpus):
  again = data.ParallelText(corpus.directory, corpus.vocabulary,
                            buckets=(24, 48), tokens_per_batch=192)
  other = data.ParallelText(corpus.directory, corpus.vocabulary, seed=1,
                            buckets=(24, 48), tokens_per_batch=192)
  late = corpus.steps_per_epoch + 2
  for name, got in again.batch(late).items():
    np.testing.assert_array_equal(got, corpus.batch(late)[name])
  assert any(
      corpus.batch(i)['inputs'].tolist() != other.batch(i)['inputs'].tolist()
      for i in range(3))


def test_targets_end_and_padding_has_no_weight(corpus):
  batch = corpus.batch(0)
  assert ((batch['targets'] == text.EOS).sum(1) == 1).all()
  np.testing.assert_array_equal(batch['weights'], batch['targets'] > 0)
  np.testing.assert_array_equal(batch['input_lengths'],
                                (batch['inputs'] > 0).sum(1))


def test_buckets_without_a_batch_are_told(corpus):
  wide = dataclasses.replace(corpus, tokens_per_batch=48 * 200)
  counts = {width: len(x['inputs']) for width, x in wide.train.items()}
  assert wide.unused == {width: n for width, n in counts.items()
                         if n < wide.rows(width)} != {}
  narrow = dataclasses.replace(corpus, tokens_per_batch=24)
  assert narrow.unused == {} and corpus.widest_target == 48


def test_an_answer_has_one_space_before_it(corpus):
  """Llama 2's pieces begin with one of their own."""
  spaced = dataclasses.replace(corpus, answer=' {target}')
  words = corpus.vocabulary
  assert words.piece(words.bare('a')[0]).startswith(data.SPACE)
  assert spaced._answered('Das') == corpus._answered('Das')
  assert spaced.decode(spaced._answered('Das')) == 'Das'


def test_a_missing_corpus_is_explained(corpus, tmp_path):
  missing = data.ParallelText(str(tmp_path), corpus.vocabulary)
  with pytest.raises(ValueError, match='build_corpus'):
    missing.batch(0)


def test_an_unreadable_split_is_named(corpus, tmp_path):
  (tmp_path / 'train.jsonl').write_bytes(b'{"en": "a", "de": "\xff"}\n')
  broken = data.ParallelText(str(tmp_path), corpus.vocabulary)
  with pytest.raises(ValueError, match=r"train.jsonl can't be read \(.*UTF-8"):
    broken.batch(0)


def test_the_batch_of_a_step_can_be_named(corpus):
  step = corpus.steps_per_epoch + 1
  batch = corpus.batch(step)
  first = corpus.vocabulary.decode(
      batch['inputs'][0, :batch['input_lengths'][0]].tolist())
  rows, width = batch['inputs'].shape
  assert corpus.where(step) == (
      f'batch 1 of epoch 1, {rows} pairs of up to {width} tokens, the first '
      f'{first[:60]!r}')


def test_long_inputs_are_cut_and_targets_have_a_width_of_their_own(corpus):
  short = data.ParallelText(
      corpus.directory, corpus.vocabulary, buckets=(8, 10), cut=10,
      target_width=30, tokens_per_batch=120)
  arrays, = short.train.values()                 # not one of 8 tokens
  sources, targets = arrays['inputs'], arrays['targets']
  assert sources.shape[1] == 10 and targets.shape[1] == 30
  assert (sources[:, -1] == text.EOS).all()
  encoded = {tuple(short.encode(line['en'])) for line in short.lines('train')}
  assert set(map(tuple, sources)) <= encoded
  lengths = [len(corpus.vocabulary.encode(x['de'])) for x in
             short.lines('train')]
  assert len(targets) == sum(n <= 30 for n in lengths) < len(lengths)
  batch = short.batch(0)
  assert batch['inputs'].shape == (4, 10) and batch['targets'].shape == (4, 30)


def test_more_text_is_trained_on_and_nothing_else(corpus, tmp_path):
  line = json.dumps(dict(en='More of it.', de='Mehr davon.'))
  (tmp_path / 'train.jsonl').write_text(line, encoding='utf-8')
  more = dataclasses.replace(corpus, more=(str(tmp_path),))
  assert more.lines('train') == [*corpus.lines('train'), json.loads(line)]
  assert more.lines('validation') == corpus.lines('validation')
  assert more.splits == corpus.splits
  absent = dataclasses.replace(corpus, more=(str(tmp_path / 'none'),))
  with pytest.raises(ValueError, match='No corpus at .*none/train.jsonl'):
    absent.lines('train')
