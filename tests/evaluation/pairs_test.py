"""How long an input a foreign checkpoint takes."""
import json

import pytest

from spec_cascades.evaluation import pairs
from tests.checkpoints import hubs


@pytest.mark.parametrize('name,limit', [
    ('t5_1_1', pairs.DEFAULT_LIMIT), ('smollm2', 9)])
def test_only_relative_positions_go_beyond_what_a_tokenizer_says(
    tmp_path, name, limit):
  tokenizers = pytest.importorskip('tokenizers')
  hubs.save(name, tmp_path)
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(
      {'</s>': 0, 'word': 1}, 'word'))
  made.decoder = tokenizers.decoders.ByteLevel()
  made.save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'tokenizer_config.json').write_text(
      json.dumps(dict(eos_token='</s>', model_max_length=9)))
  pair = pairs.load(str(tmp_path), None)
  assert pair.verifier.max_input_length == pair.max_input_length == limit
