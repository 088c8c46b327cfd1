"""Every writer goes there and back; a conversion appears whole or not."""
import collections
import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

import besides
import tinypair

from spec_cascades import checkpoints
from spec_cascades.checkpoints import (
    converting, hub, hub_config, hub_writing, loading, native, tensors)
from spec_cascades.data import tokenizers
from spec_cascades.data import words
from spec_cascades.evaluation import examples, pairs
from spec_cascades.models import gemma
from spec_cascades.models import positions
from tests import ggufs
from tests.checkpoints import hubs
from tests.models import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
HUBS = {name: lm for name, lm in tiny.LMS.items() if name != 't5_lent'}
# The others of a family differ in numbers only.
FAST = ('gemma2', 'gemma3', 'llama3', 'qwen2_windows', 't5_1_0', 't5_1_1')


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return tinypair.make_vocabulary(tmp_path_factory.mktemp('vocabulary'))


@pytest.mark.parametrize('name', [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in hubs.FAMILIES])
def test_theirs_to_ours_to_theirs_to_ours(name, tmp_path):
  theirs = hubs.save(name, tmp_path / 'theirs')
  assert converting.convert(theirs, tmp_path / 'ours') == 'float32'
  converting.convert(tmp_path / 'ours', tmp_path / 'back', to='huggingface',
                     shard_bytes=2**12)
  converting.convert(tmp_path / 'back', tmp_path / 'again')
  made = hubs.read(tmp_path / 'back')
  np.testing.assert_array_equal(hubs.logits(made),
                                hubs.logits(hubs.model(name)))
  first, last = (tmp_path / x / 'model.safetensors' for x in ('ours', 'again'))
  assert first.read_bytes() == last.read_bytes()
  same(checkpoints.load(tmp_path / 'ours').params,
       checkpoints.load(theirs).params)


@pytest.mark.parametrize('name', HUBS)
def test_models_of_ours_survive_both_formats(name, tmp_path):
  lm = tiny.LMS[name]
  if name == 'qwen2':                    # heads of 6 do not make up 16
    lm = gemma.Gemma(dataclasses.replace(lm.config, head_dim=4))
  params = tiny.params_of(lm)
  native.save(tmp_path / 'ours', lm, params, None, 'float32')
  loaded, again, words = checkpoints.load(tmp_path / 'ours')
  assert loaded == lm and hash(loaded) == hash(lm) and words is None
  same(params, again)
  for to in converting.FORMATS:
    converting.convert(tmp_path / 'ours', tmp_path / to, to=to,
                       dtype='bfloat16')
    found, narrow, _ = checkpoints.load(tmp_path / to, dtype='bfloat16')
    same(jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), narrow)
    assert hub_writing.describe(found.config) == hub_writing.describe(lm.config)
  assert converting.convert(tmp_path / 'huggingface', tmp_path / 'x'
                            ) == 'bfloat16'      # it stays what it was


def test_tied_weights_are_written_once_and_shards_are_indexed(tmp_path):
  hubs.save('smollm2', tmp_path / 'a')
  converting.convert(tmp_path / 'a', tmp_path / 'b', to='huggingface',
                     shard_bytes=2000)
  index = json.loads((tmp_path / 'b/model.safetensors.index.json').read_text())
  found = {name for path in (tmp_path / 'b').glob('*.safetensors')
           for name in tensors.read(path)}
  assert found == set(index['weight_map']) and 'lm_head.weight' not in found
  sizes = [path.stat().st_size for path in (tmp_path / 'b').glob('*.saf*')]
  assert index['metadata']['total_size'] < sum(sizes) and len(sizes) > 3


def test_what_hugging_face_lacks_is_refused():
  tied = tiny.LMS['gemma2'].config
  for change, what in (
      (dict(windows=(3, 4)), 'one window'), (dict(post_norms=False), 'gemma'),
      (dict(local_rope=positions.Rope(7.)), 'local_rope='),
      (dict(qkv_bias=True), 'has no qkv_bias=True'),
      (dict(mlp_activation='relu'), 'has no mlp_activation=relu; allowed: gel'),
      (dict(mlp_activation='linear'), 'has no mlp_activation=linear'),
      (dict(norm_offset=0.), 'has no norm_offset=0.0')):
    with pytest.raises(ValueError, match=what):
      hub_writing.describe(dataclasses.replace(tied, **change))
  with pytest.raises(ValueError, match='no encoder of other sizes than'):
    hub_writing.describe(tiny.LMS['t5_lent'].config)
  for name, lm in HUBS.items():
    told = hub_writing.describe(lm.config)
    assert hub_config.model(told).vocab_size == tiny.VOCAB, name


