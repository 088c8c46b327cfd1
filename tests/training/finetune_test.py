"""Training goes on from weights in any format, of any family."""
import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades.checkpoints import converting
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text
from spec_cascades.evaluation import translate
from spec_cascades.models import t5
from spec_cascades.training import data
from spec_cascades.training import distill
from spec_cascades.training import export
from spec_cascades.training import loop
from spec_cascades.training import quality
from spec_cascades.training import start
from spec_cascades.training import train_step
from tests import ggufs
from tests.models import tiny
from tests.scripts import cli_test

pytest.importorskip('tokenizers')
ROWS = 600                             # of a T5 with tinypair.PIECES pieces
WORDS = ('the', 'in', 'and', 'file', 'open', 'save')
FAMILY = dict(t5_hub='t5', llama_hub='gemma', gguf='gemma')


def write_corpus(directory):
  """Pairs of a few words: the answer is the first one twice."""
  for split, count in (('train', 48), ('validation', 6), ('test', 4)):
    lines = [dict(id=str(i), text=f'{WORDS[i % 6]} {WORDS[i // 6 % 6]} {i % 7}',
                  answer=f'{WORDS[i % 6]} {WORDS[i % 6]}')
             for i in range(count)]
    (directory / f'{split}.jsonl').write_text(
        '\n'.join(map(json.dumps, lines)), encoding='utf-8')


@pytest.fixture(scope='module')
def paths(tmp_path_factory):
  """Weights by kind, and a corpus."""
  root = tmp_path_factory.mktemp('weights')
  write_corpus(root)
  says = ggufs.byte_level() | {'tokenizer.ggml.add_bos_token': True}
  gguf = ggufs.make(root / 'x.gguf', 'llama', says)
  converting.convert(gguf, root / 'llama', to='huggingface')
  words = tinypair.make_vocabulary(root)
  lm = t5.T5(tinypair.config(16, 1, vocab_size=ROWS))
  params = lm.init_params(jax.random.key(0))
  converting.native.save(root / 'own', lm, params, words, 'float32')
  converting.convert(root / 'own', root / 't5', to='huggingface')
  return dict(t5_hub=str(root / 't5'), llama_hub=str(root / 'llama'),
              gguf=str(gguf), corpus=str(root), words=str(words),
              other=str(ggufs.make(root / 'y.gguf', 'llama',
                                   ggufs.sentencepiece())))


def run_of(paths, kind, model_dir, *, corpus=(), recipe=(), **changes):
  """What the gin files make of the weights of a kind."""
  path = paths[kind]
  encoder = FAMILY[kind] == 't5'
  texts = data.ParallelText(**dict(
      directory=paths['corpus'], vocabulary=start.vocabulary(path),
      source='text', target='answer',
      asking=asking.Asking('{source}' if encoder else 'Q: {source} A:'),
      answer='{target}' if encoder else ' {target}', buckets=(32,),
      target_width=24, tokens_per_batch=192, **dict(corpus)))
  numbers = loop.Recipe(**{**dict(
      steps=30, peak=.05, warmup=2, cooldown=5, log_every=5, save_every=10,
      eval_every=30, eval_sentences=4, eval_batch=2, max_length=9),
      **dict(recipe)})
  return loop.Run(**{**dict(lm=start.model(path), corpus=texts,
                            model_dir=str(model_dir), recipe=numbers,
                            init_from=path), **changes})


def quiet(line):
  del line


@pytest.fixture(scope='module', params=FAMILY)
def trained(request, paths, tmp_path_factory):
  """A finished run of each kind of weights, and what it said."""
  lines = []
  run = run_of(paths, request.param, tmp_path_factory.mktemp('run'))
  state = loop.train(run, log=lines.append)
  return run, state, lines


def figures(lines, name):
  return [float(x) for line in lines
          for x in re.findall(rf'\b{name} ([0-9.]+)', line)]


