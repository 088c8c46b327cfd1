"""Tokenizers keep seqio's contracts."""
import copy
import json

import pytest
import tinypair

from spec_cascades.data import gguf_tokenizers
from tests import ggufs

seqio = pytest.importorskip('seqio')
tf = pytest.importorskip('tensorflow')
vocabularies = pytest.importorskip('spec_cascades.data.seqio_vocabularies')

TEXTS = ['the end', ' and  two\n\nspaces', 'ß 🦊 日本', '']


@pytest.fixture(params=['sentencepiece', 'byte_level'])
def vocabulary(request):
  if request.param == 'byte_level':
    pytest.importorskip('tokenizers')
  import numpy as np
  metadata = {k: np.asarray(v) if isinstance(v, list) and
              not isinstance(v[0], str) else v
              for k, v in getattr(ggufs, request.param)().items()}
  return vocabularies.TokenizerVocabulary(
      gguf_tokenizers.tokenizer(metadata, 'x'), extra_ids=5)


def test_sizes_and_ids(vocabulary):
  tokenizer = vocabulary.tokenizer
  assert vocabulary.vocab_size == tokenizer.size + 5
  assert vocabulary.pad_id == 0 and vocabulary.extra_ids == 5
  assert vocabulary.eos_id == tokenizer.eos
  assert vocabulary.bos_id == tokenizer.bos


@pytest.mark.parametrize('text', TEXTS)
def test_encoding_adds_nothing_and_decoding_restores(vocabulary, text):
  tokens = vocabulary.encode(text)
  assert vocabulary.eos_id not in tokens and vocabulary.bos_id not in tokens
  assert vocabulary.decode(tokens) == text
  assert vocabulary.decode([*tokens, vocabulary.eos_id, *tokens]) == text
  if vocabulary.eos_id:              # 0 pads, whatever it is elsewhere
    assert vocabulary.decode([*tokens, 0, 0]) == text


@pytest.mark.parametrize('text', TEXTS)
def test_tensorflow_does_the_same(vocabulary, text):
  tokens = vocabulary.encode(text)
  found = vocabulary.encode_tf(tf.constant(text))
  assert found.dtype == tf.int32 and found.numpy().tolist() == tokens
  assert vocabulary.decode_tf(found).numpy().decode() == text
  rows = tf.constant([[*tokens, vocabulary.eos_id, 9],
                      [vocabulary.eos_id] * (len(tokens) + 2)])
  assert [x.decode() for x in vocabulary.decode_tf(rows).numpy()] == [text, '']


def test_sentinels_decode_as_unknown(vocabulary):
  sentinel = vocabulary.vocab_size - 1
  unknown = vocabulary.unk_id
  want = '' if unknown is None else vocabulary.decode([unknown])
  assert vocabulary.decode([sentinel]) == want


def test_equality_survives_copies(vocabulary):
  again = copy.deepcopy(vocabulary)
  assert again == vocabulary and hash(again) == hash(vocabulary)
  assert again != vocabularies.TokenizerVocabulary(vocabulary.tokenizer)


def test_a_task_reads_it(vocabulary):
  task = seqio.Task(
      'spec_cascades_vocabulary_test', seqio.FunctionDataSource(
          lambda split, shuffle_files, seed=None:
          tf.data.Dataset.from_tensors({'targets': 'the end and'}),
          splits=['train']),
      output_features={'targets': seqio.Feature(vocabulary)},
      preprocessors=[seqio.preprocessors.tokenize,
                     seqio.preprocessors.append_eos])
  row = next(iter(task.get_dataset(None, 'train', shuffle=False)))
  tokens = row['targets'].numpy().tolist()
  assert tokens == [*vocabulary.encode('the end and'), vocabulary.eos_id]


def test_t5s_directory_gives_seqios_own_tokens(tmp_path):
  path = tinypair.make_vocabulary(tmp_path)
  theirs = seqio.SentencePieceVocabulary(str(path))
  path.rename(tmp_path / 'spiece.model')
  (tmp_path / 'tokenizer_config.json').write_text(
      json.dumps(dict(eos_token='</s>')))
  ours = vocabularies.of_directory(tmp_path)
  path = (tmp_path / 'spiece.model').rename(path)
  for text in ['Open the file.', 'ß 🦊']:
    tokens = theirs.encode(text)
    assert ours.encode(text) == tokens
    assert ours.decode([*tokens, 1, 7]) == theirs.decode([*tokens, 1, 7])
  with pytest.raises(ValueError, match='No tokenizer in'):
    vocabularies.of_directory(tmp_path)