@pytest.mark.parametrize('name, family', [
    ('gemma1', 'gemma'), ('llama3', 'llama'), ('gemma2', None),
    ('gemma3', None), ('qwen2', None)])
def test_windows_are_written_only_for_families_that_heed_them(name, family):
  config = tiny.LMS[name].config
  local = config.local_rope if name == 'gemma3' else config.rope
  config = dataclasses.replace(config, windows=(3, 0), local_rope=local)
  if family is None:
    again = hub_config.model(hub_writing.describe(config)).config
    assert [again.window(i) for i in range(2)] == [3, 0]
  else:
    with pytest.raises(ValueError, match=f'=3 is not possible for a .{family}'
                       ) as error:
      hub_writing.describe(config)
    assert '\n' not in str(error.value)


def test_a_t5_keeps_its_vocabulary_in_both_directions(tmp_path, vocabulary):
  model = tinypair.write(tmp_path / 'a', vocabulary, 0)
  converting.convert(model, tmp_path / 'b', to='huggingface')
  converting.convert(tmp_path / 'b', tmp_path / 'c')
  text = pathlib.Path(vocabulary).read_bytes()
  assert (tmp_path / 'b/spiece.model').read_bytes() == text
  assert (tmp_path / 'c/sentencepiece.model').read_bytes() == text
  pair = pairs.load(str(model), str(tmp_path / 'c'))
  assert pair.vocabulary.size == tinypair.PIECES
  same(pair.verifier.checkpoint, pair.drafter.checkpoint)
  converting.convert(tmp_path / 'b', tmp_path / 'd', vocabulary=vocabulary)
  assert (tmp_path / 'd/sentencepiece.model').read_bytes() == text


def test_a_drafter_may_predict_the_frequent_tokens_of_a_file(
    tmp_path, vocabulary):
  model = tinypair.write(tmp_path / 'a', vocabulary, 0)
  words = pairs.load(str(model), None).vocabulary
  (tmp_path / 'texts').write_text('to the end\nto the\nto\n')
  draft = converting.Draft(3, tmp_path / 'texts')
  converting.convert(model, tmp_path / 'b', draft=draft)
  tokens = checkpoints.load(tmp_path / 'b').params['tokens'].tolist()
  counts = collections.Counter(words.encode('to the end')
                               + words.encode('to the') + words.encode('to'))
  assert 1 in tokens and len(tokens) == 3 == len(set(tokens))
  assert min(counts[t] for t in tokens) >= sorted(counts.values())[-3]
  converting.convert(tmp_path / 'b', tmp_path / 'c')   # it stays one
  assert checkpoints.load(tmp_path / 'c').params['tokens'].tolist() == tokens
  for path, given, what in (
      (tmp_path / 'b', None, 'predicts 3 tokens only'),
      (model, draft, 'predicts 3 tokens only')):
    with pytest.raises(ValueError, match=what):
      converting.convert(path, tmp_path / 'd', to='huggingface', draft=given)
  with pytest.raises(ValueError, match='draft vocabulary of 0'):
    converting.convert(model, tmp_path / 'd', draft=converting.Draft(
        0, tmp_path / 'texts'))
  assert not (tmp_path / 'd').exists()


def test_what_is_beside_a_model_is_kept_or_refused(tmp_path, vocabulary):
  model = besides.write_whole(tmp_path / 'a', vocabulary, 'heads')
  (tmp_path / 'texts').write_text('to the end\n')
  draft = converting.Draft(4, tmp_path / 'texts')
  for given, what in (
      (dict(to='huggingface'), 'has heads .* huggingface has no place for'),
      (dict(draft=draft), 'has heads .* without a draft vocabulary')):
    with pytest.raises(ValueError, match=what) as error:
      converting.convert(model, tmp_path / 'b', **given)
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'b').exists()
  converting.convert(model, tmp_path / 'b')
  want, params = besides.made('heads')
  found = checkpoints.load(tmp_path / 'b')
  assert found.lm == want
  same(params, found.params)


