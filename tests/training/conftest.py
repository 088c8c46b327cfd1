"""A corpus, an uninterrupted run on it, and its model as a teacher."""
import jax
import pytest

import tinypair
from spec_cascades.evaluation import text
from spec_cascades.training import data
from spec_cascades.training import export
from spec_cascades.training import loop
from training.data_test import write_corpus
from training.runs import run_of


@pytest.fixture(scope='module')
def promotion():
  """The looser rules of dtypes that optax's Adam needs."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  write_corpus(directory)
  vocabulary = text.Vocabulary(str(tinypair.make_vocabulary(directory)))
  return data.ParallelText(str(directory), vocabulary, buckets=(48,),
                           tokens_per_batch=192)


@pytest.fixture(scope='module')
def whole(corpus, tmp_path_factory):
  """An uninterrupted run: its directory and its last state."""
  directory = tmp_path_factory.mktemp('whole')
  lines = []
  state = loop.train(run_of(corpus, directory), log=lines.append)
  return directory, state, lines


@pytest.fixture(scope='module')
def teacher(corpus, whole, tmp_path_factory):
  directory = tmp_path_factory.mktemp('teacher')
  export.export(run_of(corpus, whole[0]), str(directory),
                log=lambda line: None)
  return directory
