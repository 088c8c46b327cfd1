"""Tokenizers: theirs and ours agree, and no character is ever torn."""
import json
import pickle
import random

import pytest
import sentencepiece
import tinypair

from spec_cascades.data import gguf_tokenizers, tokenizers, words
from spec_cascades.evaluation import asking, examples, stream
from tests import ggufs

LINES = [side for x in examples.read() for side in (x.source, x.reference)]
ODD = ['', ' ', '  two  spaces ', 'ß naïve 🦊🦊 日本語 x', 'a\n\n\n b\tc',
       "I'LL don't 12345 3.14", '\u2028', 'e\u0301']


def sentencepiece_metadata(tmp_path):
  """What a converter would write of a trained BPE with bytes."""
  path = tmp_path / 'x'
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(LINES), model_prefix=str(path), model_type='bpe',
      vocab_size=600, byte_fallback=True, normalization_rule_name='identity',
      user_defined_symbols=['\u2581\u2581', '\n\n'], pad_id=0, eos_id=1,
      bos_id=2, unk_id=3, remove_extra_whitespaces=False,
      add_dummy_prefix=False, minloglevel=2)
  model = sentencepiece.SentencePieceProcessor(model_file=f'{path}.model')
  own = range(len(model))
  mine = ('\u2581\u2581', '\n\n')
  kind = lambda t: (2 if model.is_unknown(t) else 3 if model.is_control(t) else
                    6 if model.is_byte(t) else
                    4 if model.id_to_piece(t) in mine else 1)
  types = [kind(t) for t in own]
  types[3] = 3                       # Gemma's file calls <unk> a control piece
  pieces = [model.id_to_piece(t) for t in own]
  return model, {
      **ggufs.sentencepiece(), 'tokenizer.ggml.token_type': types,
      'tokenizer.ggml.scores': [model.get_score(t) for t in own],
      'tokenizer.ggml.tokens': [p.replace('\u2581', ' ') if kind == 4 else p
                                for p, kind in zip(pieces, types)]}


def through_a_file(tmp_path, metadata):
  """A tokenizer from a file's metadata."""
  from spec_cascades.checkpoints import gguf_header
  path = ggufs.write(tmp_path / 'x.gguf', metadata, {})
  return gguf_tokenizers.tokenizer(gguf_header.read(path).metadata, str(path))


def byte_level(tmp_path):
  return through_a_file(tmp_path, ggufs.byte_level())


def test_a_rebuilt_sentencepiece_model_is_the_original(tmp_path):
  model, metadata = sentencepiece_metadata(tmp_path)
  found = through_a_file(tmp_path, metadata)
  assert found.before == (2,) and found.ends == (1,) and found.pad == 0
  for line in LINES + ODD:
    tokens = model.encode(line)
    assert found.encode(line) == [2, *tokens]
    assert found.decode([2, *tokens, 1, *tokens]) == model.decode(tokens)


@pytest.mark.parametrize('pre', gguf_tokenizers.SPLITS)
def test_a_rebuilt_byte_level_model_is_the_original(tmp_path, pre):
  library = pytest.importorskip('tokenizers')
  split = gguf_tokenizers.SPLITS[pre]
  theirs = library.Tokenizer(library.models.BPE(ignore_merges=split.whole))
  parts = [library.pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=split.pattern is None)]
  if split.pattern:
    parts.insert(0, library.pre_tokenizers.Split(
        library.Regex(split.pattern), 'isolated'))
  if split.digits:
    parts.insert(0, library.pre_tokenizers.Digits(individual_digits=True))
  if split.composed:
    theirs.normalizer = library.normalizers.NFC()
  theirs.pre_tokenizer = library.pre_tokenizers.Sequence(parts)
  theirs.decoder = library.decoders.ByteLevel()
  theirs.train_from_iterator(LINES, library.trainers.BpeTrainer(
      vocab_size=700, special_tokens=['<|end|>', '<|turn|>'],
      show_progress=False,
      initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet()))
  model = json.loads(theirs.to_str())['model']
  pieces = sorted(model['vocab'], key=model['vocab'].get)
  found = through_a_file(tmp_path, {
      **ggufs.byte_level(), 'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.tokens': pieces,
      'tokenizer.ggml.token_type': [3, 3] + [1] * (len(pieces) - 2),
      'tokenizer.ggml.merges': [' '.join(pair) for pair in model['merges']]})
  assert found.before == ((0,) if split.bos else ()) and found.ends == (0, 1)
  for line in LINES + ODD:
    tokens = theirs.encode(line).ids
    assert found.encode(line) == [*found.before, *tokens]
    assert found.decode(tokens) == theirs.decode(tokens)


def streamed(found, tokens):
  shown = stream.Detokenizer(found)
  return [shown.add(t) for t in tokens], shown.finish()


@pytest.fixture(params=['sentencepiece', 'byte_level'])
def any_kind(request, tmp_path):
  if request.param == 'byte_level':
    pytest.importorskip('tokenizers')
  return through_a_file(tmp_path, getattr(ggufs, request.param)())


