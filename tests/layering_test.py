"""Who may import whom, and what importing the package costs."""
import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / 'spec_cascades'
# A layer may import those on lines above it; a package also its own modules.
# Checkpoints and evaluation share a line: they share `evaluation.text`.
ORDER = '''
  fetching struct
  types
  check
  fatal hosts
  cache warp
  targets verify
  judges
  api exact sampler stats
  theory
  models
  sharding
  decode
  drafters
  baselines
  __init__
  data
  checkpoints evaluation
  training
  t5x_models
'''
RANK = {layer: rank for rank, line in enumerate(ORDER.strip().splitlines())
        for layer in line.split()}
OUTER = RANK['data']
LIBRARIES = {'jax', 'flax', 'numpy', 'jaxtyping', '__future__'}


def imports(path):
  """Dotted names that a file imports anywhere, with names from packages."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def layer_of(path):
  return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


FILES = sorted(PACKAGE.rglob('*.py'))


def test_every_module_is_in_a_layer():
  assert {layer_of(path) for path in FILES} <= set(RANK)


@pytest.mark.parametrize(
    'path', FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
  layer = layer_of(path)
  for name in imports(path):
    top, *rest = name.split('.')
    if top == 'spec_cascades':
      used = rest[0] if rest and rest[0] in RANK else '__init__'
      near = RANK[used] == RANK[layer] >= OUTER or used == layer
      assert near or RANK[used] < RANK[layer], name
    elif RANK[layer] < OUTER:
      assert top in LIBRARIES or top in sys.stdlib_module_names, name


def test_no_modules_import_each_other():
  """At any distance; what functions import when they run does not count."""
  names = {'.'.join(path.relative_to(ROOT).with_suffix('').parts)
           for path in FILES}
  graph = {}
  for path in FILES:
    top = [x for x in ast.parse(path.read_text()).body
           if isinstance(x, ast.ImportFrom)]
    graph['.'.join(path.relative_to(ROOT).with_suffix('').parts)] = {
        f'{x.module}.{alias.name}' for x in top for alias in x.names} & names
  graphlib.TopologicalSorter(graph).prepare()             # or it says where


def test_ray_is_imported_by_one_module_when_it_is_used():
  everywhere = {path.name for path in FILES
                if any(x.split('.')[0] == 'ray' for x in imports(path))}
  assert everywhere == {'ray_cluster.py'}
  tree = ast.parse((PACKAGE / 'evaluation' / 'ray_cluster.py').read_text())
  assert not [x for x in tree.body if isinstance(x, ast.Import)
              and any(alias.name == 'ray' for alias in x.names)]


def test_gin_is_no_package():
  """With an __init__.py, gin/ would shadow the library of that name."""
  assert not (ROOT / 'gin' / '__init__.py').exists()


def test_importing_is_quick_and_light():
  """Best of three; processor seconds, so that a busy machine may be slow."""
  code = ('import sys, time; start = time.process_time()\n'
          'import spec_cascades as s\n'
          'print(time.process_time() - start, "optax" in sys.modules,'
          ' "gin" in sys.modules, "tensorflow" in sys.modules,'
          ' "orbax" in sys.modules, "seqio" in sys.modules,'
          ' all(hasattr(s, name) for name in s.__all__))')
  best = 1e9
  for _ in range(3):
    done = subprocess.run([sys.executable, '-c', code], check=True, text=True,
                          capture_output=True, cwd=ROOT)
    seconds, *loaded, complete = done.stdout.split()
    assert loaded == ['False'] * 5 and complete == 'True'
    best = min(best, float(seconds))
  assert best < 1.5
