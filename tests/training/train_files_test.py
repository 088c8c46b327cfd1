"""What every file of gin/train and gin/compare configures can be made.

Models, losses and optimisers are made of shapes alone; texts are a few lines.
"""
import dataclasses
import functools
import inspect
import json
import pathlib
import re
import sys

import gin
import jax
import pytest

from spec_cascades import checkpoints
from spec_cascades.evaluation import pairs
from spec_cascades.models import heads
from spec_cascades.models import reduced
from spec_cascades.models import t5
from spec_cascades.training import checks
from spec_cascades.training import comparing
from spec_cascades.training import data
from spec_cascades.training import distill
from spec_cascades.training import divergences
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import start
from spec_cascades.training import train_step
from spec_cascades.training import trajectories
from tests import ggufs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402

FILES = sorted((ROOT / 'gin/train').glob('*.gin'))
# What others include, and what is for scripts/distill.py; all else is a run.
PARTS = ('debian_ende', 'debian_synopsis')
WRITERS = tuple(path.stem for path in FILES
                if '\ndistill.distill.' in path.read_text(encoding='utf-8'))
RUNS = [path.stem for path in FILES if path.stem not in PARTS + WRITERS]
GEMMA = ('finetune_decoder', 'gemma3_distill', 'gemma3_drafter')
PIECES = 265                           # of ggufs.byte_level()
SHIPPED = str(pairs.SHIPPED / 'drafter')
VERIFIER = 'spec_cascades/assets/debian_ende/verifier'


