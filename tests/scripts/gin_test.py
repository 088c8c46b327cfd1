"""Every gin file parses, says how to run it, and names things that exist."""
import collections
import importlib
import pathlib
import re
import shlex
import sys

import gin
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / 'gin').rglob('*.gin'))
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402
import sweep  # noqa: E402

from spec_cascades.evaluation import contests  # noqa: E402
from spec_cascades.evaluation import findings  # noqa: E402
from spec_cascades.evaluation import frontier  # noqa: E402
from spec_cascades.evaluation import points  # noqa: E402
from spec_cascades.evaluation import programs  # noqa: E402
from spec_cascades.evaluation import rules  # noqa: E402
from spec_cascades.evaluation import sources  # noqa: E402
from spec_cascades.evaluation import sweep as sweep_lib  # noqa: E402
from spec_cascades.evaluation import work  # noqa: E402
from spec_cascades.training import distill  # noqa: E402


@pytest.fixture(autouse=True)
def clean():
  yield
  gin.clear_config()


@pytest.fixture
def within_t5x(path, monkeypatch):
  """T5X's files name the script that reads them `__main__`."""
  if path.parent.name == 't5x':
    library = pytest.importorskip(
        't5x', reason='T5X is not installed (not on the index)')
    found = [x for x in ('infer', 'eval') if x == path.stem] or ['train']
    monkeypatch.setitem(sys.modules, '__main__',
                        importlib.import_module(f't5x.{found[0]}'))
    gin.add_config_file_search_path(str(pathlib.Path(
        library.__path__[0]).parent))


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_parse_and_say_what_they_do(path, within_t5x):
  content = path.read_text(encoding='utf-8')
  head = content.split('from __gin__')[0]
  required = re.findall(r'^(\w+) = %gin\.REQUIRED', content, re.MULTILINE)
  _cli.configure([str(path)], [f"{name} = 'x'" for name in required])
  for name in required:
    assert re.search(rf'Must be set: [^:]*{name}', head), name
    assert f'--gin.{name}=' in head
    others = [f"{x} = 'x'" for x in required if x != name]
    with pytest.raises(ValueError, match=f'{name} must be set'):
      _cli.configure([str(path)], others)
  assert all(line.startswith('#') for line in head.strip().splitlines())
  for word in ('Must be set', 'Command', 'Result'):
    assert word in head, word


@pytest.mark.parametrize('path', [
    path for path in FILES
    if re.search(r'^sweep\.Sweep\.curves', path.read_text(), re.MULTILINE)],
                         ids=lambda p: p.stem)
def test_sweeps_have_points(path):
  """Every rule takes its thresholds, and its drafter has what it reads."""
  required = re.findall(r'^(\w+) = %gin\.REQUIRED', path.read_text(),
                        re.MULTILINE)
  _cli.configure([str(path)], [f"{name} = 'x'" for name in required])
  made = _cli.call(sweep_lib.Sweep)
  grid = points.expand(made.curves, gamma=made.gamma, top_p=made.top_p,
                       top_k=made.top_k)
  assert len(grid) > 2 and made.output_dir.startswith('runs/')


@pytest.mark.parametrize('name', ['debian', 'debian_synopsis'])
def test_the_debian_sweeps_have_at_most_120_points(name):
  (files, bindings), = sweep.several(ROOT / 'configs' / f'{name}.py')
  _cli.configure(files, bindings)
  made = _cli.call(sweep_lib.Sweep)
  grid = points.expand(made.curves, gamma=made.gamma)
  assert len(grid) <= 120 and (made.timed, made.batch) == (60, 50)
  assert {p.temperature for p in grid} == {0., .5, 1.}
  assert {p.gamma for p in grid if p.rule in rules.RULES} == {3, 5}
  assert {p.rule for p in grid} >= {'', 'Lossless', *rules.BASELINES}
  head = (ROOT / 'configs' / f'{name}.py').read_text().replace('\\\n', ' ')
  assert f': {len(grid)} points on' in head
  command, = re.findall(r'analyse.py (.*--draw.*)', head)
  folder, _, *drawn = shlex.split(command)
  assert folder == made.output_dir and drawn
  assert set(drawn) <= {p.method for p in grid}