def test_other_tokenizers_are_kept_in_their_files(tmp_path):
  hubs.save('smollm2', tmp_path / 'a')
  hubs.words(tmp_path / 'a')
  converting.convert(tmp_path / 'a', tmp_path / 'b')
  converting.convert(tmp_path / 'b', tmp_path / 'c', to='huggingface')
  want, *others = (checkpoints.load(tmp_path / x).tokenizer for x in 'abc')
  assert want.size == tiny.VOCAB and all(x == want for x in others)
  # One that comes inside another file gets files of its own.
  for name, content in converting.files_of(want).items():
    (tmp_path / 'c' / name).write_bytes(content)
  again = checkpoints.load(tmp_path / 'c').tokenizer
  assert (again.eos, again.words, again.before) == (1, want.words, ())


def test_a_gguf_keeps_its_own_tokenizer_whatever_is_beside_it(tmp_path):
  pytest.importorskip('tokenizers')
  (tmp_path / 'a').mkdir()
  path = ggufs.make(tmp_path / 'a/x.gguf', 'llama', ggufs.byte_level())
  want = checkpoints.source_of(path).tokenizer()
  for content in (None, '{'):                  # another tokenizer, and none
    hubs.words(tmp_path / 'a')
    if content:
      (tmp_path / 'a/tokenizer.json').write_text(content)
    for to in converting.FORMATS:
      place = tmp_path / f'{to} {content}'
      converting.convert(path, place, to=to)
      found = checkpoints.load(place).tokenizer
      assert (found.size, found.ends) == (want.size, want.ends)
      assert found.encode('the and in') == want.encode('the and in')


def test_sentinels_get_files_of_their_own(tmp_path, vocabulary):
  pathlib.Path(vocabulary).rename(tmp_path / 'spiece.model')
  pathlib.Path(vocabulary).write_bytes((tmp_path / 'spiece.model').read_bytes())
  (tmp_path / 'special_tokens_map.json').write_text(json.dumps(dict(
      additional_special_tokens=['<extra_id_0>', '<extra_id_1>'])))
  found = tokenizers.of_directory(tmp_path)
  (tmp_path / 'b').mkdir()
  for name, content in converting.files_of(found).items():
    (tmp_path / 'b' / name).write_bytes(content)
  again = tokenizers.of_directory(tmp_path / 'b')
  assert again == found and found.size == tinypair.PIECES + 2


def test_a_vocabulary_that_does_not_fit_is_refused_first(tmp_path, vocabulary):
  llama = hubs.save('smollm2', tmp_path / 'llama')
  t5 = tinypair.write(tmp_path / 't5', vocabulary, 0)
  junk, none = tmp_path / 'junk', tmp_path / 'none'
  junk.write_bytes(pathlib.Path('/etc/passwd').read_bytes())
  (tmp_path / 'empty').touch()
  shipped = pairs.SHIPPED / 'verifier' / native.VOCABULARY
  for path in (llama, t5):
    for given, what in (
        (junk, f'{junk} is not a SentencePiece model'),
        (tmp_path / 'empty', 'empty is not a SentencePiece model'),
        (shipped, '4096 tokens, but the model has'),
        (none, f'No vocabulary at {none}'), (tmp_path, 'No vocabulary at')):
      for to in converting.FORMATS:
        with pytest.raises(ValueError, match=what) as error:
          converting.convert(path, tmp_path / 'out', to=to, vocabulary=given)
        assert '\n' not in str(error.value)
        assert not (tmp_path / 'out').exists()


def test_a_damaged_model_beside_a_tokenizer_json_is_refused(tmp_path):
  hubs.save('t5_1_1', tmp_path / 'a')
  hubs.words(tmp_path / 'a')
  (tmp_path / 'a/spiece.model').write_bytes(b'x')
  checkpoints.load(tmp_path / 'a')             # which reads the former
  with pytest.raises(ValueError, match='spiece.model is not a SentencePiece'):
    converting.convert(tmp_path / 'a', tmp_path / 'b')