def test_streams_never_tear_a_character(any_kind):
  for source in ODD + LINES[:20]:
    tokens = any_kind.encode(source)
    parts, rest = streamed(any_kind, tokens)
    assert ''.join(parts) == any_kind.decode(tokens) == source and not rest
    assert not any('\ufffd' in part for part in parts)


def test_streams_of_any_tokens_give_their_text(any_kind):
  rng, size = random.Random(0), any_kind.size
  raw = [t for t in range(size) if any_kind.raw(t)]
  for _ in range(300):
    pool = rng.choice([range(size + 3), raw, raw[128:]])
    tokens = rng.choices(pool, k=rng.randint(1, 12))
    parts, rest = streamed(any_kind, tokens)
    assert ''.join(parts) + rest == any_kind.decode(tokens)


def test_tokenizers_are_data(any_kind):
  again = pickle.loads(pickle.dumps(any_kind))
  assert again == any_kind and hash(again) == hash(any_kind)
  assert again.encode('the and') == any_kind.encode('the and')


def test_special_tokens_are_read_and_not_written(any_kind):
  name = any_kind.piece(any_kind.ends[-1])
  tokens = any_kind.encode(f'a{name}b')
  assert any_kind.ends[-1] in tokens
  assert any_kind.decode([t for t in tokens if t not in any_kind.ends]) == 'ab'


def test_chats_follow_the_template(tmp_path):
  pytest.importorskip('tokenizers')
  found = byte_level(tmp_path)
  chat = found.chat([dict(role='user', content='the')])
  assert chat == '<|turn|>user: the<|turn|>'
  assert found.encode(chat).count(1) == 2
  plain = through_a_file(tmp_path, ggufs.sentencepiece())
  with pytest.raises(ValueError, match='no chat template'):
    plain.chat([])


@pytest.mark.parametrize('template', [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception('not so') }}", '{% if %}', '{{ messages.append(1) }}',
    "{{ cycler.__init__.__globals__.os.system('true') }}", '{{ 1 / 0 }}',
    "{% include '/etc/passwd' %}", '{{ range(10 ** 9) | list }}'])
def test_templates_reach_nothing_else(template):
  pytest.importorskip('jinja2')
  with pytest.raises(ValueError, match='The chat template fails') as error:
    tokenizers.render(template, messages=[])
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('changes, what', [
    ({'model': 'bert'}, 'allowed: llama, gpt2'), ({'pre': 'falcon'}, 'falcon'),
    ({'eos_token_id': 9999}, 'eos_token_id is 9999'),
    ({'merges': ['a b']}, 'makes no token'), ({'merges': ['a']}, 'no token'),
    ({'token_type': [1]}, 'not a list of'), ({'merges': 3}, 'list of strings'),
    ({'add_bos_token': 3}, 'neither true nor false')])
def test_wrong_metadata_are_refused(tmp_path, changes, what):
  changes = {gguf_tokenizers.PREFIX + k: v for k, v in changes.items()}
  with pytest.raises(ValueError, match=what):
    through_a_file(tmp_path, {**ggufs.byte_level(), **changes})


def test_a_damaged_sentencepiece_model_is_refused(tmp_path):
  metadata = ggufs.sentencepiece()
  metadata['tokenizer.ggml.tokens'] = ['x'] * len(
      metadata['tokenizer.ggml.tokens'])
  with pytest.raises(ValueError, match='not a SentencePiece model'):
    through_a_file(tmp_path, metadata)


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
  assert tokenizers.of_directory(tmp_path) is None


def test_t5s_directory(tmp_path):
  model = tinypair.make_vocabulary(tmp_path)
  model.rename(tmp_path / 'spiece.model')
  (tmp_path / 'special_tokens_map.json').write_text(json.dumps(dict(
      eos_token='</s>', pad_token='<pad>', additional_special_tokens=[
          f'<extra_id_{i}>' for i in range(3)])))
  found = tokenizers.of_directory(tmp_path)
  assert (found.before, found.behind, found.pad) == ((), (1,), 0)
  assert found.size == tinypair.PIECES + 3
  assert found.encode('<extra_id_0>')[0] == tinypair.PIECES + 2
  assert found.decode(found.encode('Open the file.')) == 'Open the file.'
  (tmp_path / 'spiece.model').write_bytes(b'\0\1\2')
  with pytest.raises(ValueError, match='not a SentencePiece model'):
    tokenizers.of_directory(tmp_path)


