"""Whose tokens the weights know that a run starts from or goes on with."""
import dataclasses

import jax
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades.checkpoints import orbax
from spec_cascades.checkpoints import t5x
from spec_cascades.data import vocabulary
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import text
from spec_cascades.training import loop
from spec_cascades.training import start
from training.runs import run_of


@pytest.fixture(name='other', scope='module')
def _other(corpus, tmp_path_factory):
  """The corpus in another vocabulary of as many tokens: every array fits."""
  turned = [x.source[::-1] for x in examples.read()]
  path = vocabulary.train(turned, tmp_path_factory.mktemp('other') / 'x.model',
                          vocab_size=tinypair.PIECES)
  words = text.Vocabulary(str(path))
  assert words.size == corpus.vocabulary.size
  return dataclasses.replace(corpus, vocabulary=words)


@pytest.fixture(name='bare', scope='module')
def _bare(corpus, tmp_path_factory):
  """A model of T5X, beside which there is no tokenizer."""
  lm = run_of(corpus, 'x').lm
  return str(t5x.save(tmp_path_factory.mktemp('t5x') / 'run',
                      lm.init_params(jax.random.key(0))))


@pytest.mark.parametrize('kind', ['export', 'run'])
def test_pieces_of_another_vocabulary_are_refused(
    other, whole, teacher, tmp_path, kind):
  path = dict(export=teacher, run=whole[0])[kind]
  run = dataclasses.replace(run_of(other, tmp_path / 'run'),
                            init_from=str(path))
  with pytest.raises(ValueError, match='The vocabularies of .* differ'):
    loop.train(run, log=lambda line: None)


def test_a_run_does_not_go_on_with_another_vocabulary(
    corpus, other, tmp_path):
  """What its parameters know stays beside them, and is mended if it is gone."""
  run = run_of(corpus, tmp_path / 'run', steps=1, eval_every=9)
  loop.train(run, log=lambda line: None)
  before = {path.name: path.read_bytes()
            for path in (tmp_path / 'run').iterdir() if path.is_file()}
  more = run_of(other, tmp_path / 'run', steps=2, eval_every=9)
  with pytest.raises(ValueError, match="another vocabulary than the corpus's; "
                     'give the corpus that one, or another model_dir') as error:
    loop.train(more, log=lambda line: None)
  assert '\n' not in str(error.value)
  assert before == {path.name: path.read_bytes()
                    for path in (tmp_path / 'run').iterdir() if path.is_file()}
  (tmp_path / 'run' / orbax.MODEL).write_text('{')
  loop.train(dataclasses.replace(more, corpus=corpus), log=lambda line: None)
  assert checkpoints.load(tmp_path / 'run').tokenizer.size == tinypair.PIECES


def test_a_checkpoint_without_a_tokenizer_is_no_teacher(
    corpus, bare, tmp_path):
  """It is said to have none, not another."""
  run = dataclasses.replace(run_of(corpus, tmp_path / 'run'), teacher=bare)
  with pytest.raises(ValueError, match='holds no tokenizer; put its tokenizer.j'
                     'son or sentencepiece.model beside') as error:
    loop.train(run, log=lambda line: None)
  assert 'differ' not in str(error.value)
  with pytest.raises(ValueError, match='holds no tokenizer; put'):
    start.vocabulary(bare)


def test_a_checkpoint_without_a_tokenizer_is_trusted_to_start_from(
    corpus, bare, tmp_path):
  """Whoever reads the lines knows that nothing was compared."""
  said = []
  loop.train(dataclasses.replace(
      run_of(corpus, tmp_path / 'run', steps=0), init_from=bare),
             log=said.append)
  assert any(f'{bare} holds no tokenizer: ' in line for line in said)
