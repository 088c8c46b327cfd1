"""Published weights beside transformers: the same tokens, at any speed."""
import jax
import numpy as np
import pytest

pytest.importorskip('transformers')
pytest.importorskip('tokenizers')
from spec_cascades.checkpoints import converting  # noqa: E402
from spec_cascades.evaluation import copying, weights  # noqa: E402
from spec_cascades.models import products  # noqa: E402
from tests import ggufs  # noqa: E402


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A directory in Hugging Face's layout, with a tokenizer."""
  folder = tmp_path_factory.mktemp('weights')
  path = ggufs.make(folder / 'x.gguf', 'llama', ggufs.byte_level())
  converting.convert(path, folder / 'model', to='huggingface')
  return folder / 'model'


@pytest.fixture(scope='module')
def both(place):
  return weights.load(place)


@pytest.mark.parametrize('lookup', [False, True])
def test_both_decode_the_same_tokens(both, lookup):
  tokens = both.tokenizer.encode('the end and the end and')
  ours = both.decode(tokens, 20, lookup=lookup)()
  theirs = both.their_decode(tokens, 20, lookup=lookup)()
  np.testing.assert_array_equal(ours, theirs)
  assert len(ours) == len(tokens) + 20


def is_packed(x):
  return isinstance(x, products.Packed)


def test_a_step_reads_every_weight_but_an_untied_table(both):
  count = sum(x.numel() for x in both.theirs.parameters())
  table = both.theirs.get_input_embeddings().weight.numel()
  tied = both.lm.config.logits_via_embedding
  filled = sum(x.array.size - x.features * x.array.shape[1] for x in
               jax.tree.leaves(both.packed, is_leaf=is_packed)
               if is_packed(x) and x.features)
  assert both.nbytes == 4 * (count - (0 if tied else table) + filled)


def test_loading_is_timed_in_processes_of_their_own(place):
  found = weights.seconds_to_load(place)
  assert set(found) == {'ours', 'transformers'} and min(found.values()) > 0


def test_what_transformers_cannot_continue_is_refused(pair_dir):
  with pytest.raises(ValueError, match='no decoder-only model'):
    weights.load(pair_dir / 'verifier')


def test_the_reading_program_reads_that_much():
  out = weights.reading(4 * 2048 * 64 * 3, 64)()
  assert out.shape == (1, 64)


def test_copying_prompts_hold_what_they_ask_for():
  for prompt in copying.COPIED:
    assert prompt.count(prompt.splitlines()[-1].split(': ')[-1]) == 2
