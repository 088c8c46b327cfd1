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


def panels(runs: Mapping[str, Mapping[str, Line]]) -> list[list[str]]:
  """Which metrics share a panel: a loss and that on validation do."""
  names = list(dict.fromkeys(x for run in runs.values() for x in run))
  losses = [x for x in names if x.endswith('loss')]
  return [*([losses] if losses else []), *([x] for x in names
                                           if x not in losses)]


def draw(runs: Mapping[str, Mapping[str, Line]]) -> figure.Figure:
  """A panel a metric, side by side; a colour a run.

  Args:
    runs: Of each run, by what it is to be called, what `read` gives.
  """
  wanted = panels(runs)
  drawing = figure.Figure(figsize=(PANEL * len(wanted), HEIGHT), dpi=200,
                          layout='constrained')
  axes = drawing.subplots(1, len(wanted), squeeze=False)[0]
  for axis, names in zip(axes, wanted):
    for (run, found), colour in zip(runs.items(), itertools.cycle(COLOURS)):
      for name in filter(found.get, names):
        checked = name.startswith('validation')
        few = len(found[name]) < FEW
        axis.plot(*zip(*found[name]), '--' if checked else '-', color=colour,
                  marker='o' if few else '', markersize=3,
                  label=f'{run}, {name}' if checked else run)
    axis.set_xlabel('steps')
    axis.set_ylabel(names[0])
    axis.grid(color=FAINT, linewidth=.5)
    axis.spines[['top', 'right']].set_visible(False)
  axes[0].legend(frameon=False, fontsize=7)
  return drawing