def test_the_debian_sweep_has_curves_for_every_claim_and_few_programs():
  (files, bindings), = sweep.several(ROOT / 'configs/debian.py')
  _cli.configure(files, bindings)
  made = _cli.call(sweep_lib.Sweep)
  grid = dict(enumerate(points.expand(made.curves, gamma=made.gamma)))
  draw = np.random.default_rng(0).random
  samples = {key: frontier.Samples(draw(), draw(), draw(9), draw(9))
             for key in grid}
  found = findings.check(contests.lines(grid, samples))
  assert {x.claim for x in found if x.verdict != findings.ABSENT} == {
      x.claim for x in findings.check([])}
  # For a length bucket and a batch: one for each draft length, one for each
  # model alone, one for each baseline.
  names = collections.Counter(
      map(programs.Programs(None, made.curves).name, grid.values()))
  assert sum(bool(x.baseline) for x in names) == len(rules.BASELINES)
  assert sum(not x.drafter for x in names) == 2
  assert collections.Counter(
      x.gamma for x in names if x.drafter and not x.baseline) == {3: 1, 5: 1}


def test_the_quickstart_has_twenty_points_and_curves():
  _cli.configure(['gin/sweeps/quickstart.gin'],
                 ["OUTPUT_DIR = 'x'", 'EXAMPLES = 7'])
  made = _cli.call(sweep_lib.Sweep)
  assert made.output_dir == 'x' and made.examples == 7
  grid = points.expand(made.curves, gamma=made.gamma)
  assert len(grid) == 20 and {p.temperature for p in grid} == {0., 1.}
  count = collections.Counter(
      (p.method, p.temperature) for p in grid if p.alpha)
  assert len(count) == 6 and min(count.values()) > 1
  assert {p.rule for p in grid} == {
      '', 'Lossless', 'Lossy', 'Chow', 'Diff', 'OPT', 'TokenV3'}


@pytest.mark.parametrize('name,want', [
    ('paper', dict(examples=500, timed=None, trials=3, batch=1)),
    ('local', dict(examples=500, timed=60, trials=1, batch=50)),
    ('details', dict(split=True, inspected=8, predicted=True, examples=None,
                     timed=None))])
def test_protocols_go_with_any_sweep(name, want):
  _cli.configure(['gin/sweeps/baselines.gin', f'gin/protocols/{name}.gin'], [])
  made = _cli.call(sweep_lib.Sweep)
  assert {key: getattr(made, key) for key in want} == want


def test_a_drafter_of_translations_is_named_by_a_capital(pair_dir, tmp_path):
  """It is read after the verifier, and before any sentence is."""
  _cli.configure(['gin/train/distill.gin'], [
      f"VERIFIER = '{pair_dir}/verifier'", "DRAFTER = 'nowhere'",
      f"OUTPUT = '{tmp_path}'"])
  with pytest.raises(ValueError, match='No checkpoint at nowhere'):
    _cli.call(distill.distill)


def test_texts_of_ones_own_are_named_on_the_command_line():
  """As docs/sweep.md has it: with other names of columns."""
  flags, bindings = _cli.parse(_cli.gin_parser(''), [
      f'--gin_file={ROOT / "gin/sweeps/quickstart.gin"}',
      '--gin.sweep.Sweep.data=@sources.Table()',
      '--gin.sources.Table.path=my_texts.tsv',
      '--gin.sources.Table.source=question'])
  _cli.configure(flags.gin_file, bindings)
  assert _cli.call(sweep_lib.Sweep).data == sources.Table(
      'my_texts.tsv', 'question')