def test_the_loss_falls(trained):
  _, state, lines = trained
  losses, validation = figures(lines, 'loss'), figures(lines, 'validation_loss')
  assert losses[-1] < losses[0] - .5 and int(state.step) == 30
  assert validation[0] < losses[0] - .5 and len(figures(lines, 'bleu')) == 1


def test_the_run_and_its_export_decode_as_in_validation(trained, tmp_path):
  run, state, _ = trained
  found = checkpoints.load(run.model_dir)
  assert found.lm == run.lm
  jax.tree.map(np.testing.assert_array_equal, found.params, state.params)
  export.export(run, str(tmp_path / 'out'), dtype='float32', sentences=2,
                log=quiet)
  sources = [x['text'] for x in run.corpus.lines('validation')]
  want = quality.translate(run.lm, state.params, run.corpus, sources, width=32,
                           max_length=9, batch=4)
  assert any(want)
  pair = pairs.load(str(tmp_path / 'out'), None)
  decoder = translate.Translator(
      pair, translate.Settings(drafter='null', max_length=8))
  for source, output in zip(sources, want):
    asked = run.corpus.asking(pair.vocabulary, source)
    for words in (pair.vocabulary, found.tokenizer):
      assert words.encode(asked) == run.corpus.encode(source)
    whole = ''.join(x.text for x in decoder(decoder.encode(asked)))
    assert whole.removeprefix(run.corpus.answer[:-8]) == output


@pytest.mark.parametrize('trained', ['gguf'], indirect=True)
def test_a_run_that_was_cut_off_goes_on_bitwise(trained, paths, tmp_path):
  _, state, _ = trained
  run, lines = run_of(paths, 'gguf', tmp_path), []

  def stop(line):
    if line.startswith('step 15'):
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    loop.train(run, log=stop)
  again = loop.train(run, log=lines.append)
  assert lines[0] == 'resuming at step 10'
  jax.tree.map(np.testing.assert_array_equal, again.params, state.params)


def test_a_teacher_guides_a_decoder(paths, tmp_path):
  other = ggufs.make(tmp_path / 'y.gguf', 'llama', ggufs.byte_level(), seed=1)
  lines = []
  loop.train(run_of(paths, 'gguf', tmp_path / 'run', teacher=str(other)),
             log=lines.append)
  distance, agreement = figures(lines, 'loss'), figures(lines, 'agreement')
  assert distance[-1] < distance[0] / 2
  assert 0 <= agreement[0] < agreement[-1] <= 1


def test_a_decoder_writes_a_corpus(paths, tmp_path):
  run = run_of(paths, 'gguf', tmp_path)
  distill.distill(run.corpus, paths['gguf'], str(tmp_path / 'out'),
                  sentences=3, batch=2, log=quiet)
  lines = (tmp_path / 'out' / 'train.jsonl').read_text().splitlines()
  lm, params, _ = checkpoints.load(paths['gguf'])
  for line in map(json.loads, lines):
    width = next(w for w in run.corpus.buckets
                 if len(run.corpus.encode(line['text'])) <= w)
    assert [line['answer']] == quality.translate(
        lm, params, run.corpus, [line['text']], width=width,
        max_length=run.corpus.target_width + 1, batch=1)


def test_a_decoder_from_random_weights_reads_the_projects_own_pieces(
    paths, tmp_path):
  run = run_of(paths, 'gguf', tmp_path, recipe=dict(steps=2, eval_every=2))
  words = text.Vocabulary(paths['words'])
  run = dataclasses.replace(
      run, init_from=None, corpus=dataclasses.replace(
          run.corpus, vocabulary=words, asking=asking.Asking()),
      lm=dataclasses.replace(run.lm, config=dataclasses.replace(
          run.lm.config, vocab_size=tinypair.PIECES)))
  lines = []
  loop.train(run, log=lines.append)
  found = pairs.load(str(tmp_path), None)
  assert found.verifier.lm == run.lm and len(figures(lines, 'bleu')) == 1
  assert found.vocabulary.encode('the file') == run.corpus.encode('the file')


