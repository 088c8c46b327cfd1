"""A finished sweep in Spec-Bench's layout, for the scripts that read it.

A file holds the answers of one point: per line an example, its text, its time
and the tokens of each round. A trial is a folder, as their runs are.

Reference: Xia et al. (2024), https://arxiv.org/abs/2401.07851
"""
from __future__ import annotations

import json
import pathlib
from typing import Any, Mapping

from spec_cascades.data import files
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import sweep

# Their subtasks, by what texts are measured by.
CATEGORIES = {
    'BLEU': 'translation', 'ROUGE-1': 'summarization',
    'ROUGE-2': 'summarization', 'ROUGE-L': 'summarization',
    'ROUGE-Lsum': 'summarization', 'GSM8K': 'math_reasoning', 'MBPP': 'coding',
    'EM': 'qa', 'F1': 'qa', 'TriviaQA-EM': 'qa', 'TriviaQA-F1': 'qa',
    'NQ': 'qa', 'WebQ': 'qa'}


def accept_lengths(stats: Mapping[str, Any]) -> list[int]:
  """Tokens that each round gave, the shortest first: their order is not kept.

  Their sum is `emitted`, their number `rounds`. A round gives the drafts that
  it accepted and one more token, unless EOS or the cap came before that one:

    histogram [1, 0, 2], rejected [1, 0, 0], bonus 1   ->   [1, 2, 3]

  Where drafts have one length, only one way to count fits. Otherwise the round
  that was cut is taken to be the shortest that it can be.

  Args:
    stats: The fields of `stats.Stats` of one example.
  """
  whole = [n - r for n, r in zip(stats['histogram'], stats['rejected'])]
  out = [j + 1 for j, n in enumerate(stats['rejected']) for _ in range(n)]
  cut = stats['rounds'] - stats['corrected'] - stats['bonus']
  # A round without an accepted draft that gave nothing had a fault.
  for j in (*range(1, len(whole)), 0):
    taken = min(cut, whole[j])
    cut -= taken
    out += [j] * taken + [j + 1] * (whole[j] - taken)
  return sorted(out)


def check(run: sweep.Run, directory: pathlib.Path) -> None:
  """Raises ValueError where `export` would, and writes nothing."""
  if directory.exists():
    raise ValueError(f'{directory} is there; choose another --output or move '
                     'it away.')
  run.finished()


def export(run: sweep.Run, directory: pathlib.Path,
           category: str | None = None) -> list[pathlib.Path]:
  """Writes a file per trial and point of a finished sweep.

  Args:
    run: The sweep.
    directory: Must not be there.
    category: What Spec-Bench calls the data; None: what the metric is for.

  Raises:
    ValueError: The sweep is not finished, or the directory is there.
  """
  check(run, directory)
  category = category or CATEGORIES[run.quality.name]
  records, written = run.finished(), []
  for number, trial in enumerate(run.plan.clocked, 1):
    folder = directory / f'run_{number}'
    folder.mkdir(parents=True)
    for key, name in points_lib.file_names(run.points).items():
      lines = [_answer(run, records[key, i, trial], category)
               for i in range(run.plan.timed)]
      written.append(folder / f'{name}.jsonl')
      files.write_atomically(written[-1], ''.join(
          json.dumps(line, ensure_ascii=False) + '\n' for line in lines))
  return written


def _answer(run, record, category) -> dict[str, Any]:
  stats = record.stats
  return dict(
      question_id=record.example, category=category,
      answer_id=f'{record.key[:16]}-{record.example}-{record.trial}',
      model_id=run.points[record.key].label,
      example_id=run.examples[record.example].id,
      choices=[dict(
          index=0, turns=[run.read(record.tokens)],
          decoding_steps=[stats['rounds']], new_tokens=[stats['emitted']],
          wall_time=[record.seconds], accept_lengths=accept_lengths(stats))])
