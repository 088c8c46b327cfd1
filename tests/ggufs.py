"""Small GGUF files, written byte by byte: no library needed."""
import dataclasses
import struct

from flax import traverse_util
import numpy as np

from spec_cascades.checkpoints import gguf_config, gguf_file, gguf_header
from spec_cascades.data import words
from spec_cascades.models import gemma
from spec_cascades.models import positions
from tests.models import tiny

KINDS = {kind.name: number for number, kind in gguf_header.KINDS.items()}
_change = lambda name, **changes: gemma.Gemma(
    dataclasses.replace(tiny.LMS[name].config, **changes))
# One model of each architecture, and what only its metadata say.
LMS = dict(
    llama=(_change('llama3', rope=positions.Rope(5e5, 8., 8192)), {}),
    qwen2=(_change('qwen2', emb_dim=24), {}),
    qwen3=(_change('qwen2', qkv_bias=False, qk_norm=True), {}),
    gemma=(tiny.LMS['gemma1'], {}),
    gemma2=(_change('gemma2', query_scale=None), {}),
    gemma3=(_change('gemma3', num_layers=7, windows=(3,) * 5 + (0,)),
            {'rope.scaling.type': 'linear', 'rope.scaling.factor': 8.}))


def write(path, metadata, tensors, *, version=3, align=32):
  """Tensors are pairs of a kind's name and bytes with their shape."""
  head = [gguf_header.MAGIC, struct.pack('<IQQ', version, len(tensors),
                                         len(metadata))]
  head += [_string(name) + _value(value) for name, value in metadata.items()]
  data = b''
  for name, (kind, shape, content) in tensors.items():
    data += b'\0' * (-len(data) % align)
    head.append(_string(name) + struct.pack(
        f'<I{len(shape)}QIQ', len(shape), *shape[::-1], KINDS.get(kind, kind),
        len(data)))
    data += content
  head = b''.join(head)
  path.write_bytes(head + b'\0' * (-len(head) % align) + data)
  return path


def _string(text):
  return struct.pack('<Q', len(text.encode())) + text.encode()


def _value(value):
  """A type's number and the value."""
  if isinstance(value, list):
    number, code = {str: (8, ''), bool: (7, '?'), int: (5, 'i'),
                    float: (6, 'f')}[type(value[0])]
    items = (b''.join(map(_string, value)) if number == 8
             else struct.pack(f'<{len(value)}{code}', *value))
    return struct.pack('<IIQ', 9, number, len(value)) + items
  number, code = {str: (8, ''), bool: (7, '?'), int: (4, 'I'),
                  float: (6, 'f')}[type(value)]
  return struct.pack('<I', number) + (
      _string(value) if number == 8 else struct.pack(f'<{code}', value))


def metadata_of(architecture, **more):
  """Metadata of one of `LMS`."""
  lm, extra = LMS[architecture]
  config = lm.config
  says = {'context_length': 256, 'block_count': config.num_layers,
          'embedding_length': config.emb_dim,
          'feed_forward_length': config.mlp_dim,
          'attention.head_count': config.num_heads,
          'attention.head_count_kv': config.num_kv_heads,
          'attention.key_length': config.head_dim,
          'attention.layer_norm_rms_epsilon': config.norm_epsilon,
          'vocab_size': config.vocab_size, 'rope.freq_base': config.rope.base,
          **extra}
  if architecture == 'llama':
    says['rope.dimension_count'] = config.head_dim
  if config.windows[0]:
    says['attention.sliding_window'] = config.windows[0]
  if config.attention_soft_cap:
    says |= {'attn_logit_softcapping': config.attention_soft_cap,
             'final_logit_softcapping': config.logit_soft_cap}
  return {'general.architecture': architecture,
          **{f'{architecture}.{k}': v for k, v in says.items()}, **more}