@pytest.fixture
def decoder_batch():
  """Random tokens, 0 among the targets, with padding that is not 0."""
  rng = np.random.default_rng(0)
  lengths, sizes = np.array([5, 2, 4]), np.array([1, 4, 2])
  targets = rng.integers(1, tiny.VOCAB, (3, 4))
  targets[1, 1] = 0
  return dict(
      inputs=rng.integers(1, tiny.VOCAB, (3, 5)), input_lengths=lengths,
      targets=targets,
      weights=(np.arange(4)[None] < sizes[:, None]).astype(np.float32))


def alone(lm, params, batch):
  """log p of the targets that count, a row at a time: one full forward."""
  for i, length in enumerate(batch['input_lengths']):
    targets = batch['targets'][i][batch['weights'][i] > 0]
    row = np.concatenate([batch['inputs'][i, :length], targets])[None]
    logits = np.asarray(tiny.forward(lm, params, None, jnp.asarray(row)))
    wide = logits[0, length - 1:-1].astype(np.float64)
    yield targets, wide - np.log(np.exp(wide).sum(-1, keepdims=True))


@pytest.mark.parametrize('name', ['gemma2', 'llama3'])
def test_a_decoders_losses_equal_those_of_its_full_forward(name, decoder_batch):
  lm = tiny.LMS[name]
  params, guide = tiny.params_of(lm), tiny.params_of(lm, 1)
  update = train_step.Update(lm, None)
  as_jax = jax.tree.map(jnp.asarray, decoder_batch)
  loss, sums = jax.jit(update.loss)(params, as_jax)
  student = list(alone(lm, params, decoder_batch))
  want = [-q[np.arange(len(t)), t] for t, q in student]
  assert float(sums['tokens']) == 7
  np.testing.assert_allclose(loss, np.concatenate(want).sum(), rtol=1e-5)
  update = train_step.Update(lm, None, teacher=lm)
  far, sums = jax.jit(update.loss)(params, as_jax, guide)
  q = np.concatenate([x for _, x in student])
  p = np.concatenate([x for _, x in alone(lm, guide, decoder_batch)])
  np.testing.assert_allclose(far, (np.exp(p) * (p - q)).sum(), rtol=1e-5)
  assert float(sums['agreement']) == (p.argmax(-1) == q.argmax(-1)).sum()
  np.testing.assert_allclose(
      sums['acceptance'], np.minimum(np.exp(p), np.exp(q)).sum(), rtol=1e-5)


def test_padding_and_prompts_carry_no_loss(decoder_batch):
  """Not even a gradient changes with what stands on padding."""
  lm = tiny.LMS['llama3']
  update = train_step.Update(lm, None)
  gradient = jax.jit(jax.grad(lambda *args: update.loss(*args)[0]))
  other = {name: x.copy() for name, x in decoder_batch.items()}
  beyond = np.arange(5)[None] >= other['input_lengths'][:, None]
  other['inputs'][beyond] = 7
  other['targets'][other['weights'] == 0] = 9
  params = tiny.params_of(lm)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
               gradient(params, decoder_batch), gradient(params, other))


