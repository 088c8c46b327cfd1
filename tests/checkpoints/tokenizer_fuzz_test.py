"""Damaged tokenizer files: a tokenizer or a ValueError, and at once."""
import json
import pathlib
import random
import shutil
import time

import pytest
import tinypair

from spec_cascades.checkpoints import hub
from spec_cascades.data import tokenizers
from tests.checkpoints.hub_fuzz_test import CASES, changed, flipped
from tests.data import tokenizers_test

TEMPLATE = [dict(name='tools', template='x'),
            dict(name='default', template='{{ bos_token }}hi')]
SENTINELS = ['<extra_id_0>', dict(content='<extra_id_1>')]
ADDED = {str(tinypair.PIECES + i): dict(content=f'<x{i}>') for i in range(3)}
LARGE = ('vocab', 'merges')


def write(place, **contents):
  for name, content in contents.items():
    (place / f'{name}.json').write_text(json.dumps(content))
  return place


@pytest.fixture(scope='module')
def json_words(tmp_path_factory):
  """A tokenizer.json; everything else is said by the other files."""
  place = tmp_path_factory.mktemp('json')
  tokenizers_test.their_tokenizer(place, 'fallback')
  return write(place, config=dict(eos_token_id=1, pad_token_id=[3]),
               tokenizer_config=dict(bos_token='<s>', chat_template=TEMPLATE),
               generation_config=dict(eos_token_id=[1, 9], bos_token_id=0))


@pytest.fixture(scope='module')
def pieces(tmp_path_factory):
  """A SentencePiece model, with tokens that were added behind it."""
  place = tmp_path_factory.mktemp('pieces')
  tinypair.make_vocabulary(place).rename(place / 'spiece.model')
  return write(place, special_tokens_map=dict(
      additional_special_tokens=SENTINELS, eos_token='</s>'), config={},
               tokenizer_config=dict(added_tokens_decoder=ADDED,
                                     chat_template=TEMPLATE))


def mutant(rng, content):
  """A damaged file; the short parts of a tokenizer.json as often as others."""
  if not content.startswith(b'{') or rng.random() < .2:
    return flipped(rng, content)
  tree, large = json.loads(content), {}
  if 'model' in tree and rng.random() < .8:
    large = {key: tree['model'].pop(key) for key in LARGE}
  tree = json.loads(changed(rng, json.dumps(tree)))
  if isinstance(tree.get('model'), dict):
    tree['model'].update(large)
  return json.dumps(tree).encode()


def use(place, rows):
  """Does with the tokenizer what decoding and converting do."""
  found = hub.tokenizer_of(place, rows)()
  if found is not None:
    found.decode(found.encode('Open the file <extra_id_1> \u65e5\u672c.'))
    for token in (*range(9), *found.ends, found.size - 1):
      found.piece(token), found.raw(token)
    if found.template is not None:
      found.chat([dict(role='user', content='x')])
  return found


@pytest.mark.parametrize('kind, name', [
    ('json_words', 'tokenizer.json'), ('json_words', 'tokenizer_config.json'),
    ('json_words', 'generation_config.json'), ('json_words', 'config.json'),
    ('pieces', 'spiece.model'), ('pieces', 'tokenizer_config.json'),
    ('pieces', 'special_tokens_map.json')])
def test_damage_ends_in_a_tokenizer_or_in_one_line(kind, name, request,
                                                   tmp_path):
  whole = request.getfixturevalue(kind)
  place = pathlib.Path(shutil.copytree(whole, tmp_path / 'words'))
  rows, loads = tokenizers.of_directory(place).size + 8, 0
  content = (place / name).read_bytes()
  for case in range(CASES):
    (place / name).write_bytes(mutant(random.Random(case), content))
    start = time.process_time()
    try:
      loads += use(place, rows) is not None
    except ValueError as error:
      assert '\n' not in str(error) and len(str(error)) < 1500, case
    assert time.process_time() - start < 5, case
  assert 0 < loads < CASES


WRONG = (None, 3, 'x', [3], {'a': 1}, True, .5, [[]])


@pytest.mark.parametrize('wrong', WRONG, ids=repr)
def test_entries_of_another_kind_say_nothing(wrong, json_words, pieces,
                                             tmp_path):
  for kind in (json_words, pieces):
    place = pathlib.Path(shutil.copytree(kind, tmp_path / kind.name))
    for template in (wrong, [wrong], [dict(name=wrong, template='y')],
                     [dict(name='default', template=wrong)]):
      write(place, tokenizer_config=dict(
          eos_token='</s>', chat_template=template, added_tokens_decoder=wrong,
          additional_special_tokens=wrong))
      found = tokenizers.of_directory(place)
      assert found.eos == 1 and found.template == (
          'x' if wrong == 'x' and template in (
              'x', [dict(name='default', template='x')]) else None)


def test_panics_of_the_library_are_one_line(json_words, tmp_path):
  place = pathlib.Path(shutil.copytree(json_words, tmp_path / 'words'))
  tree = json.loads((place / 'tokenizer.json').read_text())
  tree['post_processor']['special_tokens'] = {}
  write(place, tokenizer=tree)
  with pytest.raises(ValueError, match='tokenizer.json cannot|can be read'):
    tokenizers.of_directory(place)


def test_nested_or_torn_json_is_refused(json_words, tmp_path):
  place = pathlib.Path(shutil.copytree(json_words, tmp_path / 'words'))
  for content in ('[' * 10**5, '{"eos_token": "\\ud800"}', '{"a": 1'):
    (place / 'tokenizer_config.json').write_text(content)
    with pytest.raises(ValueError, match='tokenizer_config.json is not JSON'):
      tokenizers.of_directory(place)
