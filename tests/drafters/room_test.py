"""No drafter writes beyond the end of a cache, its own or the verifier's.

`cache.write` would move such a block back silently, over committed slots.
"""
import dataclasses

import jax
import jax.numpy as jnp
import pytest

from spec_cascades import cache as cache_lib
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades.drafters import chain
from spec_cascades.models import table
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, keys
from tests.conformance_test import DRAFTERS, reads_q, verifier_of


class Tight(table.Table):
  """Makes its caches four slots too short."""

  def init(self, params, prompt, capacity):
    return super().init(params, prompt, capacity - 4)


def least_room(monkeypatch, lm, drafter, params, target):
  """Slots behind the block that is written nearest to a cache's end."""
  room, write = [], cache_lib.write

  def noted(array, block, start):
    along = cache_lib.axis(array)
    jax.debug.callback(
        lambda left: room.append(int(left.min())),
        array.shape[along] - block.shape[along] - start)
    return write(array, block, start)

  jax.clear_caches()                   # none that was traced without it
  monkeypatch.setattr(cache_lib, 'write', noted)
  spec = decode.GenSpecSample(lm, drafter, 20, eos=-1)
  state = spec(P, params, RAGGED, keys(3), target, Warp())
  jax.block_until_ready(state)
  jax.effects_barrier()
  jax.clear_caches()
  assert (state.lengths == 20).all()
  return min(room)


@pytest.mark.slow
@pytest.mark.parametrize('name', DRAFTERS)
def test_rows_that_fill_up_leave_room_for_every_block(name, monkeypatch):
  (drafter, _), params = DRAFTERS[name]
  target = targets.Chow(.4) if reads_q(name) else targets.Lossless()
  assert least_room(monkeypatch, verifier_of(name), drafter, params,
                    target) >= 0


@pytest.mark.slow
def test_caches_that_are_too_short_are_seen(monkeypatch):
  short = Tight(**{f.name: getattr(LM, f.name) for f in dataclasses.fields(LM)})
  assert least_room(monkeypatch, LM, chain.Chain(short, 3), Q,
                    targets.Chow(jnp.float32(.4))) < 0
