"""Checkpoints of a run, as they are written and as errors are explained."""
from __future__ import annotations

import contextlib
import logging
import shutil
from typing import Any, Iterator

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

# Of an array in a checkpoint: compressed, each, so that it is read whole.
CHUNK_BYTES = 2**20


class Saver:
  """Writes checkpoints of a run while it goes on.

  Args:
    manager: Of their folder.
  """

  def __init__(self, manager: ocp.CheckpointManager):
    self._manager, self._begun = manager, None
    # Its threads log tracebacks of what they raise, which is said here anyway.
    logging.getLogger('absl').addFilter(_is_no_traceback_of_orbax)

  def newest(self) -> int | None:
    """The step of the newest checkpoint that is whole; waits for the last."""
    self.wait()
    return self._manager.latest_step()

  def __call__(self, step: int, whole: Any, params: Any) -> None:
    """Begins to write what there is after a step, unless it is there.

    Args:
      step: Its number.
      whole: What is kept.
      params: The parameters in it.

    Raises:
      ValueError: They are not finite, there is no room, or the checkpoint
        before could not be written.
    """
    if self.newest() == step:
      return
    if not _finite(params):
      before = ('there is none before it' if self.newest() is None else
                f'that of step {self.newest()} is whole')
      raise ValueError(f'Parameters are not finite behind step {step}, and no '
                       f'checkpoint of it is kept; {before}. Lower the '
                       'learning rate.')
    with self._explained(step):
      _check_room(self._manager.directory, whole)
      self._manager.save(step, args=saved(whole))
    self._begun = step

  def wait(self) -> None:
    """Until what was begun is written; ValueError if it can't be."""
    if self._begun is None:
      return
    with self._explained(self._begun):
      self._manager.wait_until_finished()
    self._begun = None

  def _explained(self, step):
    return explained(
        f'The checkpoint of step {step} in {self._manager.directory} '
        "can't be written", 'those before it are whole. Make room, and the '
        'same command goes on from there')


def _is_no_traceback_of_orbax(record):
  return not (record.exc_info and 'orbax' in record.pathname)


def saved(state: Any) -> ocp.args.StandardSave:
  """What a checkpoint is to hold, in chunks that are read one at a time."""
  return ocp.args.StandardSave(state, jax.tree.map(_chunks, state))


def _chunks(array: Any) -> ocp.SaveArgs:
  """Some rows a chunk: those of a wide array would else be cut up, too."""
  wide = array.ndim == 2 and array.shape[0] < array.shape[1]
  return ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES, shard_axes=(0,) * (
      wide and array.nbytes > CHUNK_BYTES))


@jax.jit
def _finite(params):
  return jnp.stack([jnp.isfinite(x).all()
                    for x in jax.tree.leaves(params)]).all()


def _check_room(folder, state):
  """Before Orbax begins, which says a great deal when it fails."""
  free = shutil.disk_usage(folder).free
  needed = sum(x.nbytes for x in jax.tree.leaves(state))
  if free < needed:
    raise OSError(f'{free / 1e6:.0f} MB are free, up to {needed / 1e6:.0f} MB '
                  'are needed')


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
  """Whatever Orbax and its stores raise, in one line."""
  try:
    yield
  except Exception as error:
    short = ' '.join(str(error).split())[:200]
    raise ValueError(f'{what} ({type(error).__name__}: {short}); '
                     f'{remedy}.') from error
