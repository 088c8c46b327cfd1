"""Wall-clock that can be compared: interleaved, synchronised, warmed up."""
from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pathlib
import platform
import threading
import time
from typing import Any, Callable, Iterator

import jax
from jax import monitoring
import numpy as np

COMPILED = '/jax/core/compile/backend_compile_duration'


@dataclasses.dataclass
class CompileLog:
  """Counts XLA compilations of its thread while it is open, and their seconds.

  with CompileLog() as log: f(x)     ->  log.programs, log.seconds
  """
  programs: int = 0
  seconds: float = 0.0

  def __add__(self, other: CompileLog) -> CompileLog:
    return CompileLog(self.programs + other.programs,
                      self.seconds + other.seconds)

  def __enter__(self) -> CompileLog:
    self._thread = threading.get_ident()
    monitoring.register_event_duration_secs_listener(self._listen)
    return self

  def __exit__(self, *unused: Any) -> None:
    monitoring.unregister_event_duration_listener(self._listen)

  def _listen(self, event: str, seconds: float, **unused: Any) -> None:
    if event == COMPILED and threading.get_ident() == self._thread:
      self.programs += 1
      self.seconds += seconds


def timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Seconds until the device has finished, and the result."""
  start = time.perf_counter()
  out = jax.block_until_ready(function(*args))
  return time.perf_counter() - start, out


def collect() -> None:
  """Collects garbage; what is left is not looked at again while in `quiet`.

  A sweep keeps its records: to go through them each time took half a minute.
  """
  gc.collect()
  gc.freeze()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """No garbage collection but `collect`s of the caller while the clock runs."""
  collect()
  gc.disable()
  try:
    yield
  finally:
    gc.enable()
    gc.unfreeze()


def interleaved(num_examples: int, num_points: int,
                seed: int) -> Iterator[tuple[int, int]]:
  """(example, point): all points run example i before any runs i + 1.

  The order of the points is drawn anew for every example, from (seed, i)
  alone, so that drift of the machine and what ran just before hit all alike.
  """
  for example in range(num_examples):
    rng = np.random.default_rng((seed, example))
    for point in rng.permutation(num_points):
      yield example, int(point)


def device() -> str:
  """JAX's platform and kind of the first device."""
  first = jax.devices()[0]
  kind = '' if first.device_kind == first.platform else f' {first.device_kind}'
  return f'{first.platform}{kind}'


def machine() -> str:
  """Processor and the cores that this process may use."""
  name = platform.processor() or platform.machine()
  info = pathlib.Path('/proc/cpuinfo')
  if info.is_file():
    lines = info.read_text(encoding='utf-8', errors='replace').splitlines()
    models = [x.split(':', 1)[1].strip() for x in lines
              if x.startswith('model name')]
    name = models[0] if models else name
  affinity = getattr(os, 'sched_getaffinity', None)
  cores = len(affinity(0)) if affinity else os.cpu_count()
  return f'{name}, {cores} cores'
