"""GGUF files: what is written is what is read, or one clear line."""
import dataclasses
import random
import struct
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import checkpoints
from spec_cascades.checkpoints import gguf_config, gguf_header
from tests import ggufs
from tests.models import tiny

QUANTISED = [kind for kind in gguf_header.KINDS.values()
             if kind.name not in gguf_header.PLAIN]


@pytest.mark.parametrize('name', ggufs.LMS)
def test_every_architecture_arrives(tmp_path, name):
  lm, _ = ggufs.LMS[name]
  params = tiny.params_of(lm)
  path = ggufs.write(tmp_path / 'x.gguf', ggufs.metadata_of(name),
                     ggufs.tensors_of(name, params))
  found = checkpoints.load(path)
  assert found.lm == lm and found.tokenizer is None
  jax.tree.map(lambda got, want: np.testing.assert_allclose(
      got, want, rtol=0, atol=2e-7), found.params, params)


def test_a_factor_without_a_type_is_linear(tmp_path):
  """As llama.cpp reads it."""
  metadata = ggufs.metadata_of('qwen2', **{'qwen2.rope.scaling.factor': 4.})
  path = ggufs.write(tmp_path / 'x.gguf', metadata, ggufs.tensors_of(
      'qwen2', tiny.params_of(ggufs.LMS['qwen2'][0])))
  assert checkpoints.load(path).lm.config.rope.factor == 4.


@pytest.mark.parametrize('name', [n for n in ggufs.LMS if n != 'gemma'])
def test_logits_are_those_of_transformers(tmp_path, name):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  pytest.importorskip('gguf')
  pytest.importorskip('accelerate')
  # What transformers does not read has its defaults.
  metadata = ggufs.metadata_of(name, **{
      'gemma2.attn_logit_softcapping': 50.,
      'gemma2.final_logit_softcapping': 30.,
      'gemma3.rope.scaling.type': 'none'})
  tensors = ggufs.tensors_of(name, tiny.params_of(ggufs.LMS[name][0]))
  tensors.pop('rope_freqs.weight', None)
  path = ggufs.write(tmp_path / 'x.gguf', metadata, tensors)
  ours = checkpoints.load(path)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path, gguf_file=path.name, dtype=torch.float32,
      **({'head_dim': ours.lm.config.head_dim} if name == 'qwen3' else {})
      ).eval()
  if name.startswith('gemma'):
    # transformers takes 256, which is the width of published heads.
    for layer in theirs.model.layers:
      layer.self_attn.scaling = ours.lm.config.head_dim**-.5
  tokens = np.random.default_rng(1).integers(0, tiny.VOCAB, (2, 13))
  with torch.inference_mode():
    want = theirs(torch.tensor(tokens)).logits.numpy()
  got = tiny.forward(ours.lm, ours.params, None, jnp.asarray(tokens))
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize('kind, digits', [('F16', 2e-3), ('BF16', 2e-2)])
def test_half_precision_is_read(tmp_path, kind, digits):
  params = tiny.params_of(ggufs.LMS['qwen2'][0])
  path = ggufs.write(tmp_path / 'x.gguf', ggufs.metadata_of('qwen2'),
                     ggufs.tensors_of('qwen2', params, kind))
  jax.tree.map(lambda got, want: np.testing.assert_allclose(
      got, want, rtol=digits, atol=1e-6), checkpoints.load(path).params, params)


