"""The scripts that make trees and count tables: what they do and refuse."""
import os
import subprocess
import sys

import cli_test
import fakecosts
import pytest
import sweeping

from spec_cascades.evaluation import costs as costs_lib
from spec_cascades.evaluation import shapes

OWN = """
import jax.numpy as jnp
from spec_cascades import struct, types
from spec_cascades.targets.base import Ruled

@struct.dataclass
class Halfway(Ruled):
  alpha: float = .5
  domain = 0., 1.

  def __call__(self, q, p):
    return types.Fused((q.probs + p.probs) / 2, jnp.ones(p.probs.shape[:-1]))
"""
GIN = """
from __gin__ import dynamic_registration
import own_rule
from spec_cascades.evaluation import points
own/points.Curve.rule = @own_rule.Halfway
own/points.Curve.alphas = (.5,)
own/points.Curve.temperatures = (1.,)
"""


@pytest.mark.slow
def test_a_rule_of_ones_own_gets_a_tree_of_its_sweep(
    pair_dir, tmp_path, monkeypatch):
  (tmp_path / 'own_rule.py').write_text(OWN)
  own, costs = tmp_path / 'own.gin', tmp_path / 'costs.json'
  own.write_text(GIN)
  costs_lib.write(costs, fakecosts.make())
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(
      [str(tmp_path), str(sweeping.ROOT)]))
  settings = {'EXAMPLES': 2, 'sweep.Sweep.curves': '[@own/points.Curve()]'}
  process = sweeping.start(pair_dir, tmp_path / 'cache', tmp_path / 'swept',
                           own, **settings)
  _, err = process.communicate()
  assert process.returncode == 0, err
  done = subprocess.run(
      [sys.executable, 'scripts/shape_tree.py', tmp_path / 'swept', costs,
       f'--output={tmp_path / "trees"}', *(
           x for x in process.args[2:] if 'OUTPUT_DIR' not in x)],
      cwd=sweeping.ROOT, text=True, capture_output=True, check=False)
  assert done.returncode == 0, done.stderr
  assert 'Halfway alpha=0.5 T=1: accepted by rank' in done.stdout
  path, = (tmp_path / 'trees').iterdir()
  assert 1 < len(shapes.read(path).parents) <= 6


def test_shape_tree_refuses(tmp_path):
  folder, costs = str(tmp_path), str(tmp_path / 'costs.json')
  good = [folder, costs, '--gin_file=gin/sweeps/quickstart.gin']
  cli_test.check('shape_tree', [
      ([], 'required'), ([folder, costs], '--gin_file'),
      ([*good, '--ranks', '0'], '--ranks 0'),
      ([*good, '--output', __file__], 'give a folder'),
      ([*good, '--max_nodes', '1'], '--max_nodes 1'), (good, 'costs.json')])


def test_count_table_refuses(tmp_path):
  path = str(tmp_path / 'table.npz')
  cli_test.check('count_table', [
      ([], 'required'), (['--gin_file=gin/train/drafter.gin'], '--output'),
      (['--gin_file=none.gin', '--output', path], 'No gin file none.gin'),
      (['--gin_file=gin/train/drafter.gin', '--output', path, '--order', '0'],
       '--order 0')])
