"""Trains SentencePiece vocabularies with T5's special ids."""

from collections.abc import Iterable, Iterator, Sequence
import os
import pathlib

import sentencepiece

from spec_cascades.data import files

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
DEFAULT_VOCAB_SIZE = 4096
MIN_VOCAB_SIZE = 300  # 256 bytes, three special pieces and some letters.


def train(
    texts: Iterable[str],
    model_path: os.PathLike,
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
) -> pathlib.Path:
  """Trains a unigram model with byte fallback and writes it.

  The ids are those of T5: pad 0, eos 1, unk 2, no bos. Characters are not
  normalised (the corpora already are), so that decoding gives back the very
  text that was encoded, up to repeated spaces. The result depends on the texts
  and their order only: nothing is sampled, and one thread is used.

  Args:
    texts: training sentences, in a fixed order.
    model_path: path of the model file, whose directory is created.
    vocab_size: number of pieces, special ones and bytes included.

  Returns:
    The expanded path of the model.

  Raises:
    ValueError: if the vocabulary size cannot be reached.
  """
  if vocab_size < MIN_VOCAB_SIZE:
    raise ValueError(
        f'Got vocab_size {vocab_size}; it must be at least {MIN_VOCAB_SIZE}, '
        'since 256 byte pieces are always there.'
    )
  path = pathlib.Path(model_path).expanduser()
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.appearing(path) as partial, partial.open('wb') as f:
    try:
      sentencepiece.SentencePieceTrainer.train(
          sentence_iterator=iter(texts),
          model_writer=f,
          model_type='unigram',
          vocab_size=vocab_size,
          byte_fallback=True,
          character_coverage=0.9995,
          normalization_rule_name='identity',
          pad_id=PAD_ID,
          eos_id=EOS_ID,
          unk_id=UNK_ID,
          bos_id=-1,
          input_sentence_size=0,
          shuffle_input_sentence=False,
          max_sentence_length=16384,
          num_threads=1,
          minloglevel=2,
      )
    except RuntimeError as error:
      raise ValueError(
          f'SentencePiece cannot train {vocab_size} pieces on these texts: '
          f'{str(error).splitlines()[0].rpartition("] ")[-1]}'
      ) from error
  return path


def pieces_per_word(model_path: os.PathLike, texts: Sequence[str]) -> float:
  """Mean number of pieces per whitespace-separated word."""
  processor = sentencepiece.SentencePieceProcessor(
      model_file=str(pathlib.Path(model_path).expanduser())
  )
  num_pieces = sum(len(x) for x in processor.encode(list(texts)))
  return num_pieces / max(sum(len(x.split()) for x in texts), 1)


def interleave(
    rows: Iterable[dict[str, object]], features: Sequence[str]
) -> Iterator[str]:
  """The text of every feature of every row, row by row."""
  for row in rows:
    for name in features:
      yield row[name]
