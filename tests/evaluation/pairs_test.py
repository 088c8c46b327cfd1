"""Which foreign checkpoints make a pair, and how long an input they take."""
import json
import shutil

import pytest

from spec_cascades.checkpoints import converting, loading, native
from spec_cascades.evaluation import pairs, translate
from tests.checkpoints import hubs


@pytest.mark.parametrize('name,limit', [
    ('t5_1_1', loading.DEFAULT_MAX_INPUT), ('smollm2', 9)])
def test_only_relative_positions_go_beyond_what_a_tokenizer_says(
    tmp_path, name, limit):
  hubs.save(name, tmp_path / 'a')
  hubs.words(tmp_path / 'a', model_max_length=9)
  pair = pairs.load(str(tmp_path / 'a'), None)
  assert pair.verifier.max_input_length == pair.max_input_length == limit
  converting.convert(tmp_path / 'a', tmp_path / 'b')
  pair = pairs.load(str(tmp_path / 'b'), None)
  assert pair.max_input_length == limit
  assert native.read_config(tmp_path / 'b')['max_input_length'] == limit


def test_a_gemma_3_may_have_a_token_for_images_without_an_embedding(tmp_path):
  """As the published 270M and 1B have: 262,145 tokens, 262,144 embeddings."""
  for place, specials in (('a', ['<image>']), ('b', [])):
    hubs.save('gemma3', tmp_path / place)
    hubs.words(tmp_path / place, specials=specials)
  pair = pairs.load(str(tmp_path / 'a'), str(tmp_path / 'b'))
  assert pair.vocabulary.size == 32 == 1 + pair.verifier.lm.vocab_size
  other = pairs.load(str(tmp_path / 'b'), None)
  assert pair.vocabulary_sha256 == other.vocabulary_sha256
  translator = translate.Translator(pair, translate.Settings())
  assert translator.encode('a') == [3]
  with pytest.raises(ValueError, match="'<image>', which the model has no emb"):
    translator.encode('a<image>')


def test_a_t5_of_ours_with_a_tokenizer_json_decodes(tmp_path):
  hubs.save('t5_1_1', tmp_path / 'a')
  hubs.words(tmp_path / 'a')
  converting.convert(tmp_path / 'a', tmp_path / 'b')
  assert not pairs.is_own(str(tmp_path / 'b'))
  texts = []
  for place in 'ab':
    pair = pairs.load(str(tmp_path / place), None)
    run = translate.Translator(pair, translate.Settings(
        drafter='ngram', max_length=6, temperature=1., seed=3))
    texts.append([step.text for step in run(run.encode('c'))])
  assert texts[0] == texts[1] and ''.join(texts[0])
  pairs.load(str(tmp_path / 'a'), str(tmp_path / 'b'))


def test_a_model_of_ours_without_a_tokenizer_says_what_to_do(tmp_path):
  for name in ('t5_1_1', 'smollm2'):
    hubs.save(name, tmp_path / 'a')
    with pytest.raises(ValueError, match='no tokenizer; put its tokenizer.jso'):
      pairs.load(str(tmp_path / 'a'), None)
    converting.convert(tmp_path / 'a', tmp_path / 'b')
    assert json.loads((tmp_path / 'b/config.json').read_text())[
        'vocabulary'] is None
    with pytest.raises(ValueError, match='convert it again, with --vocabulary'):
      pairs.load(str(tmp_path / 'b'), None)
    for place in 'ab':
      shutil.rmtree(tmp_path / place)
