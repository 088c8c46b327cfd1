"""What a sweep measures beside its results, where it is asked to.

Each detail is a file in OUTPUT_DIR: a sweep that goes on reads what is there.
Neither decides a result, so that a finished sweep may be asked later, too.
"""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable

from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import origins
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import split
from spec_cascades.evaluation import summary

SPLIT, TEXTS = 'split.jsonl', 'inspected.json'


def check(run: Any) -> None:
  """Raises ValueError before anything is run.

  For files of another sweep, and for a split of what was timed in batches.
  """
  if run.sweep.split and run.plan.timed_batch > 1:
    raise ValueError(f'Got split=True and timed_batch={run.plan.timed_batch}; '
                     'allowed with a split: 1, as parts are timed.')
  _known_split(run)
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
  """
  with journal.locked():
    ready = figures.ready(journal.records)
    if run.sweep.split:
      known = {x.key: x for x in _known_split(run)}
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
  return found


def _complete(texts, ids, ready) -> bool:
  """Whether these examples were inspected, at these points."""
  return [text.id for text in texts] == ids and all(
      [x.key for x in text.decoded] == ready for text in texts)


def splits(directory: pathlib.Path, sweep: str) -> list[split.Split]:
  """The time split of a sweep with this content key, if it made one."""
  path = directory / SPLIT
  return split.read(path, sweep) if path.exists() else []


def _known_split(run) -> list[split.Split]:
  return splits(run.directory, results.content_key(run.configuration))


def _known_texts(run) -> list[inspected.Text]:
  path = run.directory / TEXTS
  key = results.content_key(run.configuration)
  return inspected.read(path, key) if path.exists() else []
