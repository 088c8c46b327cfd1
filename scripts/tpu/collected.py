"""Results as they lie here: a copy is whole before it is the one in place."""
from __future__ import annotations

import contextlib
import fcntl
import pathlib
import shutil
import tempfile
from typing import Iterator

RUNS = 'runs'
FRESH, OLD, LOCK = '.runs.fresh-', '.runs.old', '.runs.lock'   # beside it
HELD = '.runs.held'


@contextlib.contextmanager
def fresh(output: pathlib.Path) -> Iterator[pathlib.Path]:
  """An empty folder for a copy, while nobody else collects there."""
  output.mkdir(parents=True, exist_ok=True)
  with _alone(output) as runs:
    for left in runs.parent.glob(f'{FRESH}*'):
      shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=FRESH, dir=runs.parent) as folder:
      yield pathlib.Path(folder)


def take(folder: pathlib.Path, output: pathlib.Path) -> None:
  """Puts the copy in a folder of `fresh` in place of the one before it.

  Two renames: killed between them, `settle` brings back the one before. Files
  that only that one has stay.
  """
  runs = _place(output)
  if runs.exists():
    runs.rename(runs.with_name(OLD))
  (folder / RUNS).rename(runs)
  _settle(runs)


def settle(output: pathlib.Path) -> None:
  """Ends what a kill cut short."""
  if _place(output).with_name(OLD).exists():
    with _alone(output):
      pass


@contextlib.contextmanager
def held(output: pathlib.Path) -> Iterator[None]:
  """While a sweep is collected there.

  Another's set-up would take along what this one has so far, and bring it back
  when there is more.

  Raises:
    ValueError: One is.
  """
  with (output / HELD).open('w') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(f'Another sweep is being collected in {output}; give '
                       'this one another --output.') from None
    yield


@contextlib.contextmanager
def _alone(output):
  """The place of results, which nobody else changes meanwhile."""
  with (output / LOCK).open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    runs = _place(output)
    _settle(runs)
    yield runs


def _place(output):
  return (output / RUNS).resolve()     # may be a link to another disk


def _settle(runs):
  old = runs.with_name(OLD)
  if old.exists() and not runs.exists():
    old.rename(runs)
  elif old.exists():
    for path in [x for x in old.rglob('*') if x.is_file()]:
      there = runs / path.relative_to(old)
      if not there.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        path.rename(there)
    shutil.rmtree(old)
