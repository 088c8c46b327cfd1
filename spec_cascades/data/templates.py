"""Prompts out of records: templates that render in a tf.data pipeline.

A prompt of n shots is

  head + n times (body + answer + gap) + body

where body and answer are filled in from the record's fields. `{x}` is the field
x; `{x:600}` is x cut to 600 characters, at a space. Two newlines are the gap:

  Translate from English to German.     <- head

  English: Good morning.                <- body of a training record
  German: Guten Morgen.                 <- its answer
                                        <- gap
  English: Thank you.                   <- body of the record that is asked
  German:

The model writes an answer; what follows `stop`, such as a next question that it
makes up, is not part of it.

Importing this module loads TensorFlow.
"""
from __future__ import annotations

import dataclasses
import string
from typing import Mapping, Sequence

import tensorflow as tf

Fields = Mapping[str, tf.Tensor]
GAP = '\n\n'


@dataclasses.dataclass(frozen=True)
class Template:
  """How a record is asked, and what its answer looks like.

  Attributes:
    body: The question, with fields in braces.
    answer: What follows it, with fields in braces.
    head: Instruction at the top of the prompt.
    stop: Where a model's answer ends, beside EOS; '' for EOS alone.
    shots: Solved training records in a prompt, unless said otherwise.
    eos: Whether prompts end with EOS, as encoders want it.
  """
  body: str
  answer: str = ' {target}'
  head: str = ''
  stop: str = ''
  shots: int = 0
  eos: bool = False

  def clean(self, text: str) -> str:
    """A model's text without what is not its answer."""
    text = text.strip()
    return text.split(self.stop)[0].strip() if self.stop else text


def render(pattern: str, fields: Fields) -> tf.Tensor:
  """A pattern with its fields filled in: a scalar string."""
  pieces = []
  for literal, name, size, _ in string.Formatter().parse(pattern):
    pieces.append(tf.constant(literal))
    if name:
      pieces.append(_cut(fields[name], int(size)) if size else fields[name])
  return tf.strings.join(pieces)


def prompt(template: Template, fields: Fields, shots: int,
           solved: Sequence[tuple[bytes, bytes]]) -> tf.Tensor:
  """The prompt of one record.

  Args:
    template: How it is asked.
    fields: The record.
    shots: How many solved records go before it.
    solved: Bodies of solved records and the same with their answers; the first
      that don't ask what this record asks are taken.
  """
  body = render(template.body, fields)
  if not shots:
    return tf.strings.join([template.head, body])
  bodies, texts = map(tf.constant, zip(*solved))
  texts = tf.boolean_mask(texts, bodies != body)[:shots]
  return tf.strings.join([
      template.head, tf.strings.reduce_join(texts + GAP), body])


def _cut(text: tf.Tensor, size: int) -> tf.Tensor:
  """The first `size` characters at most, without a torn last word."""
  start = tf.strings.substr(text, 0, size, unit='UTF8_CHAR')
  whole = tf.strings.regex_replace(start, r'\s+\S*$', '')
  return tf.where(start == text, text, whole)
