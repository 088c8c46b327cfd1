"""The nine data sets' records as fields of text, in a tf.data pipeline.

Each function takes a record as TFDS gives it and returns scalar strings, among
them `target`, what a model is to write, and `id`, and the vector of strings
`references`: the answers that count as right. A record without an own id gets
a hash of its text, which does not depend on its place in a file.

Importing this module loads TensorFlow.
"""
from __future__ import annotations

from typing import Any, Mapping

import tensorflow as tf

UNANSWERABLE = 'unanswerable'
Record = Mapping[str, Any]
Fields = dict[str, tf.Tensor]


def wmt(record: Record) -> Fields:
  """A sentence pair: `en` and `de`."""
  return {'en': record['en'],
          **_answered([record['de']], _hash(record['en'], record['de']))}


def cnn_dailymail(record: Record) -> Fields:
  """An `article`; its highlights, a line each, are the target."""
  return {'article': record['article'],
          **_answered([record['highlights']], record['id'])}


def xsum(record: Record) -> Fields:
  """A `document`; its summary is the target."""
  return {'document': record['document'],
          **_answered([record['summary']], _hash(record['document']))}


def gsm8k(record: Record) -> Fields:
  """A `question`; the target is the chain of thought, '#### ' and a number.

  The data set's calculator marks, as in '48/2 = <<48/2=24>>24', are left out.
  The number is the reference.
  """
  thought = tf.strings.regex_replace(record['answer'], r'<<[^>]*>>', '')
  return {'question': record['question'],
          **_answered([record['short_answer']], _hash(record['question']),
                      target=thought)}


def mbpp(record: Record) -> Fields:
  """A task's `text` and `tests`; the target is its code.

  The reference is one script: the set-up, then the tests, a line each.
  """
  tests = tf.strings.reduce_join(record['test_list'], separator='\n')
  script = tf.strings.join([record['test_setup_code'], tests], separator='\n')
  unix = lambda x: tf.strings.strip(tf.strings.regex_replace(x, r'\r\n', '\n'))
  return {'text': record['text'], 'tests': unix(tests),
          **_answered([unix(script)], tf.strings.as_string(record['task_id']),
                      target=unix(record['code']))}


def squad(record: Record) -> Fields:
  """A `context` and a `question`.

  A question that the context does not answer has the one answer
  'unanswerable', which the prompts ask for. Under EM this equals the published
  script, where the right answer is then no text at all.
  """
  given = tf.concat([record['answers']['text'], [UNANSWERABLE]], 0)
  count = tf.where(record['is_impossible'], 0, tf.size(given) - 1)
  answers = tf.cond(count > 0, lambda: given[:count], lambda: given[-1:])
  return {'context': record['context'], 'question': record['question'],
          **_answered(answers, record['id'])}


def web_questions(record: Record) -> Fields:
  """A `question`."""
  return {'question': record['question'],
          **_answered(record['answers'], _hash(record['question']))}


def natural_questions(record: Record) -> Fields:
  """A `question`."""
  return {'question': record['question'],
          **_answered(record['answer'], _hash(record['question']))}


def trivia_qa(record: Record) -> Fields:
  """A `question`; its answer's aliases are references, too."""
  answer = record['answer']
  answers = tf.concat([[answer['value']], answer['aliases']], 0)
  return {'question': record['question'],
          **_answered(answers, record['question_id'])}


def _answered(answers: Any, id_: tf.Tensor,
              target: tf.Tensor | None = None) -> Fields:
  """Distinct answers, of which the first is the target if none is given.

  A record without answers has '' as its target, and no references.
  """
  answers = tf.unique(tf.convert_to_tensor(answers, tf.string)).y
  first = tf.strings.reduce_join(answers[:1])
  return {'target': first if target is None else target,
          'references': answers, 'id': id_}


def _hash(*texts: tf.Tensor) -> tf.Tensor:
  joined = tf.strings.join(texts, separator='\0')
  bucket = tf.strings.to_hash_bucket_strong(joined, 2**62, key=[0, 0])
  return tf.strings.as_string(bucket)
