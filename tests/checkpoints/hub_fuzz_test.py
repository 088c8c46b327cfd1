"""Damaged headers and configurations: a load or a ValueError, and at once."""
import copy
import json
import random
import time

import pytest

from spec_cascades import checkpoints
from spec_cascades.checkpoints import hub_writing, loading, native
from spec_cascades.models import gemma, t5
from tests.checkpoints import hubs
from tests.models import tiny

CASES = 200
VALUES = (None, True, False, -1, 0, 1, 2, 3, 7, 16, 2**24, 2**40, 10**30, .5,
          -1e308, 1e308, float('nan'), float('inf'), '', 'x', '16', [], {},
          [1], [-1, 2**70], [0, 0], {'a': 1}, 'F32', 'I64', 'default',
          'sliding_attention', ['full_attention'] * 2, 'gelu', 'llama', 'mt5')
LMS = {'gemma': gemma.Gemma(tiny.LMS['gemma3'].config),
       't5': t5.T5(tiny.LMS['t5_1_1'].config)}


def source(lm):
  flat = loading.traverse_util.flatten_dict(tiny.params_of(lm), sep='/')
  return loading.Source('x', lm, {
      name: loading.Leaf(x.shape, x.nbytes, lambda x=x: x, name)
      for name, x in flat.items()})


@pytest.fixture(scope='module', params=[
    (name, kind) for name in LMS for kind in ('hub', 'native')],
                ids=lambda x: '-'.join(x))
def whole(request, tmp_path_factory):
  """The two files of a small model of ours, in either format."""
  name, kind = request.param
  place = tmp_path_factory.mktemp('whole')
  write = hub_writing.write if kind == 'hub' else native.write
  extra = {} if kind == 'hub' else dict(words={})
  write(place, source(LMS[name]), 'float32', **extra)
  return place


def spots(tree, at=()):
  """Paths to all values of a JSON tree."""
  items = (tree.items() if isinstance(tree, dict) else
           enumerate(tree) if isinstance(tree, list) else ())
  for key, child in items:
    yield (*at, key)
    yield from spots(child, (*at, key))


def changed(rng, text):
  """JSON in which one or two values were replaced, moved or removed."""
  tree = json.loads(text)
  for _ in range(rng.choice((1, 1, 2))):
    *path, key = rng.choice(list(spots(tree)))
    place = tree
    for step in path:
      place = place[step]
    what = rng.random()
    if what < .15 and isinstance(place, dict):
      del place[key]
    elif what < .25 and isinstance(place, dict):
      place[rng.choice(('x', '', 'model.norm.weight'))] = place.pop(key)
    else:
      place[key] = copy.deepcopy(rng.choice(VALUES))
  return json.dumps(tree).encode()


def flipped(rng, raw):
  """Bytes of which a few were replaced, or the end was cut off."""
  out = bytearray(raw)
  for _ in range(rng.choice((1, 1, 3))):
    out[rng.randrange(len(out))] = rng.randrange(256)
  return bytes(out[:rng.randrange(len(out))] if rng.random() < .2 else out)


def mutated(rng, config, weights):
  """The two files, one of them damaged."""
  n = 8 + int.from_bytes(weights[:8], 'little')
  kind = rng.randrange(6)
  if kind == 0:
    return flipped(rng, config), weights
  if kind == 1:
    return b'[' * 10**5, weights
  if kind < 4:
    return changed(rng, config), weights
  if kind == 4:
    return config, flipped(rng, weights[:n]) + weights[n:]
  header = changed(rng, weights[8:n])
  return config, len(header).to_bytes(8, 'little') + header + weights[n:]


def test_damage_ends_in_a_load_or_in_one_line(whole, tmp_path):
  config = (whole / 'config.json').read_bytes()
  weights = (whole / 'model.safetensors').read_bytes()
  rng, loads = random.Random(0), 0
  for case in range(CASES // 2):
    for name, content in zip(('config.json', 'model.safetensors'),
                             mutated(rng, config, weights)):
      (tmp_path / name).write_bytes(content)
    start = time.process_time()
    try:
      checkpoints.load(tmp_path)
      loads += 1
    except ValueError as error:
      assert '\n' not in str(error) and len(str(error)) < 1500, case
    assert time.process_time() - start < 5, case
  assert 0 < loads < CASES / 4


def test_pieces_of_the_fuzzer_change_something():
  rng = random.Random(1)
  assert {changed(rng, '{"a": 1, "b": [2]}') for _ in range(9)} > set()
  assert flipped(rng, b'abcd') != b'abcd' and hubs.LONG
