"""Compilations are counted, and every example runs all points in turn."""
from concurrent import futures
import gc
import time
import weakref

import jax
import jax.numpy as jnp

from spec_cascades.evaluation import timing


def test_compilations_are_counted_once():
  one, two = jnp.ones(3), jnp.ones(4)
  function = jax.jit(lambda x: x * 2)
  with timing.CompileLog() as log:
    function(one)
    function(one)
    assert log.programs == 1
    function(two)
  assert log.programs == 2 and log.seconds > 0
  function(jnp.ones(5))
  assert log.programs == 2                  # it is closed


def test_compilations_of_other_threads_are_theirs():
  function, one = jax.jit(lambda x: x * 3), jnp.ones(6)

  def elsewhere():
    with timing.CompileLog() as own:
      function.lower(one).compile()
    return own

  with timing.CompileLog() as log, futures.ThreadPoolExecutor(1) as pool:
    theirs = pool.submit(elsewhere).result()
    function(one)                         # is what was compiled there
  assert (theirs.programs, log.programs) == (1, 0)
  assert (theirs + log).programs == 1 and (theirs + log).seconds > 0


def test_examples_come_in_order_and_points_in_any():
  order = list(timing.interleaved(20, 6, seed=1))
  assert [e for e, _ in order] == sorted(e for e, _ in order)
  rows = [[p for e, p in order if e == i] for i in range(20)]
  assert all(sorted(row) == list(range(6)) for row in rows)
  assert len({row[0] for row in rows}) > 2
  assert order == list(timing.interleaved(20, 6, seed=1))
  assert order[:60] == list(timing.interleaved(10, 6, seed=1))


def test_time_is_taken_when_the_device_is_done():
  def slow(x):
    time.sleep(.05)
    return x + 1
  function = jax.jit(lambda x: jax.pure_callback(slow, x, x))
  x = jnp.float32(1)
  timing.timed(function, x)
  seconds, out = timing.timed(function, x)
  assert seconds >= .05 and out == 2


def test_machine_and_device_are_named():
  assert 'cores' in timing.machine() and timing.device()


def test_garbage_is_collected_on_demand_and_what_is_kept_is_left_alone():
  class Node:
    pass

  with timing.quiet():
    kept, lost = [Node()], Node()
    lost.itself = lost
    gone = weakref.ref(lost)
    del lost
    assert not gc.isenabled() and gone()
    timing.collect()
    assert not gone() and gc.get_freeze_count()
    assert not any(x is kept for x in gc.get_objects())
  assert gc.isenabled() and not gc.get_freeze_count()
  assert any(x is kept for x in gc.get_objects())