@pytest.mark.parametrize('kind', QUANTISED, ids=lambda kind: kind.name)
def test_quantised_tensors_are_read_a_few_rows_at_a_time(tmp_path, monkeypatch,
                                                         kind):
  gguf = pytest.importorskip('gguf')
  rng, shape = np.random.default_rng(0), (5, 512)
  content = rng.integers(0, 100, shape[0] * 512 // kind.size * kind.nbytes)
  content = content.astype(np.uint8).tobytes()
  path = ggufs.write(tmp_path / 'x.gguf', {}, {'x': (kind.name, shape,
                                                     content)})
  tensor = gguf_header.read(path).tensors['x']
  number = gguf.GGMLQuantizationType[kind.name]
  assert gguf.GGML_QUANT_SIZES[number] == (kind.size, kind.nbytes)
  whole = gguf.quants.dequantize(
      np.frombuffer(content, np.uint8).reshape(5, -1), number)
  assert len(np.unique(whole, axis=0)) == 5    # no row stands for another
  read, dequantise = [], gguf.quants.dequantize
  monkeypatch.setattr(gguf.quants, 'dequantize', lambda raw, kind: (
      read.append(len(raw)), dequantise(raw, kind))[1])
  same = np.testing.assert_array_equal
  order = np.array([3, 0, 4, 2, 1])
  for rows, want in ((gguf_header.rows(tensor), whole),
                     (gguf_header.rows(tensor, order), whole[order])):
    read.clear()
    same(rows[1:3], want[1:3])
    same(rows[3:, 5:40], want[3:, 5:40])
    same(rows[2], want[2])
    same(rows.T[:, 1:3], want.T[:, 1:3])
    same(rows.T[5:40, 3:], want.T[5:40, 3:])
    same(rows[1:4][1:2], want[2:3])
    assert read == [2, 2, 1, 2, 2, 1]          # rows that were dequantised
    same(rows, want)
    same(rows.T, want.T)
    same(rows.T.T, want)


def test_blocks_are_what_their_formats_say(tmp_path):
  """By hand: a scale times numbers of 8 bits, or of 4 bits less 8."""
  pytest.importorskip('gguf')
  scales, rng = np.array([.5, -2., .25], np.float16), np.random.default_rng(0)
  eight = rng.integers(-128, 128, (3, 32)).astype(np.int8)
  four = rng.integers(0, 16, (3, 32)).astype(np.uint8)
  halves = four[:, :16] | four[:, 16:] << 4    # low bits: the first half
  joined = lambda numbers: b''.join(
      scale.tobytes() + row.tobytes() for scale, row in zip(scales, numbers))
  path = ggufs.write(tmp_path / 'x.gguf', {}, {
      'eight': ('Q8_0', (3, 32), joined(eight)),
      'four': ('Q4_0', (3, 32), joined(halves))})
  tensors = gguf_header.read(path).tensors
  column = scales.astype(np.float32)[:, None]
  np.testing.assert_array_equal(gguf_header.rows(tensors['eight'])[1:],
                                (column * eight)[1:])
  np.testing.assert_array_equal(
      gguf_header.rows(tensors['four'], np.array([2, 0, 1]))[:2],
      (column * (four.astype(np.int8) - 8))[[2, 0]])


def test_without_the_library_only_plain_numbers_are_read(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'gguf', None)
  path = ggufs.make(tmp_path / 'x.gguf')
  checkpoints.load(path)
  tensors = ggufs.tensors_of('llama', tiny.params_of(ggufs.LMS['llama'][0]))
  tensors['spare'] = 'Q8_0', (1, 32), b'\0' * 34
  ggufs.write(path, ggufs.metadata_of('llama'), tensors)
  with pytest.raises(ValueError, match='pip install --no-deps -r requirem'):
    checkpoints.load(path)


def test_what_is_not_in_the_file_is_known():
  """Published sizes; their metadata hold no more than this."""
  says = {'block_count': 46, 'embedding_length': 4608, 'head_count': 32}
  family = gguf_config.FAMILIES['gemma2']
  assert family.odd_depth == says['block_count']
  assert (says['embedding_length'] / says['head_count'])**-.5 == 144**-.5


@pytest.mark.parametrize('name, changes, what', [
    ('llama', {'general.architecture': 'mamba'}, "'mamba'; allowed: llama"),
    ('llama', {'general.architecture': 7}, "architecture '7'; allowed"),
    ('llama', {'general.architecture': ['llama']}, 'allowed: llama'),
    ('llama', {'llama.odd': ['a']}, 'nothing is known of this key'),
    ('llama', {'llama.odd': [0, 1]}, 'nothing is known of this key'),
    ('llama', {'llama.rope.scaling.type': [1, 2]}, 'allowed: none, linear'),
    ('llama', {'split.count': [1, 1]}, 'one part of several'),
    ('llama', {'tokenizer.ggml.tokens': 3}, '0 tokens and 31 embeddings'),
    ('llama', {'llama.expert_count': 8}, 'nothing is known of this key'),
    ('llama', {'llama.block_count': 3}, 'fewer layers in the file'),
    ('llama', {'llama.block_count': 1}, r'left over: blk\.1'),
    ('llama', {'llama.block_count': 2**32 - 1}, 'a whole number is needed'),
    ('llama', {'llama.block_count': 'two'}, 'a whole number is needed'),
    ('llama', {'llama.embedding_length': 32}, 'the tensors say 16'),
    ('llama', {'llama.vocab_size': 99}, 'the tensors say 31'),
    ('llama', {'llama.feed_forward_length': 7}, 'the tensors say 24'),
    ('llama', {'llama.attention.head_count': 8}, 'attn_q has 24 rows'),
    ('llama', {'llama.attention.head_count_kv': 4}, 'attn_k has 12 rows'),
    ('llama', {'llama.attention.value_length': 8}, 'the tensors say 6'),
    ('llama', {'llama.rope.dimension_count': 3}, 'the tensors say 6'),
    ('llama', {'llama.rope.scaling.type': 'yarn'}, 'allowed: none, linear'),
    ('llama', {'llama.rope.freq_base': -1.}, 'a positive number is needed'),
    ('llama', {'llama.attention.sliding_window': 9}, 'are not supported'),
    ('gemma3', {'gemma3.attention.sliding_window': 0}, 'must be windows'),
    ('gemma3', {'gemma3.attention.sliding_window_pattern': [True]}, '7 are'),
    ('llama', {'split.count': 2}, 'one part of several'),
    ('llama', {'tokenizer.ggml.tokens': ['a'] * 99}, '99 tokens and 31 emb'),
    ('llama', {'tokenizer.ggml.tokens': ['a'] * 31}, 'kind .None. are not')])
def test_what_is_unknown_or_contradicts_itself_is_refused(
    tmp_path, name, changes, what):
  path = ggufs.make(tmp_path / 'x.gguf', name, None, **changes)
  with pytest.raises(ValueError, match=what) as error:
    checkpoints.load(path)
  assert '\n' not in str(error.value)


def test_windows_may_be_listed(tmp_path):
  pattern = [True, False, True, True, True, False, False]
  path = ggufs.make(tmp_path / 'x.gguf', 'gemma3', **{
      'gemma3.attention.sliding_window_pattern': pattern,
      'gemma3.rope.freq_base_swa': 5000.})
  config = checkpoints.source_of(path).lm.config
  assert config.windows == tuple(3 * local for local in pattern)
  assert config.local_rope.base == 5000


def test_other_frequencies_are_refused(tmp_path):
  lm, _ = ggufs.LMS['llama']
  tensors = ggufs.tensors_of('llama', tiny.params_of(lm))
  tensors['rope_freqs.weight'] = ggufs.encode(np.array([1., 2., 8.]), 'F32')
  path = ggufs.write(tmp_path / 'x.gguf', ggufs.metadata_of('llama'), tensors)
  with pytest.raises(ValueError, match='rope_freqs.weight'):
    checkpoints.load(path)


def test_damage_is_one_line(tmp_path):
  path = ggufs.make(tmp_path / 'x.gguf')
  whole = path.read_bytes()
  for content, what in (
      (whole[:-40], 'beyond the end'), (whole[:300], 'items in byte'),
      (whole[:5], 'items in byte'), (whole[:4], 'items in byte'),
      (whole[:4] + struct.pack('<I', 1) + whole[8:], 'GGUF version 1;'),
      (whole[:4] + struct.pack('>I', 3) + whole[8:], r'\(big-endian\?\)'),
      (whole[:8] + struct.pack('<Q', 2**60) + whole[16:], 'announces'),
      (whole[:16] + struct.pack('<Q', 2**60) + whole[24:], 'announces'),
      (whole[:24] + struct.pack('<Q', 2**63) + whole[32:], 'announces'),
      (whole[:32] + b'\xff' + whole[33:], 'codec')):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=what) as error:
      checkpoints.load(path)
    assert '\n' not in str(error.value)
  path.write_bytes(b'GGU')
  with pytest.raises(ValueError, match='no checkpoint that is known'):
    checkpoints.load(path)
  ggufs.write(path, {}, {'x': (16, (2,), b'1234')})
  with pytest.raises(ValueError, match='x is quantised in way 16'):
    checkpoints.load(path)


