"""A distilled corpus holds the verifier's words, whatever interrupts it."""
import dataclasses
import json

import pytest

import tinypair
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import text
from spec_cascades.training import data
from spec_cascades.training import distill
from spec_cascades.training import quality
from training.data_test import write_corpus


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  write_corpus(directory)
  path = tinypair.make_vocabulary(directory)
  verifier = tinypair.write(directory / 'verifier', path, 0, scale=4.0)
  corpus = data.ParallelText(str(directory), text.Vocabulary(str(path)),
                             buckets=(40, 120))
  return corpus, str(verifier)


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_targets_are_the_verifiers_and_interruptions_do_not_show(
    made, tmp_path):
  corpus, verifier = made
  run = lambda name, log: distill.distill(
      corpus, verifier, str(tmp_path / name), chunk=40, batch=8, log=log)
  run('whole', lambda line: None)

  def stop(line):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    run('cut', stop)
  assert not (tmp_path / 'cut' / 'train.jsonl').exists()
  said = []
  run('cut', said.append)
  whole = (tmp_path / 'whole' / 'train.jsonl').read_text()
  assert (tmp_path / 'cut' / 'train.jsonl').read_text() == whole
  assert len(said) == -(-len(whole.splitlines()) // 40) - 1
  assert 'left' in said[0]

  lines = lines_of(tmp_path / 'whole' / 'train.jsonl')
  old = {line['id']: line for line in corpus.lines('train')}
  assert {line['id'] for line in lines} == set(old)
  lm, params, _ = native.load(verifier)
  for line in lines[:3]:
    assert line['en'] == old[line['id']]['en']
    widest = [w for w in corpus.buckets
              if len(corpus.vocabulary.encode(line['en'])) <= w][0]
    want = quality.translate(lm, params, corpus, [line['en']],
                             width=widest, max_length=min(2 * widest, 128),
                             batch=1)
    assert [line['de']] == want
  assert lines_of(tmp_path / 'whole' / 'test.jsonl') == corpus.lines('test')


def test_texts_that_were_cut_are_trained_on_without_an_end(made, tmp_path):
  corpus, verifier = made
  said = []
  distill.distill(corpus, verifier, str(tmp_path), log=said.append)
  lines = lines_of(tmp_path / 'train.jsonl')
  cut = [line.get(data.UNENDED, False) for line in lines]
  assert 0 < sum(cut) and said[-1].endswith(
      f'min  {sum(cut)} cut before their end')
  new = dataclasses.replace(corpus, directory=str(tmp_path))
  found = [target for *_, target, _ in new._encoded('train')]
  ended = [target[-1:] == [corpus.end] for target in found]
  assert 0 < ended.count(False) <= sum(cut)      # some are too long to train on
  narrow = dataclasses.replace(corpus, target_width=5)
  distill.distill(narrow, verifier, str(tmp_path / 'narrow'), sentences=4,
                  log=said.append)
  for line in lines_of(tmp_path / 'narrow' / 'train.jsonl'):
    assert len(corpus.vocabulary.bare(line['de'])) <= 5 + 1


def test_a_drafter_and_other_processes_change_nothing(made, tmp_path):
  """Same texts, in fewer calls; two processes in any order make the whole."""
  corpus, verifier = made
  run = lambda name, **kwargs: distill.distill(
      corpus, verifier, str(tmp_path / name), sentences=60, chunk=20, batch=8,
      log=said.append, **kwargs)
  said = []
  run('whole')
  alone = said
  assert all(' 1.00 tokens a call' in line for line in alone)
  said = []
  run('shared', drafter=verifier, gamma=3, shard=distill.Shard(1, 2))
  assert len(said) == 2 and '2 of 3 chunks are still to come' in said[-1]
  assert not (tmp_path / 'shared' / 'train.jsonl').exists()
  assert float(said[0].split(' tokens a call')[0].split()[-1]) > 2.5
  run('shared', shard=distill.Shard(0, 2))
  assert ((tmp_path / 'shared' / 'train.jsonl').read_text() ==
          (tmp_path / 'whole' / 'train.jsonl').read_text())


def test_drawn_texts_differ_from_greedy_ones_and_repeat(made, tmp_path):
  corpus, verifier = made
  for name, temperature in (('a', 1.), ('b', 1.), ('greedy', 0.)):
    distill.distill(corpus, verifier, str(tmp_path / name), sentences=8,
                    batch=8, temperature=temperature, log=lambda line: None)
  a, b, greedy = ((tmp_path / name / 'train.jsonl').read_text()
                  for name in ('a', 'b', 'greedy'))
  assert a == b != greedy


@pytest.mark.parametrize('changes,match', [
    (dict(sentences=0), 'sentences is 0'),
    (dict(sentences='36k'), "sentences is '36k'"), (dict(seed=7.5), 'seed'),
    (dict(temperature=-1.), 'temperature'),
    (dict(chunk=-1), 'chunk is -1'), (dict(chunk=0), 'chunk is 0'),
    (dict(chunk=2.), 'chunk is 2.0'), (dict(batch=0), 'batch is 0'),
    (dict(drafter='nowhere'), 'nowhere')])
def test_bad_calls_are_refused(made, tmp_path, changes, match):
  corpus, verifier = made
  with pytest.raises(ValueError, match=match):
    distill.distill(corpus, verifier, str(tmp_path / 'new'), **changes)
  assert not (tmp_path / 'new').exists()
  with pytest.raises(ValueError, match='index of Shard'):
    distill.Shard(2, 2)


def test_a_corpus_of_which_nothing_fits_is_refused(made, tmp_path):
  corpus, verifier = made
  narrow = dataclasses.replace(corpus, buckets=(1,))
  with pytest.raises(ValueError, match='None of 120 training sentences has up '
                     'to 1 tokens'):
    distill.distill(narrow, verifier, str(tmp_path / 'new'))
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('changes,name', [
    (dict(asking=asking.Asking('German: {source}')), 'asking.template'),
    (dict(asking=asking.Asking(end='.')), 'asking.end'),
    (dict(answer='So: {target}'), 'answer'), (dict(cut=30), 'cut'),
    (dict(buckets=(40, 100)), 'buckets'),
    (dict(target_width=20), 'target_width'),
    (dict(source='de', target='en'), 'source, corpus.target')])
def test_a_corpus_that_is_asked_otherwise_is_refused(
    made, tmp_path, monkeypatch, changes, name):
  """Cut off after its claim, with the same lines; the same call goes on."""
  corpus, verifier = made
  run = lambda corpus: distill.distill(
      corpus, verifier, str(tmp_path), log=lambda line: None)
  chosen = corpus.lines('train')[:2]
  monkeypatch.setattr(distill, '_chosen', lambda *_: chosen)
  monkeypatch.setattr(distill, '_write', lambda *_: None)
  run(corpus)
  with pytest.raises(ValueError, match=f'with another corpus.{name};'):
    run(dataclasses.replace(corpus, **changes))
  run(dataclasses.replace(corpus, buckets=list(corpus.buckets)))


def test_another_call_or_vocabulary_is_refused(made, tmp_path):
  corpus, verifier = made
  output = str(tmp_path / 'out')
  distill.distill(corpus, verifier, output, sentences=2, log=lambda line: None)
  before = (tmp_path / 'out' / 'train.jsonl').read_bytes()
  with pytest.raises(ValueError, match='another call'):
    distill.distill(corpus, verifier, output, sentences=3)
  assert (tmp_path / 'out' / 'train.jsonl').read_bytes() == before
  (tmp_path / 'out' / 'call.json').write_text('cut off')
  with pytest.raises(ValueError, match='another call'):
    distill.distill(corpus, verifier, output, sentences=2)
  with pytest.raises(ValueError, match='is the corpus itself'):
    distill.distill(corpus, verifier, f'{corpus.directory}/.')
  other = tinypair.write(tmp_path / 'other', tinypair.make_vocabulary(
      tmp_path, 511), 0)
  with pytest.raises(ValueError, match='vocabularies'):
    distill.distill(corpus, str(other), str(tmp_path / 'new'))
  assert not (tmp_path / 'new').exists()