def their_tokenizer(tmp_path, decoder, **model):
  """A directory with a trained tokenizer.json that puts <s> first."""
  library = pytest.importorskip('tokenizers')
  made = library.Tokenizer(library.models.BPE(**model))
  if decoder == 'fallback':
    made.normalizer = library.normalizers.Replace(' ', '\u2581')
    made.decoder = library.decoders.Sequence([
        library.decoders.Replace('\u2581', ' '),
        library.decoders.ByteFallback(), library.decoders.Fuse()])
  else:
    made.pre_tokenizer = library.pre_tokenizers.Metaspace()
    made.decoder = library.decoders.Metaspace()
  tokens = ['<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256))]
  made.train_from_iterator(LINES, library.trainers.BpeTrainer(
      vocab_size=800, special_tokens=tokens, show_progress=False))
  blob = json.loads(made.to_str())
  blob['added_tokens'] = blob['added_tokens'][:2]
  blob['model']['byte_fallback'] = True
  made = library.Tokenizer.from_str(json.dumps(blob))
  made.post_processor = library.processors.TemplateProcessing(
      '<s> $A', special_tokens=[('<s>', 0)])
  made.save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(dict(
      bos_token='<s>', eos_token=dict(content='</s>'), model_max_length=512,
      chat_template=[dict(name='default', template='{{ bos_token }}hi')])))
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [1, 9]}')
  return made


@pytest.mark.parametrize('decoder', ['fallback', 'metaspace'])
def test_a_tokenizer_json(tmp_path, decoder):
  theirs = their_tokenizer(tmp_path, decoder)
  found = tokenizers.of_directory(tmp_path)
  assert (found.before, found.behind, found.ends) == ((0,), (), (1, 9))
  assert found.context == 512 and found.encode(found.chat([]))[:1] == [0]
  for line in LINES + ODD:
    tokens = theirs.encode(line).ids
    assert found.encode(line) == tokens
    # Its Metaspace spells bytes out, which SentencePiece does not.
    want = theirs.decode(tokens)
    assert found.decode(tokens) == (
        line if decoder == 'metaspace' and '<0x' in want else want)
    parts, rest = streamed(found, tokens)
    assert ''.join(parts) + rest == found.decode(tokens)
  (tmp_path / 'tokenizer.json').write_text('{"model": 3}')
  with pytest.raises(ValueError, match='not a tokenizer.json that can be read'):
    tokenizers.of_directory(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text('{')
  with pytest.raises(ValueError, match='is not JSON'):
    tokenizers.of_directory(tmp_path)


def test_every_end_is_kept(tmp_path):
  """Llama 3.1 has three; what ends a turn is the first that is no `eos`."""
  their_tokenizer(tmp_path, 'metaspace')
  (tmp_path / 'generation_config.json').write_text(
      '{"eos_token_id": [9, 1, 12, 9, 15, -1, 99999, "x"]}')
  found = tokenizers.of_directory(tmp_path)
  assert (found.eos, found.turn_end, found.ends) == (1, 9, (1, 12, 15, 9))
  tokens = found.encode('the file')
  whole = found.decode(tokens)
  for end in found.ends:
    assert whole and found.decode([*tokens, end, *tokens]) == whole
    assert found.raw(end) == b''
  assert found.raw(13) == b'\x0b'              # which ends nothing


@pytest.mark.parametrize('template,turn_end', [
    ('{{ x }}</s>', None), ('<0x00>{{ x }}', 2), ('{{ eos_token }}', None),
    ('{{ x }}<0x00></s>', None), ('<0x00>{{ eos_token }}', 2), ('x', 9)])
def test_a_turn_ends_with_what_the_template_spells(
    tmp_path, template, turn_end):
  """Qwen's and Llama's with `eos` itself, beside other ends; Gemma's don't."""
  their_tokenizer(tmp_path, 'metaspace')
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(dict(
      bos_token='<s>', eos_token='</s>', chat_template=template)))
  (tmp_path / 'generation_config.json').write_text(
      '{"eos_token_id": [1, 9, 2]}')
  found = tokenizers.of_directory(tmp_path)
  assert found.piece(2) == '<0x00>' and found.turn_end == turn_end
  assert set(found.ends) == {1, 9, 2} and found.ends[0] == 1
  want = 1 if turn_end is None else turn_end
  assert asking.Asking(chat=True).end_token(found) == want
  assert asking.Asking().end_token(found) == 1


@pytest.mark.parametrize('template,turn_end', [
    (None, 4), ('<end_of_turn>', 4), ('{{ x }}<eos>', None)])
def test_a_turns_end_is_known_by_its_spelling(tmp_path, template, turn_end):
  """As converters leave out which token it is."""
  says = ggufs.sentencepiece()
  says['tokenizer.ggml.tokens'][4] = '<end_of_turn>'
  if template:
    says['tokenizer.chat_template'] = template
  assert through_a_file(tmp_path, says).turn_end == turn_end
  says['tokenizer.ggml.eot_token_id'] = 3
  assert through_a_file(tmp_path, says).turn_end == 3


def test_byte_letters_are_a_bijection():
  assert sorted(words.BYTES.values()) == list(range(256))
  assert words.byte_letters()[ord(' ')] == 'Ġ' and words.BYTES['Ċ'] == 10