def test_a_given_vocabulary_is_read_as_what_it_is(tmp_path, vocabulary):
  """With T5's ids by a T5 only."""
  model = tmp_path / 'llama.model'
  texts = [side for x in examples.read() for side in (x.source, x.reference)]
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts), model_prefix=str(tmp_path / 'llama'),
      vocab_size=tinypair.PIECES, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
      minloglevel=2)
  t5 = tinypair.write(tmp_path / 't5', vocabulary, 0)
  with pytest.raises(ValueError, match='texts end with token 2; allowed: 1'):
    converting.convert(t5, tmp_path / 'x', vocabulary=model)
  lm = gemma.Gemma(dataclasses.replace(tiny.LMS['llama3'].config,
                                       vocab_size=tinypair.PIECES))
  native.save(tmp_path / 'a', lm, tiny.params_of(lm), None, 'float32')
  draft = converting.Draft(4, tmp_path / 'texts')
  (tmp_path / 'texts').write_text('to the end\n')
  for to, given in (('native', draft), ('huggingface', None)):
    converting.convert(tmp_path / 'a', tmp_path / to, to=to, vocabulary=model,
                       draft=given)
    found = checkpoints.load(tmp_path / to).tokenizer
    assert (found.before, found.behind, found.ends) == ((1,), (), (2,))
    assert found.decode(found.encode('to the end')) == 'to the end'
  # Under the name that T5's have, it is still none.
  (tmp_path / 'huggingface/tokenizer.model').rename(
      tmp_path / 'huggingface' / native.VOCABULARY)
  converting.convert(tmp_path / 'huggingface', tmp_path / 'again')
  again = checkpoints.load(tmp_path / 'again').tokenizer
  assert (again.before, again.ends) == ((1,), (2,))


def test_the_longest_input_is_kept(tmp_path, vocabulary):
  model = tinypair.write(tmp_path / 'a', vocabulary, 0, max_input_length=64)
  converting.convert(model, tmp_path / 'b')
  assert pairs.load(str(tmp_path / 'b'), None).max_input_length == 64
  converting.convert(model, tmp_path / 'c', to='huggingface')
  converting.convert(tmp_path / 'c', tmp_path / 'd')
  for place in 'cd':
    assert pairs.load(str(tmp_path / place), None).max_input_length == 64
  config = tmp_path / 'c' / hub.CONFIG
  told = json.loads(config.read_text())
  del told[hub.LONGEST]                        # as theirs, which do not say
  config.write_text(json.dumps(told))
  pair = pairs.load(str(tmp_path / 'c'), None)
  assert pair.max_input_length == loading.DEFAULT_MAX_INPUT
  config.write_text(json.dumps(told | {hub.LONGEST: 0}))
  with pytest.raises(ValueError, match='max_input_length=0; allowed: 1 to'):
    checkpoints.load(tmp_path / 'c')


@pytest.mark.parametrize('says', [
    ggufs.sentencepiece(), ggufs.byte_level(),
    ggufs.byte_level() | {'tokenizer.ggml.add_bos_token': True,
                          'tokenizer.ggml.add_eos_token': True}],
                         ids=['sentencepiece', 'bytes', 'bytes_and_ends'])
def test_a_tokenizers_own_files_make_the_same_one(tmp_path, says):
  pytest.importorskip('tokenizers')
  path = ggufs.make(tmp_path / 'x.gguf', 'llama', says)
  want = checkpoints.source_of(path).tokenizer()
  if isinstance(want.words, words.SentencePiece):
    want = dataclasses.replace(want, words=dataclasses.replace(
        want.words, added=('<one>', '<two>')))
  want = dataclasses.replace(want, turn_end=want.turn_end or 4,
                             other_ends=(7, 5))
  (tmp_path / 'words').mkdir()
  for name, content in converting.files_of(want).items():
    (tmp_path / 'words' / name).write_bytes(content)
  found = tokenizers.of_directory(tmp_path / 'words')
  kept = lambda x: {f.name: getattr(x, f.name) for f in dataclasses.fields(x)
                    if f.name != 'words'}
  assert kept(found) == kept(want) and found.size == want.size
  for line in ('the and in', ' the <one>', 'Größe'):
    assert found.encode(line) == want.encode(line)
    assert found.decode(found.bare(line)) == want.decode(want.bare(line))


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
  hubs.save('smollm2', tmp_path / 'a')
  source = checkpoints.source_of(tmp_path / 'a')
  name, leaf = sorted(source.leaves.items())[-1]
  def fail():
    raise loading.Broken('the disk is gone')
  bad = dict(source.leaves) | {name: dataclasses.replace(leaf, read=fail)}
  monkeypatch.setattr(converting.checkpoints, 'source_of',
                      lambda path: dataclasses.replace(source, leaves=bad))
  for to in converting.FORMATS:
    with pytest.raises(ValueError, match='the disk is gone'):
      converting.convert(tmp_path / 'a', tmp_path / 'b', to=to)
  assert [x.name for x in tmp_path.iterdir()] == ['a']


