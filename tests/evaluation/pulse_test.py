"""The pulse of a machine: plausible figures, in a line, that see a hold-up."""
import re
import time

from spec_cascades.evaluation import pulse


def test_figures_are_plausible_and_come_in_one_line():
  found = pulse.measure()
  assert .05 < found.memory < 5_000
  assert .1 < found.products < 100_000
  assert .1 < found.waking < 100_000
  assert re.fullmatch(
      r'reads 64 MB at [\d.]+ GB/s, multiplies at \d+ GFLOP/s, wakes a thread '
      r'in \d+ us', str(found))


def test_the_fastest_try_counts():
  waits = iter((.03, .0, .03, .03, .03))
  assert pulse._best(lambda: time.sleep(next(waits))) < .03


def test_threads_that_are_slow_to_wake_show(monkeypatch):
  semaphore = pulse.threading.Semaphore

  class Slow(semaphore):
    def acquire(self, *args, **kwargs):
      time.sleep(.002)
      return super().acquire(*args, **kwargs)
  monkeypatch.setattr(pulse.threading, 'Semaphore', Slow)
  assert pulse._best(lambda: pulse._handovers(20)) / 40 > .0009
