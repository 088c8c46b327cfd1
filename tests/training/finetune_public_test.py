"""Training on the paper's data sets, read from disk with TFDS's features."""
import pathlib
import sys

import gin
import jax
import pytest

import publicdata
import tinypair
from spec_cascades.checkpoints import converting
from spec_cascades.evaluation import sources
from spec_cascades.models import t5
from spec_cascades.training import loop
from spec_cascades.training import seqio_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')
NAMES = ('gsm8k', 'squad_v2', 'wmt14_ende')


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """Data sets, and a T5 with its vocabulary."""
  pytest.importorskip('seqio')
  root = tmp_path_factory.mktemp('public')
  for name in NAMES:
    publicdata.prepare(name, root)
  words = tinypair.make_vocabulary(root)
  lm = t5.T5(tinypair.config(16, 1, vocab_size=512))
  converting.native.save(root / 'weights', lm, lm.init_params(
      jax.random.key(0)), words, 'float32')
  return root


@pytest.mark.parametrize('name', NAMES)
def test_lines_are_the_prompts_and_their_answers(prepared, name):
  from spec_cascades.data import public
  from spec_cascades.evaluation import text
  words = text.Vocabulary(str(prepared / 'weights/sentencepiece.model'))
  reader = seqio_lines.SeqioLines(
      sources.Public(name, data_dir=str(prepared)), vocabulary=words)
  want = [x.prompt for x in public.Texts(
      name, style='t5', split='train', tfds_data_dir=prepared)]
  got = sorted(reader('train'), key=lambda x: x[0])
  assert [x['inputs'] for _, x in got] == want and want
  assert all(x['targets'] for _, x in got)
  assert 'train' in reader.splits


def test_the_file_trains(prepared, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  bindings = [f'WEIGHTS = {str(prepared / "weights")!r}', 'STEPS = 2',
              f'DATA_DIR = {str(prepared)!r}', 'TOKENS_PER_BATCH = 96',
              f'MODEL_DIR = {str(tmp_path)!r}', 'BUCKETS = (48,)',
              'loop.Recipe.eval_sentences = 2', 'loop.Recipe.eval_batch = 2',
              'loop.Recipe.max_length = 4']
  _cli.configure(['gin/train/finetune_public.gin'], bindings)
  said = []
  try:
    loop.train(_cli.call(loop.Run), log=said.append)
  finally:
    gin.clear_config()
  assert any('step 2/2' in line for line in said)
  assert any('bleu' in line for line in said)


def test_a_data_set_without_validation_is_refused(
    prepared, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  _cli.configure(['gin/train/finetune_public.gin'], [
      f'WEIGHTS = {str(prepared / "weights")!r}', "DATASET = 'gsm8k'",
      f'DATA_DIR = {str(prepared)!r}', 'TOKENS_PER_BATCH = 96', 'CUT = 48',
      f'MODEL_DIR = {str(tmp_path / "run")!r}', 'BUCKETS = (48,)',
      'TARGET_WIDTH = 96'])
  try:
    with pytest.raises(ValueError, match=(
        'no split validation, on which it is evaluated; it has train, test')):
      loop.train(_cli.call(loop.Run), log=lambda line: None)
  finally:
    gin.clear_config()
  assert not (tmp_path / 'run').exists()


def test_what_is_not_prepared_is_said(tmp_path, monkeypatch, prepared):
  monkeypatch.chdir(ROOT)
  _cli.configure(['gin/train/finetune_public.gin'], [
      f'WEIGHTS = {str(prepared / "weights")!r}',
      f'DATA_DIR = {str(tmp_path)!r}'])
  try:
    with pytest.raises(ValueError, match='prepare_public.py wmt14_ende'):
      loop.train(_cli.call(loop.Run), log=lambda line: None)
  finally:
    gin.clear_config()
