"""Tokenizers as seqio vocabularies, for tasks over any checkpoint's tokens.

This loads TensorFlow. A T5's own SentencePiece file is also what
`seqio.SentencePieceVocabulary` reads.
"""
from __future__ import annotations

import os
from typing import Any, Sequence

import seqio
import tensorflow as tf

from spec_cascades.data import tokenizers


def of_directory(path: str | os.PathLike,
                 extra_ids: int = 0) -> TokenizerVocabulary:
  """The vocabulary of a checkpoint in Hugging Face's layout.

  Raises:
    ValueError: It has no tokenizer, or a damaged one.
  """
  found = tokenizers.of_directory(path)
  if found is None:
    raise ValueError(f'No tokenizer in {path}; it needs {tokenizers.JSON} or '
                     'a SentencePiece model.')
  return TokenizerVocabulary(found, extra_ids)


class TokenizerVocabulary(seqio.Vocabulary):
  """A `Tokenizer` without what it puts before and behind a text.

  As for all of seqio, 0 pads: a token 0 has no text here. Preprocessors append
  EOS (`seqio.preprocessors.append_eos`). Equal tokenizers make equal
  vocabularies; they can be pickled and copied, as gin does.
  """

  def __init__(self, tokenizer: tokenizers.Tokenizer, extra_ids: int = 0):
    """Wraps a tokenizer.

    Args:
      tokenizer: What encodes and decodes.
      extra_ids: Sentinels behind its tokens; they decode as unknown.
    """
    self.tokenizer = tokenizer
    super().__init__(extra_ids)

  @property
  def bos_id(self) -> int | None:
    return self.tokenizer.bos

  @property
  def eos_id(self) -> int:
    return self.tokenizer.eos

  @property
  def unk_id(self) -> int | None:
    return self.tokenizer.words.own('unk')

  @property
  def _base_vocab_size(self) -> int:
    return self.tokenizer.size

  def _encode(self, s: str) -> Sequence[int]:
    return self.tokenizer.words.encode(s)

  def _decode(self, ids: Sequence[int]) -> str:
    return self.tokenizer.decode([t for t in ids if int(t) != self.pad_id])

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    encode = lambda text: tf.constant(
        self._encode(text.numpy().decode()), tf.int32)
    out = tf.py_function(encode, [s], tf.int32)
    out.set_shape([None])
    return out

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    def decode(rows):
      rows = rows.numpy()
      flat = [self._decode(row) for row in rows.reshape(-1, rows.shape[-1])]
      return tf.reshape(tf.constant(flat), rows.shape[:-1])
    out = tf.py_function(decode, [ids], tf.string)
    out.set_shape(ids.shape[:-1])
    return out

  def __eq__(self, other: Any) -> bool:
    return isinstance(other, TokenizerVocabulary) and (
        (self.tokenizer, self.extra_ids) == (other.tokenizer, other.extra_ids))

  def __hash__(self) -> int:
    return hash((self.tokenizer, self.extra_ids))