@pytest.mark.parametrize('bindings,scope', [
    (('chwo/points.Curve.alphas = (.3,)',), 'chwo'),
    (('sweep.Sweep.curves = [@lossles/points.Curve()]',), 'lossles'),
    (('mine/points.Curve.rule = @targets.Chow',), 'mine'),
    (('chow/points.Curve.alphas = (.3,)',), None),
    (('mine/points.Curve.rule = @targets.Chow',
      'sweep.Sweep.curves = [@mine/points.Curve()]'), None)])
def test_scopes_that_nothing_refers_to_are_refused(bindings, scope):
  """Gin would keep such a binding, and never use it."""
  call = lambda: _cli.configure([str(ROOT / 'gin/sweeps/quickstart.gin')],
                                bindings)
  if scope is None:
    return call()
  with pytest.raises(ValueError, match=f"Unknown scope '{scope}'; the files "
                     'have: chow, diff, loss'):
    call()


def test_values_may_be_words():
  parser = _cli.Parser()
  _, bindings = _cli.parse(parser, [
      '--gin.A=runs/x y', '--gin.B=3', '--gin.C=(1, 2)', '--gin.D=@f()',
      '--gin.E=None', "--gin.F='q'", '--gin.G={source} is', "--gin.H={'x': 1}"])
  assert bindings == ["A = 'runs/x y'", 'B = 3', 'C = (1, 2)', 'D = @f()',
                      'E = None', "F = 'q'", "G = '{source} is'",
                      "H = {'x': 1}"]


@pytest.mark.parametrize('path', sorted((ROOT / 'configs').glob('*.py')),
                         ids=lambda p: p.name)
def test_configurations_name_sweeps_that_exist(path):
  head = path.read_text(encoding='utf-8')
  assert f'--config=configs/{path.name}' in head and 'Result:' in head
  folders = set()
  for files, bindings in sweep.several(path):
    _cli.configure(files, bindings)
    made = _cli.call(sweep_lib.Sweep)
    assert points.expand(made.curves, gamma=made.gamma, top_p=made.top_p)
    assert pathlib.Path(made.output_dir).parts[:2] == (
        'runs', path.stem)
    folders.add(made.output_dir)
  assert folders


def test_the_documentation_lists_every_configuration():
  listed = set(re.findall(r'`(\w+\.py)`',
                          (ROOT / 'docs/sweep.md').read_text('utf-8')))
  assert {p.name for p in (ROOT / 'configs').glob('*.py')} <= listed


@pytest.mark.parametrize(
    'path', sorted((ROOT / 'configs').glob('paper_*.py')), ids=lambda p: p.stem)
def test_the_papers_configurations_say_what_they_take(path):
  """On what, how long, against which figures; decodes are counted."""
  head = path.read_text(encoding='utf-8').split('"""')[1]
  assert all(f'\n{word}' in head for word in (
      'Command:\n', 'Hardware: ', 'Time: ', 'Result: ', 'Published ('))
  decodes = 0
  for files, bindings in sweep.several(path):
    _cli.configure(files, bindings)
    made = _cli.call(sweep_lib.Sweep)
    grid = points.expand(made.curves, gamma=made.gamma, top_p=made.top_p)
    assert f'{len(grid)} points' in head
    plan = work.Plan(made.examples, made.timed or made.examples, made.trials,
                     made.batch)
    want = work.Plan(500, 500, 3, 1)
    if path.stem == 'paper_gemma':
      want = _gemmas_plan(made.data.dataset)
    assert plan == want
    decodes += len(grid) * len(plan.decodes(''))
  assert f'{decodes:,}\ndecodes' in head or f'{decodes:,} decodes' in head


def _gemmas_plan(task):
  """1,000 prompts where it answers questions; little is timed."""
  asked = task in ('squad_v2', 'web_questions', 'natural_questions',
                   'trivia_qa')
  return work.Plan(1000 if asked else 500, 60, 1, 8)


