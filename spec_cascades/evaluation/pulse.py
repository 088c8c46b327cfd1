"""What a machine gives at the moment, by work that has none of our code."""
from __future__ import annotations

import dataclasses
import threading
import time
from typing import Callable

import numpy as np

BYTES = 64 << 20                     # more than a core's own caches hold
SIDE = 192                           # three matrices of it lie in one
TRIES = 5


@dataclasses.dataclass(frozen=True)
class Pulse:
  """How fast memory is read (GB/s), products are (GFLOP/s), threads wake (us).

  Each the best of a few tries of some ms, by NumPy and Python alone. A ratio of
  two programs holds at any pulse, if they run in turn; their times, and what
  drafts gain, are comparable between runs only where the pulses are.
  """
  memory: float
  products: float
  waking: float

  def __str__(self) -> str:
    return (f'reads {BYTES >> 20} MB at {self.memory:.1f} GB/s, multiplies at '
            f'{self.products:.0f} GFLOP/s, wakes a thread in '
            f'{self.waking:.0f} us')


def _best(work: Callable[[], object]) -> float:
  """Seconds of the fastest of some calls."""
  took = []
  for _ in range(TRIES):
    start = time.perf_counter()
    work()
    took.append(time.perf_counter() - start)
  return min(took)


def _handovers(times: int) -> None:
  """Two threads wake each other in turn."""
  mine, other = threading.Semaphore(0), threading.Semaphore(0)

  def answer() -> None:
    for _ in range(times):
      other.acquire()
      mine.release()
  thread = threading.Thread(target=answer, daemon=True)
  thread.start()
  for _ in range(times):
    other.release()
    mine.acquire()
  thread.join()


def measure() -> Pulse:
  """Takes some tenths of a second."""
  column = np.ones(BYTES // 4, np.float32)
  square, out = np.ones((2, SIDE, SIDE), np.float32)
  many, rounds = 40, 200

  def products() -> None:
    for _ in range(many):
      np.matmul(square, square, out=out)
  return Pulse(BYTES / _best(lambda: np.dot(column, column)) / 1e9,
               2 * many * SIDE ** 3 / _best(products) / 1e9,
               1e6 * _best(lambda: _handovers(rounds)) / (2 * rounds))
