"""SentencePiece vocabularies."""

import pytest
import sentencepiece

from spec_cascades.data import vocabulary
from spec_cascades.evaluation import stream
from spec_cascades.evaluation import text as text_lib

_PARTS = 'ver les schreib datei ein aus gabe pro gramm fen ster größe'.split()
TEXTS = [
    f'The {a}{b} file is {b}. Die Datei {b}{a} wird ge{a}en.'
    for a in _PARTS
    for b in _PARTS
]


@pytest.fixture(name='path')
def _path(tmp_path):
  return vocabulary.train(TEXTS, tmp_path / 'a' / 'v.model', vocab_size=310)


def test_special_ids_are_those_of_t5(path):
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
  assert (pieces.pad_id(), pieces.eos_id(), pieces.unk_id()) == (0, 1, 2)
  assert pieces.bos_id() == -1 and pieces.vocab_size() == 310


@pytest.mark.parametrize('text', [TEXTS[0], 'Ω – „Größe…“ ½ ﬁ', 'A  b'])
def test_decoding_gives_back_the_text(path, text):
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
  ids = pieces.encode(text)
  assert pieces.unk_id() not in ids
  assert pieces.decode(ids) == ' '.join(text.split())


def test_training_is_deterministic(path, tmp_path):
  again = vocabulary.train(TEXTS, tmp_path / 'b.model', vocab_size=310)
  assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize('size', [10, 100000])
def test_bad_sizes_are_refused_and_leave_no_model(tmp_path, size):
  with pytest.raises(ValueError, match=str(size)):
    vocabulary.train(TEXTS, tmp_path / 'v.model', vocab_size=size)
  assert not list(tmp_path.glob('*'))


def test_two_may_train_one_model(path, tmp_path):
  def texts():
    vocabulary.train(TEXTS, tmp_path / 'v.model', vocab_size=310)
    yield from TEXTS

  vocabulary.train(texts(), tmp_path / 'v.model', vocab_size=310)
  assert (tmp_path / 'v.model').read_bytes() == path.read_bytes()


def test_pieces_per_word_counts_words(path):
  assert 1 <= vocabulary.pieces_per_word(path, TEXTS) < 6


def test_spare_embeddings_have_no_text(path):
  """A model may predict tokens behind its vocabulary, even in a character."""
  words = text_lib.Vocabulary(str(path))
  spare = (words.size, words.size + 511)
  tokens = words.bare('Die Datei 日本')
  torn = [x for token in tokens for x in (token, *spare)]
  assert words.decode(torn) == words.decode(tokens) == 'Die Datei 日本'
  assert words.decode([*torn, text_lib.EOS, *tokens]) == words.decode(tokens)
  shown = stream.Detokenizer(words)
  parts = [shown.add(token) for token in torn]
  assert ''.join(parts) + shown.finish() == 'Die Datei 日本'
  assert not any('\ufffd' in part for part in parts)
  for token in spare:
    assert (words.piece(token), words.raw(token)) == ('', b'')
  assert words.raw(tokens[-1]) == '本'.encode()[-1:]
