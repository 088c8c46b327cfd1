"""What loading half a gigabyte takes: formats but Hugging Face's."""
import dataclasses

from flax import traverse_util
import numpy as np
import orbax.checkpoint as ocp
import pytest

from spec_cascades.checkpoints import (
    gguf_config, gguf_file, loading, native, orbax, t5x)
from spec_cascades.models import gemma, t5
from spec_cascades.training import saving
from tests import ggufs
from tests.checkpoints import hub_memory_test as hub, orbax_gemma_test
import tinypair

pytestmark = pytest.mark.slow

# 390 million weights.
T5 = t5.T5Config(vocab_size=32_128, emb_dim=1024, num_heads=16,
                 num_encoder_layers=12, num_decoder_layers=12, head_dim=64,
                 mlp_dim=2816, mlp_activations=('gelu', 'linear'),
                 logits_via_embedding=True)
# Its large arrays are 82 MB each.
WIDE_T5 = tinypair.config(512, 1, mlp_dim=40_000)
LLAMA, WIDE = hub.CONFIGS['llama'], hub.CONFIGS['wide']


def drawn(lm):
  """Random float32 parameters by name."""
  rng = np.random.default_rng(0)
  return {name: rng.standard_normal(shape, np.float32)
          for name, shape in loading.expected(lm).items()}


def write_gguf(place, monkeypatch, config=LLAMA):
  """Eight-bit blocks of 32 numbers behind their scale."""
  lm, rng, tensors = gemma.Gemma(config), np.random.default_rng(0), {}
  shapes = loading.expected(lm)
  family = gguf_config.FAMILIES['llama']
  for ours, theirs in gguf_file._names(config, family):
    shape = shapes[ours][::-1] if ours.endswith('kernel') else shapes[ours]
    if len(shape) == 1:
      tensors[theirs] = ggufs.encode(np.ones(shape), 'F32')
      continue
    blocks = rng.integers(-127, 128, (int(np.prod(shape)) // 32, 34), np.int8)
    blocks[:, :2] = np.float16([.01]).view(np.int8)
    tensors[theirs] = 'Q8_0', shape, blocks.tobytes()
  monkeypatch.setitem(ggufs.LMS, 'llama', (lm, {}))
  return ggufs.write(place / 'x.gguf', ggufs.metadata_of('llama'), tensors)


def nested(lm):
  """The same as a tree."""
  return traverse_util.unflatten_dict(drawn(lm), sep='/')


def write_t5x(place, _, config=T5):
  return t5x.save(place, nested(t5.T5(config)))


def write_gemma(place, _, config=WIDE):
  """As the Gemma library saves it."""
  lm = gemma.Gemma(config)
  tree = orbax_gemma_test.theirs(lm, nested(lm), transposed=True)
  path = orbax_gemma_test.save(place / 'model', tree)
  (place / 'config.json').write_text(orbax_gemma_test.describe(lm))
  return path


def write_run(place, _, config=WIDE_T5):
  """As the training loop saves it."""
  lm = t5.T5(config)
  words = tinypair.make_vocabulary(place).read_bytes()
  orbax.describe(place, lm, {native.VOCABULARY: words})
  state = dict(step=np.int32(3), params=nested(lm))
  with ocp.CheckpointManager(place / 'checkpoints') as saves:
    saves.save(3, args=saving.saved(state))
    saves.wait_until_finished()
  return place


@pytest.mark.parametrize('write,small', [
    (write_gguf, dataclasses.replace(hub.SMALL, emb_dim=32, mlp_dim=64,
                                     num_kv_heads=2, head_dim=32)),
    (write_t5x, dataclasses.replace(
        T5, vocab_size=128, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=8,
        num_encoder_layers=1, num_decoder_layers=1)),
    (write_run, tinypair.config(16, 1)),
    (write_gemma, dataclasses.replace(hub.SMALL, mlp_dim=24))])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_peak_memory_is_little_more_than_the_weights(
    write, small, dtype, tmp_path, monkeypatch):
  if write is write_gguf:
    pytest.importorskip('gguf')
  for name in ('small', 'large'):
    (tmp_path / name).mkdir()
  first = write(tmp_path / 'small', monkeypatch, small)
  path = write(tmp_path / 'large', monkeypatch)
  peak, size, seconds = hub.child(hub.MEASURE, first, path, dtype, '')
  print(f'\n{write.__name__} -> {dtype}: {size / 1e6:.0f} MB, peak '
        f'{peak / size:.3f}x, {seconds:.2f} s of CPU')
  assert size > 1.5e8 and peak <= hub.LIMIT * size
