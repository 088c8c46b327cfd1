"""Pictures of training runs: every point that was measured is drawn."""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from spec_cascades.training import curves
from spec_cascades.training import progress

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def runs(tmp_path):
  for name, lines in (('verifier', 20), ('drafter', 10)):
    notes = [dict(step=50 * i, loss=5 / i, tokens_per_second=300., time=9.)
             for i in range(1, lines + 1)]
    notes += [dict(step=500, validation_loss=2., bleu=30., time=9.)]
    (tmp_path / name).mkdir()
    (tmp_path / name / curves.METRICS).write_text(
        '\n'.join(map(json.dumps, notes)))
  return tmp_path


def test_a_panel_a_metric_and_a_line_a_run(runs):
  found = {x: curves.read(runs / x) for x in ('verifier', 'drafter')}
  losses, bleu = curves.draw(found).axes
  lines = {line.get_label(): line.get_xydata() for line in losses.get_lines()}
  assert set(lines) == {'verifier', 'drafter', 'verifier, validation_loss',
                        'drafter, validation_loss'}
  np.testing.assert_allclose(lines['drafter'], found['drafter']['loss'])
  assert lines['verifier, validation_loss'].tolist() == [[500, 2]]
  assert bleu.get_ylabel() == 'bleu' and len(bleu.get_lines()) == 2


def test_what_is_compared_is_in_one_panel_and_no_panel_is_empty():
  line = [(1, 2.)]
  runs = dict(one=dict(loss=line, acceptance=line, validation_acceptance=line,
                       tokens_per_call_T0=line, predicted_T0=line, bleu=line))
  assert list(map(len, curves.panels(runs).values())) == [1, 2, 2, 1]
  shown = [axis for axis in curves.draw(runs).axes if axis.get_visible()]
  assert [len(axis.get_lines()) for axis in shown] == [1, 2, 2, 1]


def test_a_run_without_a_metric_has_no_line_there(runs):
  found = {x: curves.read(runs / x) for x in ('verifier', 'drafter')}
  del found['drafter']['bleu']
  _, bleu = curves.draw(found).axes
  assert [x.get_label() for x in bleu.get_lines()] == ['verifier']


def test_what_a_killed_run_did_again_is_drawn_once(tmp_path):
  """Its last line may be cut off; the run that goes on leaves that out."""
  path = tmp_path / progress.FILE
  rows = [dict(step=step, loss=loss, tokens_per_second=1.) for step, loss in (
      (1, 4.), (2, 3.), (3, 2.))]
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n{"step": 4, "lo')
  assert curves.read(tmp_path) == dict(loss=[(1, 4.), (2, 3.), (3, 2.)])
  with progress.Progress(tmp_path, lambda line: None, total=4,
                         tensorboard=False) as again:
    again.found(2, dict(loss=2.5))
    again.found(4, dict(loss=1.))
  want = dict(loss=[(1, 4.), (2, 2.5), (3, 2.), (4, 1.)])
  assert curves.read(tmp_path) == want
  assert len(path.read_text().splitlines()) == 5


def test_a_whole_last_line_without_an_end_is_kept(runs):
  path = runs / 'drafter' / progress.FILE
  before = path.read_text()
  with progress.Progress(path.parent, lambda line: None, total=4,
                         tensorboard=False) as again:
    again.found(600, dict(bleu=31.))
  assert path.read_text().startswith(f'{before}\n')
  assert curves.read(path.parent)['bleu'] == [(500, 30.), (600, 31.)]


@pytest.mark.parametrize('damage', ['{"step": 4, "lo{"step": 4}', '[]', '{}',
                                    '{"step": "x"}'])
def test_a_damaged_line_is_named(runs, damage):
  path = runs / 'drafter' / progress.FILE
  path.write_text(f'{{"step": 1, "loss": 2}}\n{damage}\n')
  with pytest.raises(ValueError, match=f'{path}, line 2 is no row of metrics'):
    curves.read(path.parent)


def test_a_run_without_a_line_yet_is_named(tmp_path):
  (tmp_path / progress.FILE).write_text('{"st')
  with pytest.raises(ValueError, match='holds no metric yet'):
    curves.read(tmp_path)


def script(*args):
  return subprocess.run(
      [sys.executable, 'scripts/plot_runs.py', *map(str, args)], cwd=ROOT,
      capture_output=True, text=True, check=False)


def test_the_script_writes_a_picture(runs):
  path = runs / 'new' / 'curves.png'
  done = script(runs / 'verifier', runs / 'drafter', f'--output={path}')
  assert done.returncode == 0 and done.stdout.strip() == str(path)
  assert path.read_bytes().startswith(b'\x89PNG')


def test_runs_of_one_name_are_both_drawn(runs, tmp_path):
  for x in 'ab':
    shutil.copytree(runs / 'drafter', tmp_path / x / 'drafter')
  path = tmp_path / 'curves.svg'
  places = [tmp_path / x / 'drafter' for x in 'ab']
  assert script(*places, f'--output={path}').returncode == 0
  drawn = path.read_text(encoding='utf-8')     # names are its comments
  assert '<!-- a/drafter -->' in drawn and '<!-- b/drafter -->' in drawn
  done = script(*places, places[0], f'--output={path}')
  assert done.returncode == 2 and 'each run once' in done.stderr


@pytest.mark.parametrize('output,place,said', [
    ('x.doc', 'verifier', 'allowed: a name that ends in .png'),
    ('x.png', 'nothing', 'No metrics.jsonl in')])
def test_what_can_not_be_drawn_is_one_line(runs, output, place, said):
  done = script(runs / place, f'--output={runs / output}')
  assert done.returncode == 2 and not (runs / output).exists()
  line, = done.stderr.splitlines()
  assert said in line


def test_decoded_and_predicted_points_are_told_apart():
  found = dict(loss=[(10, 4.), (20, 3.)], tokens_per_call_T0=[(20, 3.)],
               predicted_T0=[(20, 3.)], tokens_per_call_T1=[(20, 2.)])
  loss, tokens = curves.draw(dict(only=found)).axes[:2]
  assert [x.get_marker() for x in tokens.lines] == ['o', 'x', 's']
  assert [x.get_label() for x in tokens.lines] == list(found)[1:]
  assert loss.get_xlim() == tokens.get_xlim() and loss.get_xlim()[0] == 0