def test_gemmas_have_room_for_answers_and_an_end_of_them(monkeypatch):
  for devices in ('1', '4'):
    monkeypatch.setenv('DEVICES', devices)
    for files, bindings in sweep.several(ROOT / 'configs/paper_gemma.py'):
      _cli.configure(files, bindings)
      made = _cli.call(sweep_lib.Sweep)
      assert all(width <= 2048 and 32 <= cap <= 512
                 for width, cap in made.buckets)
      assert made.dtype == 'bfloat16' and made.gamma == 1
      assert made.asking.end == (
          None if made.data.dataset == 'mbpp' else '\n\n')
      assert made.mesh.model == int(devices) and made.mesh.data == 1
      assert 'BiLD' in {curve.rule.__name__ for curve in made.curves}


def test_t5s_can_be_cut_over_chips_in_bfloat16(monkeypatch):
  monkeypatch.setenv('DEVICES', '4')
  monkeypatch.setenv('DTYPE', 'bfloat16')
  monkeypatch.setenv('TASKS', 'xsum')
  found = sweep.several(ROOT / 'configs/paper_t5.py')
  assert len(found) == 2
  for files, bindings in found:
    assert 'gin/tasks/xsum.gin' in files
    _cli.configure(files, bindings)
    made = _cli.call(sweep_lib.Sweep)
    assert (made.mesh.model, made.mesh.data, made.dtype) == (4, 1, 'bfloat16')


@pytest.mark.parametrize('content,message', [
    (None, 'No such --config'), ('x = 1', 'no get_sweep'),
    ('get_sweep = lambda: []', 'not one'), ('x = (', 'SyntaxError'),
    ('import nothing_of_that_name', 'No module named'),
    ('open("nothing")', 'does not run: FileNotFoundError'),
    ('get_sweep = lambda: {}["TASKS"]', "does not run: KeyError: 'TASKS'"),
    ('get_sweep = lambda: 1 / 0', 'does not run: ZeroDivisionError'),
    ('get_sweep = lambda x: x', 'does not run: TypeError'),
    ('get_sweep = lambda: None', 'gives None; allowed'),
    ("get_sweep = lambda: [('a', ())]", 'name, gin files, bindings'),
    ('get_sweep = lambda: [(1, (), ()), (1, (), ())]', 'name, gin files, bin'),
    ('get_sweep = lambda: [([], (), ())]', 'name, gin files, bindings'),
    ("get_sweep = lambda: [('a', 'gin/x.gin', ())]", 'name, gin files, bind'),
    ("get_sweep = lambda: [('a', (), ()), ('a', (), ())]", 'its own')])
def test_unusable_configurations_are_refused(
    tmp_path, content, message):
  path = tmp_path / 'config.py'
  if content is not None:
    path.write_text(content)
  with pytest.raises(ValueError, match=message):
    sweep.several(path)


def test_a_gin_file_is_no_configuration():
  with pytest.raises(ValueError, match='say --gin_file'):
    sweep.several(ROOT / 'gin/sweeps/quickstart.gin')


def test_a_sweep_that_fails_does_not_keep_the_next_from_running(
    monkeypatch, capsys):
  """Both are named, and the command fails in the end."""
  ran = []

  def measure(files, bindings, profile):
    ran.append(bindings[0])
    if len(ran) == 1:
      raise ValueError('No point could be decoded.')
    return []

  monkeypatch.setattr(sweep, 'measure', measure)
  monkeypatch.setattr(sweep, 'check_all', lambda jobs: None)
  with pytest.raises(ValueError, match='Failures: 1; the first is No poi'):
    sweep.main(['--config=configs/gammas.py'])
  assert len(ran) == len(set(ran)) == len(
      sweep.several(ROOT / 'configs/gammas.py')) > 1
  assert 'sweep 1 of ' in capsys.readouterr().err


def test_sweeps_of_a_configuration_do_not_share_a_folder():
  with pytest.raises(ValueError, match='share one OUTPUT_DIR'):
    sweep.main(['--config=configs/gammas.py', '--gin.OUTPUT_DIR=runs/x'])