def tensors_of(architecture, params, kind='F32', vocab=None):
  """Tensors of one of `LMS`, as the converters of llama.cpp store them."""
  config = LMS[architecture][0].config
  family = gguf_config.FAMILIES[architecture]
  flat, out = traverse_util.flatten_dict(params, sep='/'), {}
  for ours, theirs in gguf_file._names(config, family):
    array = np.asarray(flat[ours])
    array = array.T if ours.endswith('kernel') else array
    if ours.endswith('scale'):
      array = array + np.float32(config.norm_offset)
    for name, heads in dict(query=config.num_heads,
                            key=config.num_kv_heads).items():
      if architecture == 'llama' and name in ours:
        halves = array.reshape(heads, 2, -1, array.shape[-1])
        array = halves.swapaxes(1, 2).reshape(array.shape)
    if vocab and theirs in ('token_embd.weight', 'output.weight'):
      rounds = np.arange(vocab)[:, None] // len(array)      # lest rows be equal
      array = np.resize(array, (vocab, array.shape[1])) * (1 - .05 * rounds)
    out[theirs] = encode(array, kind if array.ndim > 1 else 'F32')
  rope = config.rope
  if rope.trained_length:
    divided = positions.Rope(rope.base).frequencies(config.head_dim)
    divided = divided / rope.frequencies(config.head_dim)
    out['rope_freqs.weight'] = encode(divided, 'F32')
  return out


def encode(array, kind):
  """An array as plain numbers."""
  array = np.ascontiguousarray(array, np.float32)
  if kind == 'F32':
    content = array.tobytes()
  elif kind == 'F16':
    content = array.astype(np.float16).tobytes()
  else:
    content = (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()
  return kind, array.shape, content


def byte_level():
  """Metadata of a small byte-level BPE."""
  letters = list(words.BYTES)
  merges = ['t h', 'th e', '\u0120 the', 'i n', 'a n', 'an d', '\u0120 and']
  tokens = ['<|end|>', '<|turn|>', *letters,
            *(pair.replace(' ', '') for pair in merges)]
  return {'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'smollm',
          'tokenizer.ggml.tokens': tokens, 'tokenizer.ggml.merges': merges,
          'tokenizer.ggml.token_type': [3, 3] + [1] * (len(tokens) - 2),
          'tokenizer.ggml.bos_token_id': 0, 'tokenizer.ggml.eos_token_id': 0,
          'tokenizer.ggml.eot_token_id': 1, 'tokenizer.chat_template':
          '{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}'
          '{% endfor %}<|turn|>'}


def sentencepiece():
  """Metadata of a small SentencePiece BPE with user-defined pieces."""
  pieces = ['\u2581a', 'in', '\u2581the', 'the', 'th', 'an', '\u2581', 'and',
            *'abcdefghijklmnopqrstuvwxyz']
  mine = ['  ', '\n\n']
  tokens = ['<pad>', '<eos>', '<bos>', '<unk>', '<turn>',
            *(f'<0x{i:02X}>' for i in range(256)), *mine, *pieces]
  types = [3, 3, 3, 3, 3] + [6] * 256 + [4] * len(mine) + [1] * len(pieces)
  scores = [0.] * (261 + len(mine)) + [-float(i) for i in range(len(pieces))]
  return {'tokenizer.ggml.model': 'llama', 'tokenizer.ggml.tokens': tokens,
          'tokenizer.ggml.scores': scores, 'tokenizer.ggml.token_type': types,
          'tokenizer.ggml.bos_token_id': 2, 'tokenizer.ggml.eos_token_id': 1,
          'tokenizer.ggml.unknown_token_id': 3,
          'tokenizer.ggml.padding_token_id': 0,
          'tokenizer.ggml.add_bos_token': True,
          'tokenizer.ggml.add_space_prefix': False}


def make(path, architecture='llama', says=None, seed=0, **more):
  """A file of random weights; `says` are a tokenizer's metadata, if any."""
  vocab = len(says['tokenizer.ggml.tokens']) if says else None
  if vocab:
    more = {f'{architecture}.vocab_size': vocab, **more}
  params = tiny.params_of(LMS[architecture][0], seed)
  return write(path, metadata_of(architecture, **(says or {}), **more),
               tensors_of(architecture, params, vocab=vocab))
