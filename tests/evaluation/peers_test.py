"""Peers compute what we compute; how fast is not tested here."""
import dataclasses
import importlib.util

import benchmarks_test
import numpy as np
import pytest

from spec_cascades.evaluation import benchmarks

pytest.importorskip('transformers')
from spec_cascades.evaluation import peers  # noqa: E402


@pytest.fixture(scope='module', params=[False, True])
def peer(request):
  """With a head of its own; with the embeddings', and a deeper decoder."""
  return peers.random(dataclasses.replace(
      benchmarks_test.TINY, logits_via_embedding=request.param,
      num_decoder_layers=1 + request.param))


def test_both_decode_the_same_tokens(peer):
  ours = benchmarks.decode_program(peer.ours, None, 1, new_tokens=8)()
  np.testing.assert_array_equal(ours.tokens[0], peer.decode(8)())


def test_both_step_to_the_same_token_again_and_again(peer):
  ours, theirs = peer.our_steps(5, 3), peer.their_steps(5, 3)
  found = [int(run()[0, 0]) for run in (ours, theirs, ours, theirs)]
  assert len(set(found)) == 1


def test_a_library_that_is_not_there_is_named(monkeypatch):
  peers.check()
  monkeypatch.setattr(importlib.util, 'find_spec',
                      lambda name: None if name == 'torch' else name)
  with pytest.raises(ValueError, match='torch is not installed; .*-test.txt'):
    peers.check()
