"""Rows of a sweep, written as its points are done."""
from __future__ import annotations

import pathlib
from typing import Any

from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results
from spec_cascades.evaluation import summary
from spec_cascades.evaluation import tensorboard


class Publisher:
  """Writes `results.jsonl` anew whenever a point is done."""

  def __init__(self, run: Any, journal: journal_lib.Journal,
               programs: programs_lib.Programs, figures: summary.Figures,
               path: pathlib.Path):
    """Starts with the points that were finished before.

    Args:
      run: A `sweep.Run`.
      journal: Its decodes.
      programs: Its programs.
      figures: What makes rows of decodes.
      path: Of the rows.
    """
    self._run, self._journal, self._programs = run, journal, programs
    self._figures, self._path = figures, path
    self._needed = len(run.plan.decodes(''))
    self._done = 0
    self._rows: dict[str, results.Row] = {}
    # Texts that can be measured before their point is done.
    self._texts = set(run.points) if run.plan.staged else set()
    self()

  def __call__(self) -> None:
    """Looks whether points were finished, here or by another process."""
    counts, records = self._journal.counts, self._journal.records
    self._measure(counts, records)
    done = sum(counts[key] == self._needed for key in self._run.points)
    if done == self._done:
      return
    self._done = done
    with self._journal.locked():      # no process writes fewer rows than others
      run = self._run
      ready = self._figures.ready(records)
      common, costs = run.common(self._journal), run.costs(
          self._journal, self._programs)
      for key in ready:
        if key not in self._rows:
          self._rows[key] = self._figures.row(key, records, common, costs[key])
      if ready:
        results.write_rows(self._path, [self._rows[key] for key in ready])
        if run.sweep.tensorboard:
          tensorboard.write(run.directory, run.points,
                            [self._rows[key] for key in ready])

  def _measure(self, counts, records) -> None:
    """Measures texts now, while the device has others, not at the end."""
    examples = range(self._run.plan.examples)
    for key in [k for k in self._texts if counts[k] >= len(examples)]:
      self._texts.remove(key)
      if all((key, i, 0) in records for i in examples):
        self._figures.parts(key, records)
