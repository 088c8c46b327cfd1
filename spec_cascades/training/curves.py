"""Pictures of training runs: every metric against steps, a line a run."""
from __future__ import annotations

import itertools
import json
import pathlib
from typing import Mapping

from matplotlib import figure

METRICS = 'metrics.jsonl'
HIDDEN = ('step', 'time', 'tokens_per_second')
PANEL, HEIGHT = 3.3, 2.4                # inches
COLUMNS = 3                             # panels side by side
DECODED, PREDICTED = 'tokens_per_call', 'predicted'
FEW = 8                                 # points that are marked
FAINT = '#d7dbe0'
COLOURS = ('#1f5fae', '#c2570c', '#0b7a80', '#7a5f10', '#8a2a6b')
Line = list[tuple[int, float]]


def read(model_dir: str) -> dict[str, Line]:
  """Every metric of a run, as (step, value).

  What a run that was killed did again, it has once: as it was last. A last line
  that the kill has cut off is left out.

  Raises:
    ValueError: The directory has no metrics, or a line is none.
  """
  path = pathlib.Path(model_dir).expanduser() / METRICS
  if not path.is_file():
    raise ValueError(f'No {METRICS} in {path.parent}; give the model_dir of a '
                     'run of scripts/train.py.')
  found: dict[str, dict[int, float]] = {}
  for note in _rows(path):
    for name, value in note.items():
      if name not in HIDDEN and isinstance(value, (int, float)):
        found.setdefault(name, {})[note['step']] = value
  if not found:
    raise ValueError(f'{path} holds no metric yet; wait for the first line of '
                     'the run.')
  return {name: sorted(line.items()) for name, line in found.items()}


def _rows(path):
  """Those of a file of metrics."""
  lines, rows = path.read_bytes().split(b'\n'), []
  for number, line in enumerate(lines, 1):
    try:
      if line:
        row = json.loads(line)
        rows.append(dict(row, step=int(row['step'])))
    except (ValueError, KeyError, TypeError):
      if number < len(lines):
        raise ValueError(f'{path}, line {number} is no row of metrics; delete '
                         'the line.') from None
  return rows


def panels(runs: Mapping[str, Mapping[str, Line]]) -> dict[str, list[str]]:
  """Metrics by the panel that they share.

  Those on validation are with those on the batch, predicted tokens a call with
  decoded ones.
  """
  found: dict[str, list[str]] = {}
  for name in dict.fromkeys(x for run in runs.values() for x in run):
    panel = name.removeprefix('validation_')
    if name.startswith((DECODED, PREDICTED)):
      panel = 'tokens a verifier call'
    found.setdefault(panel, []).append(name)
  return found


def draw(runs: Mapping[str, Mapping[str, Line]]) -> figure.Figure:
  """A panel a metric; a colour a run.

  What is few is marked: decoded at temperature 1 by squares, and what is on
  validation, or predicted, by crosses. All panels have the same steps.

  Args:
    runs: Of each run, by what it is to be called, what `read` gives.
  """
  wanted = panels(runs)
  across = min(COLUMNS, len(wanted))
  down = -(-len(wanted) // across)
  drawing = figure.Figure(figsize=(PANEL * across, HEIGHT * down), dpi=150,
                          layout='constrained')
  axes = drawing.subplots(down, across, squeeze=False).flat
  last = max(line[-1][0] for run in runs.values() for line in run.values())
  for (panel, names), axis in zip(wanted.items(), axes):
    for (run, found), colour in zip(runs.items(), itertools.cycle(COLOURS)):
      for name in filter(found.get, names):
        dashed = name.startswith(('validation', PREDICTED))
        mark = 'x' if dashed else 's' if name.endswith('_T1') else 'o'
        axis.plot(*zip(*found[name]), '--' if dashed else '-', color=colour,
                  marker=mark if len(found[name]) < FEW else '', markersize=4,
                  label=run if name == panel else
                  name if len(runs) == 1 else f'{run}, {name}')
    axis.set_xlim(0, 1.04 * last)
    axis.set_xlabel('steps')
    axis.set_ylabel(panel)
    axis.grid(color=FAINT, linewidth=.5)
    axis.spines[['top', 'right']].set_visible(False)
    axis.legend(frameon=False, fontsize=6)
  for axis in axes:                     # of the last row, without a metric
    axis.set_visible(False)
  return drawing