def test_the_script_refuses_in_one_line(tmp_path, vocabulary):
  hubs.save('smollm2', tmp_path / 'a')
  cut = hubs.save('smollm2', tmp_path / 'cut') / 'model.safetensors'
  cut.write_bytes(cut.read_bytes()[:-100])
  driver = ("import sys; sys.path.insert(0, 'scripts'); import _cli, json\n"
            'import convert_checkpoint as script\n'
            'for args in json.load(sys.stdin):\n'
            '  sys.argv = ["convert_checkpoint.py", *args]\n'
            '  try: _cli.run(script.main)\n'
            '  except SystemExit as stop: print(stop.code, flush=True)\n')
  here, out = str(tmp_path / 'a'), str(tmp_path / 'out')
  words, draft = str(tmp_path / 'b'), ['--draft_vocabulary', '9', '--texts']
  tinypair.write(words, vocabulary, 0)
  cases = [
      ([], 'required'), ([here], 'required'),
      ([str(tmp_path / 'no'), out], 'No checkpoint at'),
      ([str(tmp_path / 'cut'), out], 'cut off'),
      ([here, here], 'not an empty directory'),
      ([here, here + '/config.json'], 'not an empty directory'),
      ([here, out, '--to', 'gguf'], "'gguf'; allowed: native, huggingface"),
      ([here, out, '--dtype', 'int4'], "'int4'; allowed: bfloat16, float32"),
      ([here, out, '--shard_mib', '0'], 'allowed: 1 or more'),
      ([here, out, '--texts', 'x'], 'give both'),
      ([here, out, '--draft_vocabulary', '9', '--texts', 'x'], 'no tokenizer'),
      ([here, out, '--vocabulary', 'none.model'], 'No vocabulary at none.mod'),
      ([here, out, '--vocabulary', '/etc/passwd'], 'not a SentencePiece model'),
      ([words, out, *draft, 'no'], 'No texts at no; give a file'),
      ([words, out, *draft, '.'], 'No texts at .; give a file'),
      ([words, out, *draft, words + '/model.safetensors'],
       'model.safetensors is not UTF-8; give a file')]
  done = subprocess.run(
      [sys.executable, '-c', driver], cwd=ROOT, capture_output=True, text=True,
      input=json.dumps([args for args, _ in cases]), check=True)
  lines = done.stderr.splitlines()
  assert done.stdout.split() == ['2'] * len(cases) and len(lines) == len(cases)
  for line, (args, what) in zip(lines, cases):
    assert what in line and line.startswith('convert_checkpoint.py: '), args
  assert not pathlib.Path(out).exists()


def test_the_script_converts(tmp_path):
  hubs.save('smollm2', tmp_path / 'a')
  (tmp_path / 'b').mkdir()                     # empty: may be used
  done = subprocess.run(
      [sys.executable, 'scripts/convert_checkpoint.py', str(tmp_path / 'a'),
       str(tmp_path / 'b'), '--dtype', 'bfloat16'], cwd=ROOT,
      capture_output=True, text=True, check=True)
  assert done.stdout.startswith('wrote ') and 'bfloat16' in done.stdout
  assert '100%' in done.stderr and 'writing b' in done.stderr
  assert checkpoints.load(tmp_path / 'b').lm.vocab_size == tiny.VOCAB
