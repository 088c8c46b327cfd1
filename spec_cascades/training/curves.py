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

  Raises:
    ValueError: The directory has no metrics.
  """
  path = pathlib.Path(model_dir).expanduser() / METRICS
  if not path.is_file():
    raise ValueError(f'No {METRICS} in {path.parent}; give the model_dir of a '
                     'run of scripts/train.py.')
  found: dict[str, Line] = {}
  for line in path.read_text('utf-8').splitlines():
    note = json.loads(line)
    for name, value in note.items():
      if name not in HIDDEN and isinstance(value, (int, float)):
        found.setdefault(name, []).append((note['step'], value))
  return found


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

  Args:
    runs: Of each run, by what it is to be called, what `read` gives.
  """
  wanted = panels(runs)
  across = min(COLUMNS, len(wanted))
  down = -(-len(wanted) // across)
  drawing = figure.Figure(figsize=(PANEL * across, HEIGHT * down), dpi=150,
                          layout='constrained')
  axes = drawing.subplots(down, across, squeeze=False).flat
  for (panel, names), axis in zip(wanted.items(), axes):
    for (run, found), colour in zip(runs.items(), itertools.cycle(COLOURS)):
      for name in filter(found.get, names):
        dashed = name.startswith(('validation', PREDICTED))
        few = len(found[name]) < FEW
        axis.plot(*zip(*found[name]), '--' if dashed else '-', color=colour,
                  marker='o' if few else '', markersize=3,
                  label=run if name == panel else f'{run}, {name}')
    axis.set_xlabel('steps')
    axis.set_ylabel(panel)
    axis.grid(color=FAINT, linewidth=.5)
    axis.spines[['top', 'right']].set_visible(False)
    axis.legend(frameon=False, fontsize=6)
  for axis in axes:                     # of the last row, without a metric
    axis.set_visible(False)
  return drawing
