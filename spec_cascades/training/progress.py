"""What a run says while it trains: lines, metrics.jsonl, TensorBoard."""
from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import time
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Sequence

import numpy as np

from spec_cascades.evaluation import tensorboard as tensorboard_lib
from spec_cascades.training import saving

FILE = 'metrics.jsonl'
RATE = 'tokens_per_second'             # of lines on steps, not on evaluations


class Progress:
  """Means of steps since the last line, and the time that is left.

  Args:
    folder: Gets the files; None writes none.
    log: Receives lines.
    total: Steps in all.
    tensorboard: Whether to write events beside `FILE`.
  """

  def __init__(self, folder: pathlib.Path | None, log: Callable[[str], None], *,
               total: int, tensorboard: bool):
    self._folder, self._log, self._total = folder, log, total
    self._writer = None
    if tensorboard and folder is not None:
      self._writer = tensorboard_lib.writer(folder / tensorboard_lib.FOLDER)
    self._steps: list[Mapping[str, Any]] = []
    self._since = time.time()

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, kind, *error) -> None:
    if self._writer is not None:
      # What ends the run is said, not that this can't be written either.
      with contextlib.suppress(*[ValueError] * (kind is not None)):
        with self._drawing('at the end'):
          self._writer.close()

  def add(self, step: int, metrics: Mapping[str, Any],
          where: Callable[[], str], saved: Callable[[], int | None]) -> None:
    """Notes a step that is done.

    Args:
      step: Its number, from 1.
      metrics: Means per token, and `tokens`.
      where: Its batch, in words.
      saved: Says the step of the newest checkpoint.

    Raises:
      ValueError: The loss or the gradient is not finite.
    """
    for what, name in (('loss', 'loss'), ("gradient's norm", 'norm')):
      if not math.isfinite(metrics[name]):
        raise ValueError(f'The {what} is {float(metrics[name])} at step {step} '
                         f'({where()}). {remedy(saved())}')
    self._steps.append(metrics)

  def report(self, step: int) -> None:
    """A line on what was added since the last one."""
    if not self._steps:
      return
    elapsed, steps = time.time() - self._since, len(self._steps)
    column = lambda name: np.array([m[name] for m in self._steps], np.float64)
    counts = column('tokens')
    # Online, a drafter may have been rejected nowhere.
    many = counts.sum() or 1.
    mean = lambda name: float((counts * column(name)).sum() / many)
    known = ('loss', 'agreement', 'acceptance')
    others = sorted(set(self._steps[0]) - {*known, 'tokens', 'norm'})
    means = {name: mean(name) for name in (*known, *others)
             if name in self._steps[0]}
    rate = counts.sum() / elapsed
    left = (self._total - step) * elapsed / steps
    self._log(f'step {step}/{self._total}  {_shown(means)}  '
              f'{rate:.0f} tokens/s  left {left / 60:.0f} min')
    self._record(step, {**means, RATE: rate})
    self._since, self._steps = time.time(), []

  def found(self, step: int, figures: Mapping[str, float],
            lines: Sequence[str] = ()) -> None:
    """Lines on an evaluation."""
    for line in (_shown(figures), *lines):
      self._log(f'step {step}  {line}')
    self._record(step, figures)

  def evaluated(self, step: int) -> bool:
    """Whether `FILE` has an evaluation of a step; true where none is written.
    """
    if self._folder is None:
      return True
    path = self._folder / FILE
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return any(row['step'] == step and RATE not in row
               for row in map(_parsed, lines) if row and 'step' in row)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What happens meanwhile is no training."""
    began = time.time()
    yield
    self._since += time.time() - began

  def _record(self, step: int, figures: Mapping[str, float]) -> None:
    if self._folder is None:
      return
    row = json.dumps(dict(step=step, **figures, time=time.time()))
    try:
      with (self._folder / FILE).open('ab+') as file:
        _end_line(file)
        file.write(f'{row}\n'.encode())
    except OSError as error:
      raise ValueError(f"{self._folder / FILE} can't be written at step {step} "
                       f'({error}); checkpoints are whole. Make room, and the '
                       'same command goes on from the last one.') from None
    if self._writer is not None:
      with self._drawing(f'at step {step}'):
        self._writer.write_scalars(step, dict(figures))

  def _drawing(self, when):
    return saving.explained(
        f"{self._folder / tensorboard_lib.FOLDER} can't be written {when}",
        'checkpoints are whole. Make room, and the same command goes on from '
        'the last one')


def _end_line(file: BinaryIO) -> None:
  """Ends the last line, or leaves it out if a kill has cut it off."""
  if not file.tell():
    return
  file.seek(-1, os.SEEK_END)
  if file.read() == b'\n':
    return
  file.seek(0)
  whole = file.read()
  start = whole.rfind(b'\n') + 1
  if _parsed(whole[start:]) is None:
    file.truncate(start)
  else:
    file.write(b'\n')


def _parsed(line: bytes) -> dict[str, Any] | None:
  """The row of a line, if it is one."""
  try:
    row = json.loads(line)
  except ValueError:
    return None
  return row if isinstance(row, dict) else None


def remedy(saved: int | None) -> str:
  """What is left of a run that diverged, and what to do.

  Args:
    saved: The step of the newest checkpoint.
  """
  kept = ('There is no checkpoint yet' if saved is None else
          f'The last checkpoint is that of step {saved}')
  return f'{kept}; lower the learning rate, or look at these texts.'


def _shown(figures: Mapping[str, float]) -> str:
  return '  '.join(f'{name} {x:.3f}' for name, x in figures.items())