model_of = lambda kind: lambda paths: start.model(paths[kind])
path_of = lambda kind: lambda paths: paths[kind]
REFUSED = [
    ('gguf', dict(cut=9), {}, 'cut=9 for a decoder-only'),
    ('gguf', dict(buckets=(240,)), {}, '264 tokens.*at most 256'),
    ('gguf', {}, dict(recipe=loop.Recipe(max_length=240)), '272 tokens'),
    ('gguf', {}, dict(init_from=path_of('t5_hub')), 'holds a T5, but .* Gemma'),
    ('t5_hub', {}, dict(init_from=path_of('gguf')), 'holds a Gemma, but .* T5'),
    ('t5_hub', {}, dict(teacher=path_of('gguf')), 'holds a Gemma, but .* T5'),
    ('gguf', {}, dict(teacher=path_of('other')), 'vocabularies of .* differ'),
    ('t5_hub', {}, dict(init_from='nowhere'), 'No checkpoint at'),
    ('t5_hub', {}, dict(lm=model_of('gguf')), '512 pieces, the model 265'),
    ('gguf', {}, dict(lm=object()), 'A object is no model'),
    ('t5_hub', dict(asking=lambda paths: asking.Asking(chat=True)), {},
     'no chat template'),
    ('t5_hub', dict(vocabulary=lambda paths: text.Vocabulary(paths['words'])),
     dict(lm=t5.T5(tinypair.config(16, 1, vocab_size=1100))), 'set vocab_size'),
    ('t5_hub', dict(directory='elsewhere'), {}, 'No corpus at'),
    ('t5_hub', dict(source='en'), {}, 'line 1 has no text en'),
    ('t5_hub', dict(tokens_per_batch=10**6), {}, 'bucket: 48 of 32')]


@pytest.mark.parametrize('kind,corpus,changes,what', REFUSED,
                         ids=[case[-1] for case in REFUSED])
def test_what_does_not_go_together_is_refused(
    paths, tmp_path, kind, corpus, changes, what):
  run = run_of(paths, kind, tmp_path / 'run')
  made = lambda given: {name: x(paths) if callable(x) else x
                        for name, x in given.items()}
  texts = dataclasses.replace(run.corpus, **made(corpus))
  run = dataclasses.replace(run, **{'corpus': texts, **made(changes)})
  with pytest.raises(ValueError, match=what) as error:
    loop.train(run, log=quiet)
  assert '\n' not in str(error.value)


def test_the_script_refuses_in_one_line(paths, tmp_path):
  def train(name, weights, *extra, corpus=paths['corpus']):
    return [f'--gin_file=gin/train/{name}.gin', f'--gin.WEIGHTS={weights}',
            f'--gin.CORPUS={corpus}', f'--gin.MODEL_DIR={tmp_path / "run"}',
            '--gin.SOURCE=text', '--gin.TARGET=answer', *extra]

  empty = tmp_path / 'empty'
  empty.mkdir()
  decoder, encoder = 'finetune_decoder', 'finetune'
  cli_test.check('train', [
      (['--gin_file=gin/train/finetune.gin'], 'must be set'),
      (train(encoder, 'nowhere'), 'No checkpoint at nowhere'),
      (train(encoder, empty), 'is no checkpoint that is known'),
      (train(encoder, paths['gguf']), 'is a Gemma, which has no encoder'),
      (train(decoder, paths['t5_hub']), 'is a T5; allowed here: a decoder'),
      (train(decoder, paths['gguf'], "--gin.CHANGES={'relative_buckets': 8}"),
       'is a Gemma, which has no relative_buckets'),
      (train(encoder, paths['t5_hub'], "--gin.CHANGES={'windows': (4,)}"),
       'is a T5, which has no windows'),
      (train(decoder, paths['gguf'], '--gin.ANSWER=x'), 'has to hold {target}'),
      (train(decoder, paths['gguf'], '--gin.TEMPLATE=x'), 'hold {source}'),
      (train(decoder, paths['gguf'], '--gin.BUCKETS=(8,)'), 'No batch of'),
      (train(decoder, paths['gguf'], '--gin.BUCKETS=(999,)'), 'at most 256'),
      (train(decoder, paths['gguf'], '--gin.data.ParallelText.cut=20'),
       'cut=20 for a decoder'),
      (train(encoder, paths['t5_hub'], '--gin.CHAT=True'), 'no chat template'),
      (train(encoder, paths['t5_hub'], corpus=empty), 'No corpus at')])
  assert not (tmp_path / 'run').exists()
