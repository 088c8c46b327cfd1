"""The nine public data sets with the true features of TFDS, a few records each.

The real builders write them; only where the records come from is replaced.
"""
from __future__ import annotations

import contextlib
import json
from unittest import mock

NUM_TRAIN, NUM_OTHERS = 12, 3


def _wmt(i, split):
  return {'en': f'Page {i} of {split}.', 'de': f'Seite {i} von {split}.'}


def _cnn_dailymail(i, split):
  return {'article': f'Story {i} of {split} is long.', 'publisher': 'cnn',
          'highlights': f'Story {i} .\nIt is {split} .', 'id': f'{split}{i}'}


def _xsum(i, split):
  return {'document': f'Story {i} of {split}.\nMore of it.',
          'summary': f'A story, {split} {i}.'}


def _gsm8k(i, split):
  thought = f'Half of it is {2 * i}/2 = <<{2 * i}/2={i}>>{i}.\n'
  return {'question': f'In {split}, what is half of {2 * i}?',
          'answer': f'{thought}#### {i}', 'annotation': thought,
          'short_answer': str(i)}


def _mbpp(i):
  return {'task_id': i, 'text': f'Write a function to add {i}.',
          'code': f'def add(x):\r\n  return x + {i}', 'test_setup_code': '',
          'test_list': [f'assert add(0) == {i}', f'assert add(1) == {i + 1}'],
          'challenge_test_list': []}


def _squad(i, split):
  answers = {'text': [f'{i}', f'the {i}', f'{i}'], 'answer_start': [10, 6, 10]}
  none = {'text': [], 'answer_start': []}
  impossible = i % 2 == 1
  return {'id': f'{split}-{i}', 'title': 'Numbers', 'is_impossible': impossible,
          'context': f'There is {i} in {split}.',
          'question': f'What is in {split}{" not" * impossible}?',
          'answers': none if impossible else answers,
          'plausible_answers': answers if impossible else none}


def _web_questions(i, split):
  return {'url': f'http://{split}/{i}', 'question': f'who is {i} in {split}?',
          'answers': [] if i == 2 else [f'King {i}', f'{split} {i}']}


def _natural_questions(i, split):
  return {'question': f'where is {i} in {split}',
          'answer': [f'Town {i}', f'{split} {i}']}


def _trivia_qa(i, split):
  none = {'doc_source': [], 'filename': [], 'title': [], 'wiki_context': []}
  results = {x: [] for x in ('description', 'filename', 'rank', 'title', 'url',
                             'search_context')}
  return {'question': f'Which river is {i} in {split}?',
          'question_id': f'{split}_{i}', 'question_source': 'a quiz',
          'entity_pages': none, 'search_results': results,
          'answer': {'aliases': [f'River {i}', f'The {i}'], 'type': 'Numerical',
                     'normalized_aliases': [f'river {i}', f'{i}'],
                     'matched_wiki_entity_name': '', 'value': f'The {i}',
                     'normalized_matched_wiki_entity_name': '',
                     'normalized_value': f'{i}'}}


RECORDS = {
    'wmt14_ende': _wmt, 'cnn_dailymail': _cnn_dailymail, 'xsum': _xsum,
    'gsm8k': _gsm8k, 'squad_v2': _squad, 'web_questions': _web_questions,
    'natural_questions': _natural_questions, 'trivia_qa': _trivia_qa}


def prepare(name, data_dir, order=1, files=1):
  """Writes one data set; `order` -1 writes its records from the last on."""
  import tensorflow_datasets as tfds
  from spec_cascades.data import public_datasets

  chosen = public_datasets.find(name)
  make = RECORDS[name]

  def generate(split):
    count = NUM_TRAIN if split == 'train' else NUM_OTHERS
    for i in range(count)[::order]:
      yield order * i + count, make(i, split)  # Keys decide order in the file.

  builder = tfds.builder(chosen.tfds_name, data_dir=data_dir)
  splits = lambda *unused, **kwargs: {x: generate(x) for x in chosen.splits}
  with mock.patch.object(type(builder), '_split_generators', splits):
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=files))


def prepare_mbpp(data_dir, tmp_path, num_tasks=974):
  """Writes MBPP with its own builder, from a file like the published one."""
  import tensorflow_datasets as tfds
  from spec_cascades.data import mbpp

  path = tmp_path / 'mbpp.jsonl'
  path.write_text('\n'.join(
      json.dumps(_mbpp(i)) for i in range(1, num_tasks + 1)))
  builder = mbpp.Mbpp(data_dir=data_dir)
  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.object(
        tfds.download.DownloadManager, 'download', lambda *unused: path))
    builder.download_and_prepare()


def prepare_all(data_dir, tmp_path):
  for name in RECORDS:
    prepare(name, data_dir)
  prepare_mbpp(data_dir, tmp_path)
