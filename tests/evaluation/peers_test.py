"""Peers compute what we compute; how fast is not tested here."""
import benchmarks_test
import numpy as np
import pytest

from spec_cascades.evaluation import benchmarks

pytest.importorskip('transformers')
from spec_cascades.evaluation import peers  # noqa: E402


@pytest.fixture(scope='module')
def peer():
  return peers.random(benchmarks_test.TINY)


def test_both_decode_the_same_tokens(peer):
  ours = benchmarks.decode_program(peer.ours, None, 1, new_tokens=8)()
  np.testing.assert_array_equal(ours.tokens[0], peer.decode(8)())


def test_both_step_to_the_same_token_again_and_again(peer):
  ours, theirs = peer.our_steps(5, 3), peer.their_steps(5, 3)
  found = [int(run()[0, 0]) for run in (ours, theirs, ours, theirs)]
  assert len(set(found)) == 1
