"""Texts of sweeps from tables, corpora and public data sets."""
import json
from unittest import mock

import pytest

from spec_cascades.evaluation import examples
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import sources
from spec_cascades.evaluation import text
from tests import publicdata

LINES = [dict(id=f'x{i}', en='word ' * (i + 1), de=f'Wort {i}',
              near_duplicate=i % 3 == 0) for i in range(12)]


@pytest.fixture
def corpus(tmp_path):
  (tmp_path / 'test.jsonl').write_text(
      '\n'.join(map(json.dumps, LINES)) + '\n', encoding='utf-8')
  return sources.Corpus(str(tmp_path))


def test_a_corpus_without_near_duplicates_in_a_fixed_order(corpus):
  found = corpus.read(None)
  assert {x.id for x in found} == {f'x{i}' for i in range(12) if i % 3}
  assert [x.index for x in found] == list(range(8))
  assert corpus.read(3) == found[:3] and corpus.read(None) == found
  other = sources.Corpus(corpus.directory, seed=1).read(None)
  assert {x.id for x in other} == {x.id for x in found}
  assert [x.id for x in other] != [x.id for x in found]
  text = LINES[int(found[0].id[1:])]
  assert (found[0].source, found[0].references) == (text['en'], (text['de'],))


def test_what_a_corpus_leaves_out_is_chosen(corpus):
  read = lambda **given: sources.Corpus(corpus.directory, **given).read(None)
  assert len(read(distinct=False)) == 12
  assert {x.id for x in read(characters=15)} == {'x1', 'x2'}
  swapped, = read(characters=10, source='de', target='en', split='test')[:1]
  assert swapped.source.startswith('Wort')


@pytest.mark.parametrize('given,match', [
    (dict(split='dev'), 'No corpus at .*build_corpus'),
    (dict(source='document'), 'has no document.* keys are id, en, de'),
    (dict(characters=0), 'No example of .* allow more characters'),
    (dict(characters='20'), "characters is '20'; allowed: a whole number"),
    (dict(cut=0), 'cut is 0; allowed: 1 to'),
    (dict(distinct='false'), "distinct='false'; allowed: True or False")])
def test_a_corpus_that_will_not_do_is_refused(corpus, given, match):
  with pytest.raises(ValueError, match=match):
    sources.Corpus(corpus.directory, **given).read(None)


def test_pages_begin_with_whole_lines_of_a_group(tmp_path):
  lines = [dict(en=f'{"abcdef"[i % 3] * (i + 1)}', group=f'page{i % 3}',
                origin='help') for i in range(12)]
  (tmp_path / 'train.jsonl').write_text(
      '\n'.join(map(json.dumps, lines)) + '\n', encoding='utf-8')
  pages = lambda n, origin='help': sources.Pages(
      str(tmp_path), origin=origin, characters=n)
  read = lambda n: pages(n).read(None)
  first, second, third = read(4)
  assert [x.id for x in (first, second, third)] == ['page0', 'page1', 'page2']
  assert first.source == 'a\naaaa\n' and first.references == ('a' * 7,)
  assert second.source == 'bb\nbbbbb\n'        # longer than 4, but whole
  assert third.source == 'ccc\ncccccc\n'
  assert [x.id for x in read(18)] == ['page2'] and len(read(14)) == 3
  assert read(18)[0].references == ('c' * 12,)
  assert pages(4).read(2) == [first, second]
  with pytest.raises(ValueError, match='No page of .* has 99 characters of en'):
    read(99)
  with pytest.raises(ValueError, match='from else, and a line; allow fewer'):
    pages(4, 'else').read(None)
  with pytest.raises(ValueError, match='No corpus at .*build_corpus'):
    sources.Pages(str(tmp_path), 'test').read(None)
  with pytest.raises(ValueError, match='characters is 0; allowed'):
    sources.Pages(str(tmp_path), characters=0)


def test_a_table_is_what_examples_read():
  table = sources.Table()
  assert table.read(5) == examples.read(limit=5)
  assert table.name == 'software_docs.en-de.tsv' and table.clean(' a') == ' a'


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_public_data_set_cleans_its_answers(tmp_path):
  publicdata.prepare('natural_questions', tmp_path)
  source = sources.Public('natural_questions', 'few_shot',
                          data_dir=str(tmp_path))
  found = source.read(2)
  assert len(found) == 2 and found[0].source.endswith('Answer:')
  assert source.clean(' Oslo\nQuestion: and now?') == 'Oslo'
  assert source.name == 'natural_questions, few_shot'
  with pytest.raises(ValueError, match='prepare_public.py'):
    sources.Public('gsm8k', data_dir=str(tmp_path)).read(2)


def test_accelerators_are_left_to_jax_before_data_is_read(monkeypatch):
  calls = mock.Mock()
  monkeypatch.setattr(sources.host_tensorflow, 'load', calls.load)
  monkeypatch.setattr(sources.public_examples, 'examples', calls.examples)
  sources.Public('gsm8k').read(2)
  assert [name for name, *_ in calls.mock_calls] == ['load', 'examples']


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_long_inputs_are_cut_as_the_task_cuts_them(tmp_path):
  publicdata.prepare('xsum', tmp_path)
  public = pytest.importorskip('spec_cascades.data.public')
  import seqio  # pylint: disable=g-import-not-at-top
  path = str(pairs.SHIPPED / 'verifier' / 'sentencepiece.model')
  task = public.register(
      'xsum', seqio.SentencePieceVocabulary(path, extra_ids=0), style='t5',
      tfds_data_dir=tmp_path, task_name='xsum_for_cutting')
  source = sources.Public('xsum', data_dir=str(tmp_path))
  words = text.Vocabulary(path)
  whole = [words.encode(x.source) for x in source.read(None)]
  for length in (6, max(map(len, whole)), 99):
    wanted = task.get_dataset({'inputs': length, 'targets': 9}, 'validation',
                              shuffle=False).as_numpy_iterator()
    assert [examples.encode(words, x.source, 99, cut=length)
            for x in source.read(None)] == [x['inputs'].tolist()
                                            for x in wanted]
  assert source.cut == 1024
  assert sources.Public('xsum', 'few_shot').cut is None
  assert sources.Table().cut is None and sources.Corpus().cut is None


def test_what_is_not_cut_has_to_fit():
  words = text.Vocabulary(str(pairs.SHIPPED / 'verifier' /
                              'sentencepiece.model'))
  with pytest.raises(ValueError, match='takes at most 3: shorten'):
    examples.encode(words, 'one two three four', 3)
  assert len(examples.encode(words, 'one two three four', 3, cut=3)) == 3