def test_arrays_of_arrays_and_twins_are_refused(tmp_path):
  path = ggufs.write(tmp_path / 'x.gguf', {'a': [1], 'b': [1]}, {})
  content = path.read_bytes()
  path.write_bytes(content.replace(struct.pack('<II', 9, 5),
                                   struct.pack('<II', 9, 9)))
  with pytest.raises(ValueError, match='array of type 9'):
    checkpoints.load(path)
  path.write_bytes(content.replace(b'b', b'a'))
  with pytest.raises(ValueError, match='says a twice'):
    checkpoints.load(path)


def test_fuzzed_headers_are_refused_or_load(tmp_path):
  """200 of them: one line or a model, soon, and nothing else."""
  path, slowest, loaded = tmp_path / 'x.gguf', 0., 0
  says = [ggufs.byte_level(), ggufs.sentencepiece()]
  wholes = [ggufs.make(path, name, tok).read_bytes()
            for name, tok in zip(('llama', 'gemma3'), says)]
  for seed in range(200):
    rng = random.Random(seed)
    content = bytearray(wholes[seed % 2])
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
      at = rng.randrange(4, len(content) // 2)
      content[at] = rng.choice([rng.randrange(256), 0, 255,
                                content[at] ^ 1 << rng.randrange(8)])
    if rng.random() < .2:
      del content[rng.randrange(len(content)):]
    path.write_bytes(content)
    start = time.process_time()
    try:
      found = checkpoints.load(path)
      found.tokenizer and found.tokenizer.encode('the end and  more')
      loaded += 1
    except ValueError as error:
      assert '\n' not in str(error)
    slowest = max(slowest, time.process_time() - start)
  assert slowest < 20 and 0 < loaded < 200


def test_configurations_differ_only_where_the_file_does(tmp_path):
  base = checkpoints.source_of(ggufs.make(tmp_path / 'a.gguf')).lm.config
  other = checkpoints.source_of(ggufs.make(tmp_path / 'b.gguf', **{
      'llama.attention.layer_norm_rms_epsilon': 1e-6})).lm.config
  assert other == dataclasses.replace(base, norm_epsilon=1e-6)
