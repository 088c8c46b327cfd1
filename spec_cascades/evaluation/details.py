"""What a sweep measures beside its results, predictions unless it is told not.

Each detail is a file in OUTPUT_DIR: a sweep that goes on reads what is there.
None decides a result, so that a finished sweep may be asked later, too.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from typing import Any, Callable

from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import origins
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split
from spec_cascades.evaluation import summary

SPLIT, TEXTS = 'split.jsonl', 'inspected.json'
PREDICTED = 'predicted.jsonl'
SPENT = 'details'                      # what their seconds are called


def check(run: Any) -> None:
  """Raises ValueError before anything is run.

  For files of another sweep, and for a split of what was timed in batches.
  """
  if run.sweep.split and run.plan.timed_batch > 1:
    raise ValueError(f'Got split=True and timed_batch={run.plan.timed_batch}; '
                     'allowed with a split: 1, as parts are timed.')
  _known(run, splits)
  _known(run, predictions)
  _known_texts(run)


def added(run: Any, journal: journal_lib.Journal,
          programs: programs_lib.Programs, figures: summary.Figures,
          found: summary.Summary, progress: Callable[..., Any]
          ) -> summary.Summary:
  """The summary with the details that the sweep wants.

  Args:
    run: A `sweep.Run`.
    journal: Its own, open; locked meanwhile, so that of several processes one
      measures and the others read.
    programs: Of its points.
    figures: Of its points.
    found: Its results.
    progress: `tqdm` or something called like it.

  Raises:
    ValueError: Memory does not hold a pass over texts; results are there.
  """
  began = time.monotonic()
  with journal.locked():
    ready = figures.ready(journal.records)
    if run.sweep.predicts:
      known = _known(run, predictions)
      if new := [row for row in found.rows
                 if row.key not in known and not row.faults
                 and foretold.foreseen(run.points[row.key], programs)]:
        with foretold.reading('sweep.Sweep.predicted=False reports them'):
          for x in foretold.measure(run, programs, new, journal.records,
                                    progress):
            known[x.key] = x           # a sweep that is killed goes on here
            results.write_rows(run.directory / PREDICTED, known.values())
      found = dataclasses.replace(
          found, predicted=[known[key] for key in ready if key in known])
    if run.sweep.split:
      known = _known(run, splits)
      if new := [key for key in ready if key not in known
                 and split.fits(run.points[key], programs)]:
        known |= {x.key: x for x in split.measure(
            run, programs, new, journal.records, progress)}
        results.write_rows(run.directory / SPLIT, known.values())
      found = dataclasses.replace(
          found, split=[known[key] for key in ready if key in known])
    if run.sweep.inspected:
      texts = _known_texts(run)
      examples = origins.chosen(run, figures, journal.records)
      if not _complete(texts, [run.examples[i].id for i in examples], ready):
        texts = examples and origins.measure(
            run, programs, examples, ready, journal.records, progress)
        inspected.write(run.directory / TEXTS,
                      results.content_key(run.configuration), texts)
      found = dataclasses.replace(found, texts=texts)
  spent = time.monotonic() - began
  return dataclasses.replace(found, spent={SPENT: spent} if spent > 1 else {})


def _complete(texts, ids, ready) -> bool:
  """Whether these examples were inspected, at these points."""
  return [text.id for text in texts] == ids and all(
      [x.key for x in text.decoded] == ready for text in texts)


def splits(directory: pathlib.Path, sweep: str) -> list[split.Split]:
  """The time split of a sweep with this content key, if it made one."""
  return _read(directory / SPLIT, split.Split, sweep)


def predictions(directory: pathlib.Path, sweep: str
                ) -> list[foretold.Foretold]:
  """The predictions of a sweep with this content key, if it made some."""
  return _read(directory / PREDICTED, foretold.Foretold, sweep)


def _read(path, kind, sweep):
  """What `results.write_rows` saved of a sweep; ValueError if of another."""
  if not path.exists():
    return []
  names = {f.name for f in dataclasses.fields(kind)}
  try:
    lines = [json.loads(line) for line
             in path.read_text(encoding='utf-8').splitlines()]
    if any(set(x) != names or (x['schema'], x['sweep']) != (kind.schema, sweep)
           for x in lines):
      raise ValueError
  except (ValueError, TypeError):
    raise ValueError(f'{path} does not hold the details of this sweep; move it '
                     'away, and the same command measures them anew.'
                     ) from None
  return [kind(**line) for line in lines]


def _known(run, read) -> dict[str, Any]:
  """By point, the details that are there; `read` is one of those above."""
  found = read(run.directory, results.content_key(run.configuration))
  return {x.key: x for x in found}


def _known_texts(run) -> list[inspected.Text]:
  path = run.directory / TEXTS
  key = results.content_key(run.configuration)
  return inspected.read(path, key) if path.exists() else []
