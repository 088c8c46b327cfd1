"""The nine public data sets of speculative cascades' paper, as a table.

For each: which TFDS data set in which version, its splits, its lengths, its
metrics, and its prompts in two styles. 't5' is zero-shot, with the prefixes of
T5's own tasks, for models fine-tuned on the task. 'few_shot' is for
decoder-only models: solved training records go before the question (see
`templates`); summaries are asked for without.

Importing this module loads TensorFlow.

Reference: Narasimhan et al. (2025), https://arxiv.org/abs/2405.19261
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping

from spec_cascades.data import records
from spec_cascades.data import templates

STYLES = ('t5', 'few_shot')
FEW_SHOT_INPUTS = 2048
_TRAIN = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A data set. Records without an answer are left out of it.

  Attributes:
    name: What it is called here.
    tfds_name: Name, config and version in TFDS.
    splits: Those that have answers.
    evaluated: The split whose scores are published.
    inputs: Most tokens of a 't5' prompt, EOS among them.
    targets: Most tokens of an answer, EOS among them.
    metrics: Names for `evaluation.qualities.make`; the first is the main one.
    read: From a record of TFDS to fields of text; see `records`.
    t5: Zero-shot prompts.
    few_shot: Prompts with solved records.
    solved: The split that solved records are drawn from.
    pool: How many records of that split they are drawn from; None is all.
    module: Registers its TFDS builder, if TFDS itself has none.
  """
  name: str
  tfds_name: str
  splits: tuple[str, ...]
  evaluated: str
  inputs: int
  targets: int
  metrics: tuple[str, ...]
  read: Callable[[Mapping[str, Any]], records.Fields]
  t5: templates.Template
  few_shot: templates.Template
  solved: str = 'train'
  pool: int | None = None
  module: str = ''

  def template(self, style: str) -> templates.Template:
    """The prompts of a style; ValueError if there is none of that name."""
    if style not in STYLES:
      raise ValueError(f'Unknown prompt style {style!r}; allowed: '
                       f'{", ".join(STYLES)}.')
    return {'t5': self.t5, 'few_shot': self.few_shot}[style]

  def lengths(self, style: str) -> dict[str, int]:
    """Most tokens of 'inputs' and 'targets', as seqio wants them."""
    zero_shot = self.template(style).eos
    return {'inputs': self.inputs if zero_shot else FEW_SHOT_INPUTS,
            'targets': self.targets}


def _t5(body: str) -> templates.Template:
  return templates.Template(body, '{target}', eos=True)


def _questions(shots: int) -> templates.Template:
  return templates.Template(
      'Question: {question}\nAnswer:', stop='\n', shots=shots,
      head='Answer each question with a few words.\n\n')


# Lengths: WMT's and XSum's input are the paper's; XSum's output, CNN/DailyMail
# and GSM8K follow DistillSpec (https://arxiv.org/abs/2310.08461); the others
# are ours. So are the shots of MBPP, SQuAD and TriviaQA.
DATASETS = {x.name: x for x in (
    Dataset(
        'wmt14_ende', 'wmt_t2t_translate/de-en:1.0.0', _TRAIN, 'validation',
        80, 80, ('BLEU',), records.wmt,
        _t5('translate English to German: {en}'),
        templates.Template(
            'English: {en}\nGerman:', stop='\n', shots=5,
            head='Translate from English to German.\n\n'),
        pool=100_000),
    Dataset(
        'cnn_dailymail', 'cnn_dailymail:3.4.0', _TRAIN, 'validation',
        2048, 128, ('ROUGE-2', 'ROUGE-1', 'ROUGE-L', 'ROUGE-Lsum'),
        records.cnn_dailymail,
        _t5('summarize: {article}'),
        templates.Template(
            'Article: {article:6000}\n\nHighlights of the article, in three or '
            'four short sentences:', stop='\n\n')),
    Dataset(
        'xsum', 'xsum:1.1.0', _TRAIN, 'validation',
        1024, 64, ('ROUGE-2', 'ROUGE-1', 'ROUGE-L'), records.xsum,
        _t5('summarize: {document}'),
        templates.Template(
            'Article: {document:6000}\n\nThe article in one sentence:',
            stop='\n\n')),
    Dataset(
        'gsm8k', 'gsm8k:1.0.0', ('train', 'test'), 'test',
        256, 320, ('GSM8K',), records.gsm8k,
        _t5('question: {question}'),
        templates.Template('Question: {question}\nAnswer:',
                           stop='\nQuestion:', shots=8)),
    Dataset(
        'mbpp', 'mbpp:1.0.0', ('prompt', *_TRAIN), 'test',
        512, 512, ('MBPP',), records.mbpp,
        _t5('python: {text} tests: {tests}'),
        templates.Template(
            'Write Python code for this task: {text}\n'
            'It has to pass these tests:\n{tests}\n[BEGIN]\n',
            '{target}\n[DONE]', stop='[DONE]', shots=3),
        solved='prompt', module='spec_cascades.data.mbpp'),
    Dataset(
        'squad_v2', 'squad/v2.0:3.0.0', ('train', 'validation'), 'validation',
        512, 32, ('EM', 'F1'), records.squad,
        _t5('question: {question} context: {context}'),
        templates.Template(
            'Passage: {context}\nQuestion: {question}\nAnswer:', stop='\n',
            shots=3,
            head='Answer each question with words of its passage, or with '
                 f'"{records.UNANSWERABLE}" if it has no answer there.\n\n')),
    Dataset(
        'web_questions', 'web_questions:1.0.0', ('train', 'test'), 'test',
        64, 32, ('WebQ',), records.web_questions,
        _t5('wq question: {question}'), _questions(shots=1)),
    Dataset(
        'natural_questions', 'natural_questions_open:1.0.0',
        ('train', 'validation'), 'validation',
        64, 32, ('NQ',), records.natural_questions,
        _t5('nq question: {question}'), _questions(shots=1)),
    Dataset(
        'trivia_qa', 'trivia_qa/unfiltered.nocontext:1.1.0',
        ('train', 'validation'), 'validation',
        128, 32, ('TriviaQA-EM', 'TriviaQA-F1'), records.trivia_qa,
        _t5('trivia_qa question: {question}'), _questions(shots=5)),
)}


def find(name: str) -> Dataset:
  """The data set of that name; ValueError if there is none."""
  if name not in DATASETS:
    raise ValueError(f'Unknown data set {name!r}; allowed: '
                     f'{", ".join(DATASETS)}.')
  return DATASETS[name]
