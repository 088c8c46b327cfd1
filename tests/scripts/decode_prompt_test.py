"""scripts/decode.py with decoder-only checkpoints, given by their path."""
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import checkpoints, decode, targets, warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import pairs, text, translate
from tests import ggufs
from tests.scripts.cli_test import check, drive

pytest.importorskip('tokenizers')
PROMPT = 'the end and the end and'


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  return ggufs.make(tmp_path_factory.mktemp('gguf') / 'x.gguf', 'llama',
                    ggufs.byte_level())


@pytest.fixture(scope='module')
def drafter(path):
  return ggufs.make(path.with_name('y.gguf'), 'llama', ggufs.byte_level(),
                    seed=1)


def continued(path, length, temperature=0., seed=0, index=0):
  """What the compiled loop gives."""
  ours = checkpoints.load(path)
  tokens = ours.tokenizer.encode(PROMPT)
  spec = decode.GenSpecSample(ours.lm, null.Null(), 32 + length,
                              eos=ours.tokenizer.eos)
  state = spec(ours.lm.pack(ours.params), None,
               text.prefix_prompt([tokens], 32),
               decode.row_keys(seed, [index]), targets.Lossless(),
               warp.Warp(jnp.float32(temperature)))
  new = np.asarray(state.tokens[0, len(tokens):int(state.lengths[0])])[:length]
  return ours.tokenizer.decode(new)


def test_prompts_are_continued_by_any_drafter(path, drafter):
  common = [PROMPT, '--verifier', str(path), '--max_length', '20']
  results = drive('decode', [
      [*common, '--drafter', 'null'], [*common, '--drafter', 'ngram'],
      [*common, '--drafter', 'ngram', '--trace', '--gamma', '3'],
      [*common, '--drafter_dir', str(drafter)],
      [*common, '--drafter', 'ngram', '--temperature', '1', '--top_p', '.9',
       '--seed', '3', '--rule', 'Lossless'],
      [*common, '--drafter', 'ngram', '--chat']])
  assert [code for code, *_ in results] == [0] * 6, results
  outputs = [out for _, _, out, _ in results]
  assert outputs[0] == outputs[1] == outputs[3] == continued(path, 20) + '\n'
  assert outputs[2].endswith('\n' + outputs[1]) and '1/' in outputs[2]
  assert len({outputs[0], outputs[4], outputs[5]}) == 3


def test_no_more_than_max_length_and_nothing_behind_an_end(path):
  translator = translate.Translator(
      pairs.load(str(path), None),
      translate.Settings(drafter='ngram', max_length=7, temperature=1.))
  tokens = translator.encode(PROMPT)
  for index in range(5):
    steps = list(translator(tokens, index))
    assert sum(len(step.pieces) for step in steps) <= 7


def test_it_ends_at_each_of_the_ends(path, monkeypatch):
  pair = pairs.load(str(path), None)
  settings = translate.Settings(drafter='ngram', max_length=20)
  translator = translate.Translator(pair, settings)
  tokens = translator.encode(PROMPT)
  spelt = lambda: [piece.text for step in translator(tokens, 0)
                   for piece in step.pieces]
  whole = spelt()
  vocabulary = pair.vocabulary
  end = next(t for t in range(pair.verifier.lm.vocab_size)
             if vocabulary.piece(t) == whole[9])
  ends = (*vocabulary.ends, end)
  monkeypatch.setattr(type(vocabulary), 'ends', ends)
  assert spelt() == whole[:whole.index(whole[9]) + 1]


def test_prompts_are_refused_in_one_line(path, tmp_path):
  other = ggufs.byte_level()
  other['tokenizer.ggml.tokens'] = [
      {'a': 'b', 'b': 'a'}.get(x, x) for x in other['tokenizer.ggml.tokens']]
  other['tokenizer.ggml.merges'] = ['t h']
  swapped = ggufs.make(tmp_path / 'swapped.gguf', 'llama', other)
  words = ggufs.make(tmp_path / 'words.gguf', 'llama', ggufs.sentencepiece())
  mute = ggufs.make(tmp_path / 'mute.gguf')
  cut = tmp_path / 'cut.gguf'
  cut.write_bytes(path.read_bytes()[:-50])
  ngram = ['--drafter', 'ngram']
  check('decode', [
      (['a', '--verifier', str(path)], 'such as --drafter_dir; or take'),
      (['a', '--verifier', str(tmp_path), *ngram], 'is no checkpoint that'),
      (['a', '--verifier', str(mute), *ngram], 'holds no tokenizer'),
      (['a', '--verifier', str(cut), *ngram], 'damaged or cut off'),
      (['a', '--verifier', str(path), '--drafter_dir', str(swapped)], 'differ'),
      (['a', '--verifier', str(words), *ngram, '--chat'], 'no chat template'),
      (['a', '--chat'], '--chat needs --verifier'),
      (['a ' * 300, '--verifier', str(path), *ngram], 'takes at most 256'),
      ([PROMPT, '--verifier', str(path), *ngram, '--max_input_length', '2'],
       'takes at most 2')])