@pytest.fixture(autouse=True)
def clean(monkeypatch):
  """Paths of the files begin at the root."""
  monkeypatch.chdir(ROOT)
  yield
  gin.clear_config()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A line of every corpus that there is a file for; a small decoder."""
  directory = tmp_path_factory.mktemp('texts')
  states = [[0, [5, 6, 7, 8, 9]], [1, [6, 7, 8, 9, 1]]]
  line = {'en': 'Open it.', 'de': 'Mach auf.', 'document': 'Opens it.',
          'synopsis': 'opener', 'inputs': 'Open it.', 'targets': 'Mach auf.',
          trajectories.KEY: dict(tokens=[5, 6, 7, 1], states=states)}
  for split in data.SPLITS:
    (directory / f'{split}.jsonl').write_text(f'{json.dumps(line)}\n' * 3)
  return directory


def configure(name, folder, *bindings):
  """Reads a file; all that must be set is set, and vocabularies are here."""
  file = f'gin/{name if "/" in name else f"train/{name}"}.gin'
  text = (ROOT / file).read_text(encoding='utf-8')
  required = dict(CORPUS=str(folder), WEIGHTS=SHIPPED)
  if name in GEMMA:
    pytest.importorskip('tokenizers')
    required['WEIGHTS'] = str(gguf(folder))
  made = [f'{x} = {required[x]!r}' for x in
          re.findall(r'^(\w+) = %gin\.REQUIRED', text, re.MULTILINE)]
  if name == 'gemma3_drafter':         # of the decoder that is here
    made += [f'VOCAB_SIZE = {PIECES}', 'WORDS = 100']
  _cli.configure([file], made)
  words = 'text.Vocabulary.path'
  if words in gin.config_str():
    made.append(f'{words} = {SHIPPED + "/sentencepiece.model"!r}')
  _cli.configure([file], [*made, *bindings])


@functools.cache
def gguf(folder):
  return ggufs.make(folder / 'x.gguf', 'llama', ggufs.byte_level())


@functools.cache
def shapes_of(lm):
  return jax.eval_shape(lambda: lm.init_params(jax.random.key(0)))


@functools.cache
def sums_of(lm, teacher, objective, distillation, corpus):
  """The shapes of a loss and its sums on two lines."""
  update = train_step.Update(lm, None, teacher=teacher, objective=objective,
                             distillation=distillation)
  width, arrays = next(iter(corpus.bucketed('train').items()))
  batch, = data.chunks(arrays, 2, 2)
  return jax.eval_shape(update.loss, shapes_of(lm), batch,
                        teacher and shapes_of(teacher))


def made(name, folder, *bindings):
  """A run, checked as far as shapes say; what its loss sums."""
  configure(name, folder, *bindings)
  run = _cli.call(loop.Run)
  checks.check(run)
  shapes = shapes_of(run.lm)
  jax.eval_shape(loop.optimizer_of(run).init, shapes)
  for path in filter(None, (run.init_from, run.teacher)):
    if pathlib.Path(path).exists():    # others are made by other runs
      known = start.model(path)
      assert type(known) is type(plain(run.lm))
      assert known.vocab_size == run.lm.vocab_size
  teacher = run.teacher and plain(run.lm)
  texts = dataclasses.replace(run.corpus, directory=str(folder), more=(),
                              reader=None)
  return run, sums_of(run.lm, teacher, run.objective, run.distillation, texts)


def plain(lm):
  """The model itself, of one with heads or fewer words."""
  return lm.lm if isinstance(lm, heads.Beside) else reduced.whole(lm)


@pytest.mark.parametrize('name', RUNS)
def test_a_run_can_be_made(name, folder):
  run, (loss, sums) = made(name, folder)
  assert loss.shape == sums['tokens'].shape == ()
  assert ('acceptance' in sums or 'acceptance_1' in sums or
          name == 'drafter_boosted') == bool(run.teacher or run.objective)
  assert type(plain(run.lm)) is t5.T5 or 'gemma' in name or name in GEMMA
  assert run.model_dir.startswith(('~/.cache/spec_cascades/runs/', 'runs/'))


@pytest.mark.parametrize('name,before,other', [
    ('medusa_joint', VERIFIER, None), ('space', None, VERIFIER)])
def test_a_verifier_is_trained_near_what_it_was(name, before, other, folder):
  """Or on the texts alone; heads and masks have a rate of their own."""
  for teacher, more in ((before, ()), (other, (f'TEACHER = {other!r}',))):
    run, (_, sums) = made(name, folder, 'HEADS_RATE = 3.0', *more)
    assert run.rates == (('^heads/', 3.),) and run.teacher == teacher
    assert ('agreement_0' in sums) == bool(teacher)


def whole(name):
  """The text of a file, with what it includes."""
  text = (ROOT / f'gin/train/{name}.gin').read_text(encoding='utf-8')
  return ''.join([text, *map(whole, re.findall(
      r"^include 'gin/train/(\w+)\.gin'", text, re.MULTILINE))])


@pytest.mark.parametrize('name', RUNS)
def test_names_in_capitals_reach_the_run(name, folder):
  """Also those of a file that includes the one that uses them."""
  wanted = dict(STEPS=10, PEAK=.5, MODEL_DIR='runs/x')
  wanted = {x: to for x, to in wanted.items() if f'\n{x} =' in whole(name)}
  configure(name, folder, *(f'{x} = {to!r}' for x, to in wanted.items()))
  run = _cli.call(loop.Run)
  found = dict(STEPS=run.recipe.steps, PEAK=run.recipe.peak,
               MODEL_DIR=run.model_dir)
  assert {x: found[x] for x in wanted} == wanted


@pytest.mark.parametrize('name', WRITERS)
def test_a_corpus_can_be_begun(name, folder):
  """Arguments are those of the function, and the texts go with the model."""
  # Its own verifier, which gin/train/verifier.gin makes, has the vocabulary.
  configure(name, folder, *[f'VERIFIER = {SHIPPED!r}'] * (name == 'distill'))
  given = inspect.signature(distill.distill).bind(
      **gin.get_bindings(distill.distill)).arguments
  corpus = dataclasses.replace(given['corpus'], directory=str(folder))
  assert corpus.encode('Open it.') and corpus.bucketed('train')
  path = pathlib.Path(given['verifier'])
  lm = checkpoints.source_of(path).lm if path.exists() else start.model(SHIPPED)
  start.check(lm, corpus, 24)


@pytest.mark.parametrize('name,bindings,trained', [
    ('debian_ende', (), 0), ('losses', (), 18),
    ('losses', ("LOSSES = {'jsd': @jsd/losses.Distillation()}",
                "POLICIES = {'own': @drafter/comparing.Policy()}"), 1)])
def test_a_comparison_can_be_made(name, bindings, trained, folder):
  configure(f'compare/{name}', folder, *bindings)
  chosen = _cli.call(comparing.Comparison)
  assert chosen.examples == 500 and chosen.temperatures == (0., 1.)
  assert len(chosen.trained) == trained
  assert [*chosen.drafters, *chosen.trained][0] in (
      'shipped', 'ce-corpus', 'jsd-own')
  for run in chosen.trained.values():
    assert run.teacher == chosen.verifier
    checks.check(run)
  kinds = {(type(run.distillation.divergence), run.distillation.mix,
            run.on_policy.share, run.corpus.directory)
           for run in chosen.trained.values()}
  assert len(kinds) == trained


def test_how_a_student_is_distilled_is_said_by_names(folder):
  run, _ = made('finetune', folder, f'TEACHER = {SHIPPED!r}',
                'DIVERGENCE = @divergences.JSD()', 'divergences.JSD.b = 0.2',
                'MIX = 0.3', 'SHARE = 0.5')
  assert run.distillation == losses.Distillation(divergences.JSD(.2), .3)
  assert run.on_policy.share == .5


def test_every_file_is_a_run_or_part_of_one():
  assert {*RUNS, *WRITERS, *PARTS} == {path.stem for path in FILES}
  every = ''.join(path.read_text(encoding='utf-8') for path in FILES)
  for name in PARTS:
    assert f"include 'gin/train/{name}.gin'" in every
  assert set(WRITERS) == {'distill', 'gemma3_distill'}


@pytest.mark.parametrize('name,binding,match', [
    ('drafter', "loop.Recipe.metric = 'BLUE'", "Unknown quality 'BLUE'"),
    ('drafter', 'loop.Recipe.save_every = 0', 'save_every of Recipe is 0'),
    ('drafter', 'loop.Recipe.steps = 1.5', 'steps of Recipe is 1.5'),
    ('drafter', 'loop.Recipe.peak = -1.0', 'peak of Recipe is -1.0'),
    ('drafter', 'loop.Recipe.stepps = 9', 'stepps'),
    ('drafter', 't5.T5Config.vocab_size = 9', '4096 pieces, the model 9'),
    ('drafter', "loop.Run.freeze = ('x',)", "Nothing to freeze matches 'x'"),
    ('drafter', 'loop.Run.mesh = (999, 1)', 'which takes 999 devices'),
    ('drafter', "data.ParallelText.source = 'fr'", 'no text fr'),
    ('finetune', 'SHARE = 0.5', '0.5 and no teacher'),
    ('drafter_on_policy', 'SHARE = 2.0', 'share of OnPolicy is 2.0'),
    ('drafter_on_policy', 'loop.Run.teacher = None', '0.5 and no teacher'),
    ('cllm', 'GUESSES = 0', 'allowed: guesses above 0'),
    ('medusa', 'loop.Run.objective = None', 'Headed and objective=None')])
def test_a_wrong_name_or_value_fails(name, binding, match, folder):
  with pytest.raises(ValueError, match=match):
    made(name, folder, binding)
