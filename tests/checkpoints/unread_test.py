"""What is not read says why, and the command that it names works."""
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import tinypair

from spec_cascades import checkpoints
from spec_cascades.checkpoints import unread
from tests.checkpoints import hubs

# As published: before version 5, with a head of its own.
PUBLISHED = dict(
    t5_1_1=dict(architectures=['T5ForConditionalGeneration'],
                scale_decoder_outputs=..., tie_word_embeddings=False,
                transformers_version='4.30.0'),
    llama3=dict(architectures=['LlamaForCausalLM']))


def pickled(name, place, **changes):
  """A directory whose weights are a pickle."""
  torch = pytest.importorskip('torch')
  place.mkdir()
  hubs.model(name).config.save_pretrained(place)
  hubs.edit(place, **changes)
  torch.save(hubs.model(name).state_dict(), place / 'pytorch_model.bin')
  return place


def refusal(path):
  with pytest.raises(ValueError) as error:
    checkpoints.load(path)
  assert '\n' not in str(error.value)
  return str(error.value)


def converted(path, tmp_path):
  """Runs the command that a refusal ends with."""
  command = refusal(path).partition(': python ')[2]
  subprocess.run(f'{sys.executable} {command}', shell=True, cwd=tmp_path,
                 capture_output=True, check=True)
  return tmp_path / 'converted'


def assert_same(path, name):
  lm, params, _ = checkpoints.load(path)
  np.testing.assert_allclose(hubs.ours(lm, params),
                             hubs.logits(hubs.model(name)), rtol=0, atol=1e-4)


def test_the_command_keeps_a_t5s_head_and_its_tokenizer(tmp_path):
  pytest.importorskip('tokenizers')
  torch = pytest.importorskip('torch')
  place = pickled('t5_1_1', tmp_path / "a 'model' of $HOME",
                  vocab_size=tinypair.PIECES, **PUBLISHED['t5_1_1'])
  state = torch.load(place / 'pytorch_model.bin', weights_only=True)
  for key, x in state.items():        # as many rows as the tokenizer has tokens
    if x.shape[0] == hubs.T5['vocab_size']:
      more = torch.zeros(tinypair.PIECES - len(x), x.shape[1])
      state[key] = torch.cat([x, more])
  torch.save(state, place / 'pytorch_model.bin')
  shutil.copy(tinypair.make_vocabulary(tmp_path), place / 'spiece.model')
  (place / 'tokenizer_config.json').write_text(json.dumps(dict(
      extra_ids=0, eos_token='</s>', pad_token='<pad>', unk_token='<unk>')))
  lm, params, words = checkpoints.load(converted(place, tmp_path))
  assert words.size == tinypair.PIECES
  assert words.decode(words.encode('Open the file.')) == 'Open the file.'
  assert words.encode('Open')[-1] == words.eos == 1
  np.testing.assert_allclose(
      hubs.ours(lm, params)[..., :hubs.T5['vocab_size']],
      hubs.logits(hubs.model('t5_1_1')), rtol=0, atol=1e-4)


def test_the_command_for_a_file_names_its_directory(tmp_path):
  place = pickled('llama3', tmp_path / 'llama', **PUBLISHED['llama3'])
  assert_same(converted(place / 'pytorch_model.bin', tmp_path), 'llama3')


@pytest.mark.parametrize('config, kind', [
    (dict(architectures=['T5ForConditionalGeneration'], model_type='t5'),
     'T5ForConditionalGeneration'),
    (dict(architectures=['T5Model'], model_type='t5'), 'AutoModelForSeq2SeqLM'),
    (dict(architectures=['T5WithLMHeadModel', 'x'], model_type='t5'),
     'AutoModelForSeq2SeqLM'),
    (dict(architectures='os.system', model_type='llama'),
     'AutoModelForCausalLM'),
    (dict(architectures=[], model_type='mt5'), 'AutoModelForSeq2SeqLM'),
    (dict(architectures=[['x']], model_type='gemma2'), 'AutoModelForCausalLM'),
    (dict(model_type='qwen2'), 'AutoModelForCausalLM')])
def test_only_classes_that_are_known_are_named(config, kind):
  assert unread.class_of(config) == kind


def test_a_head_that_was_lost_is_not_made_up(tmp_path):
  hubs.save('t5_1_1', tmp_path)
  arrays = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  del arrays['lm_head.weight']
  safetensors.numpy.save_file(arrays, tmp_path / 'model.safetensors')
  hubs.edit(tmp_path, architectures=['T5Model'], tie_word_embeddings=True)
  with pytest.raises(ValueError, match='the weights lack lm_head.weight'):
    checkpoints.load(tmp_path)


def test_what_cannot_be_converted_says_so(tmp_path):
  for name in ('pytorch_model.bin', 'other.pt'):
    (tmp_path / name).write_bytes(b'cos\nabort\n.')
  assert 'has no config.json' in refusal(tmp_path)
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  assert "model_type 'bert' is not supported" in refusal(tmp_path)
  (tmp_path / 'config.json').write_text('{')
  assert 'config.json is damaged' in refusal(tmp_path)
  (tmp_path / 'pytorch_model.bin').unlink()
  assert 'reads pytorch_model.bin only' in refusal(tmp_path / 'other.pt')


def test_missing_files_are_named(tmp_path):
  hubs.save('llama3', tmp_path)
  weights, config = tmp_path / 'model.safetensors', tmp_path / 'config.json'
  assert f'give its directory, {tmp_path}' in refusal(weights)
  content = config.read_bytes()
  config.unlink()
  for path in (tmp_path, weights):
    assert 'model.safetensors, but no config.json' in refusal(path)
  config.write_bytes(content)
  weights.rename(tmp_path / 'model-00001-of-00002.safetensors')
  assert 'nor model.safetensors.index.json' in refusal(tmp_path)
  (tmp_path / 'model-00001-of-00002.safetensors').unlink()
  assert 'config.json, but no model.safetensors' in refusal(tmp_path)
