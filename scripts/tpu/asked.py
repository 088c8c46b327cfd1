"""Slices that are asked for until they are there, and seen to be taken away."""
from __future__ import annotations

import collections
import time
from typing import Any, Sequence

import slices as lib


def create(launch: Any, some: Sequence[lib.Slice], *,
           patient: bool = False) -> None:
  """Asks for all slices that are not there, and waits.

  Args:
    launch: What the flags say, a `launch.Launch`.
    some: Of its slices.
    patient: Ask again if gcloud fails, as it may now and then.

  Raises:
    ValueError: One can't be asked for, or failed for good.
  """
  gcloud, times, failed = launch.gcloud, collections.Counter(), 0
  found = {one: lib.MISSING if gcloud.dry_run else _state(launch, one, patient)
           for one in some}
  while waiting := [one for one in some if found[one] != lib.ACTIVE]:
    gone = [one for one in waiting if found[one] in lib.GONE]
    for one in gone:
      if times[one] > launch.restarts:
        raise ValueError(f'{one.name} is {found[one]} after {launch.restarts} '
                         'restarts; see gcloud, or give more --restarts.')
      times[one] += 1
      try:
        if found[one] != lib.MISSING:
          gcloud.done(one.delete())
        gcloud.done(one.create())
      except ValueError as error:
        failed, times[one] = failed + 1, times[one] - 1
        if not patient or failed > lib.RETRIED:
          raise
        gcloud.say(f'# {error}')
        time.sleep(launch.poll)
    if not gone:
      time.sleep(launch.poll)
    for one in waiting:
      before, found[one] = found[one], _state(launch, one, True)
      if found[one] != before and not gcloud.dry_run:
        gcloud.say(f'# {one.name}: {found[one]}')


def _state(launch: Any, one: lib.Slice, patient: bool) -> str:
  """Of a slice; if patient, asked RETRIED times more where it's not known."""
  for _ in range(lib.RETRIED * patient):
    try:
      return lib.state(launch.gcloud, one)
    except ValueError as error:
      launch.gcloud.say(f'# {error}')
      time.sleep(launch.poll)
  return lib.state(launch.gcloud, one)


def lost(launch: Any) -> list[lib.Slice]:
  """Slices that were taken away; one that can't be asked about was not."""
  found = []
  for one in launch.slices:
    try:
      found += [one] if lib.state(launch.gcloud, one) in lib.LOST else []
    except ValueError as error:
      launch.gcloud.say(f'# {error}')
  return found
