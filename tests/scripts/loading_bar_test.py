"""Scripts that read models show how far they are, if it takes a while."""
import io
import pathlib
import sys

import gin
import pytest

from tests.checkpoints import loading_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402
import decode  # noqa: E402
import evaluate  # noqa: E402
import sweep  # noqa: E402

from spec_cascades.evaluation import evaluate as evaluate_lib  # noqa: E402


class Stream(io.StringIO):
  """Standard error, in a terminal or not."""

  def __init__(self, terminal):
    super().__init__()
    self.isatty = lambda: terminal


@pytest.mark.parametrize('terminal,seconds,shown', [
    (True, 0, False), (True, 2, True), (False, 2, False), (False, 20, True)])
def test_a_bar_is_shown_for_what_takes_a_while(
    terminal, seconds, shown, monkeypatch):
  stream = Stream(terminal)
  monkeypatch.setattr(sys, 'stderr', stream)
  with _cli.loading_bar()(total=8_000_000, unit='B', unit_scale=True,
                          desc='loading x') as bar:
    clock = bar._time
    bar._time = lambda: clock() + seconds
    bar.update(2_000_000)
    during = stream.getvalue()
  assert ('loading x:  25%' in during and '2.00M/8.00M [' in during) == shown
  assert bool(stream.getvalue()) == shown


@pytest.fixture
def bars(monkeypatch):
  """Of the models that a script reads."""
  monkeypatch.setattr(_cli, 'loading_bar', lambda: loading_test.Bar)
  del loading_test.Bar.made[:]
  yield loading_test.Bar.made
  gin.clear_config()


def test_decode_shows_both_models(pair_dir, bars):
  paths = [str(pair_dir / name) for name in ('verifier', 'drafter')]
  flags = decode._flags(['x', '--verifier', paths[0], '--drafter_dir', paths[1],
                         '--dtype', 'bfloat16'])
  pair = decode._models(flags, decode._mesh(flags))
  assert [bar.done == bar.total > 0 for bar in bars] == [True] * 2
  assert pair.verifier.lm.config.dtype == 'bfloat16'


def test_sweeps_show_both_models(pair_dir, bars, tmp_path):
  run = sweep.checked(['gin/sweeps/quickstart.gin'], [
      f"OUTPUT_DIR = '{tmp_path}'", 'EXAMPLES = 2', 'BUCKETS = ((80, 20),)',
      f"sweep.Sweep.verifier = '{pair_dir / 'verifier'}'",
      f"sweep.Sweep.drafter = '{pair_dir / 'drafter'}'",
      "sweep.Sweep.dtype = 'bfloat16'"])
  assert [bar.done == bar.total > 0 for bar in bars] == [True] * 2
  assert run.inputs['dtype'] == 'bfloat16'
  assert run.pair.drafter.lm.config.dtype == 'bfloat16'


def test_evaluations_show_both_models(bars, monkeypatch):
  """What it reads first; the rest is in tests/evaluation/evaluate_test.py."""
  class Read(Exception):
    pass

  def stopped(chosen, loading):
    assert loading is loading_test.Bar and chosen.dtype == 'float32'
    raise Read

  monkeypatch.setattr(evaluate_lib, 'Run', stopped)
  with pytest.raises(Read):
    evaluate.main(['--gin_file=gin/evaluate/debian_ende.gin'])
