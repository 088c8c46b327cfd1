"""Points of a sweep for TensorBoard, through clu: a run each, written once.

A run is a directory with one event file: the point's figures at step 0, and its
setting as hyperparameters, which the HPARAMS tab draws figures against. Its
name says of which sweep it is, too: another one may have left runs there.
TensorFlow is loaded by `load` and `write` only.
"""
from __future__ import annotations

import importlib
import importlib.util
import pathlib
import shutil
from typing import Any, Mapping, Sequence

from spec_cascades.evaluation import host_tensorflow
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import results

FOLDER = 'tensorboard'
NEEDED = ('clu', 'tensorboard', 'tensorflow')
SETTING = ('method', 'rule', 'alpha', 'temperature', 'top_k', 'top_p', 'gamma',
           'drafter', 'verifier', 'metric')
SCALARS = ('quality', 'quality_low', 'quality_high', 'relative_latency',
           'relative_low', 'relative_high', 'latency_mean', 'latency_median',
           'latency_p90', 'tokens_per_second', 'tokens_per_call',
           'rejection_rate', 'mean_accepted', 'deferral_rate', 'faults')


def check() -> None:
  """Raises ValueError if what writes is not installed; loads nothing."""
  missing = [x for x in NEEDED if importlib.util.find_spec(x) is None]
  if missing:
    raise ValueError(f'Got tensorboard=True, but {", ".join(missing)} is not '
                     'installed; run pip install -r requirements.txt, or set '
                     'it to False.')


def load() -> None:
  """Loads what writes, before the clock runs; ValueError as in `check`."""
  check()
  host_tensorflow.load()
  importlib.import_module('clu.metric_writers.summary_writer')


def write(directory: pathlib.Path, points: Mapping[str, points_lib.Point],
          rows: Sequence[results.Row]) -> None:
  """Writes the points that have no run yet; a run is there whole or not at all.

  Nobody else may write there meanwhile.

  Args:
    directory: Of the sweep; runs are in its `FOLDER`.
    points: All points of the sweep, by content key.
    rows: Of those that are done.
  """
  folder = directory / FOLDER
  folder.mkdir(exist_ok=True)
  partial = directory / f'{FOLDER}.partial'      # TensorBoard must not see it.
  for row in rows:
    run = folder / run_name(row, points[row.key])
    if not run.exists():
      shutil.rmtree(partial, ignore_errors=True)
      _write(partial, row)
      partial.rename(run)


def run_name(row: results.Row, point: points_lib.Point) -> str:
  """The label of a point, and what only this measurement of it has."""
  label, = points_lib.file_names({row.key: point}).values()
  key = results.content_key([row.key, row.sweep, row.started])
  return f'{label}_{key[:12]}'


def writer(directory: pathlib.Path) -> Any:
  """A clu writer of events; loads TensorFlow."""
  load()
  from clu.metric_writers import summary_writer  # It loads TensorFlow.
  return summary_writer.SummaryWriter(str(directory))


def _write(run: pathlib.Path, row: results.Row) -> None:
  events = writer(run)
  events.write_hparams(_known(row, SETTING))
  events.write_scalars(0, _known(row, SCALARS))
  events.close()


def _known(row: results.Row, names: Sequence[str]) -> dict[str, Any]:
  """Columns that have a value: alpha may have none."""
  return {x: getattr(row, x) for x in names if getattr(row, x) is not None}
