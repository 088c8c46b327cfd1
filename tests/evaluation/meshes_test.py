"""A sweep on a mesh of a process's devices gives the rows of one device."""
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import besides
import processes
from spec_cascades import sharding
from spec_cascades import targets
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import points
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import sweep as sweep_lib

# The third time models are sent to who decodes, and put on the mesh there.
RUN = '''
import dataclasses, json, sys
import jax
from spec_cascades import sharding, targets
from spec_cascades.evaluation import (
    attached, executors, meshes, points, results, rules, sweep)
from tests.evaluation.sweep_run_test import Bar
out, root, batch, *drafters = sys.argv[1:]
batch = int(batch)
found = []
def curve(x):
  if x in rules.BASELINES:
    alphas = (.4,) if rules.takes_alpha(rules.BASELINES[x]) else ()
    return points.Curve(rules.BASELINES[x], alphas, temperatures=(0.,), name=x)
  return points.Curve(targets.Lossless, temperatures=(1.,), drafter=x, name=x)
@dataclasses.dataclass(frozen=True)
class Sent(executors.InProcess):
  def here(self, mesh):
    return meshes.Mesh()
  def decode(self, job, wanted, source):
    job = dataclasses.replace(job, pair=attached.placed(job.pair, job.mesh))
    found_pairs.append(job.pair)
    return super().decode(job, wanted, source)
four, found_pairs = meshes.Mesh(2, 2, 'tensor', 'data'), []
for i, (mesh, executor) in enumerate([
    (meshes.Mesh(), executors.InProcess()), (four, executors.InProcess()),
    (four, Sent())]):
  run = sweep.Run(sweep.Sweep(
      f'{out}{i}', tuple(map(curve, drafters)),
      f'{root}/verifier', f'{root}/drafter',
      examples=2 * batch - 1, gamma=2, batch=batch, timed=1,
      buckets=((80, 10),), mesh=mesh, executor=executor))
  made = run(Bar)
  rows = made.rows
  pair = (found_pairs or [run.pair])[0]
  devices = {len(x.sharding.device_set) for x in jax.tree.leaves(
      (pair.verifier.params, pair.drafter.params,
       [x.params.params for x in pair.parts.values()
        if hasattr(x.params, 'params')]))}
  cut = sum(not x.is_fully_replicated
            for x in jax.tree.leaves(pair.verifier.params))
  whole = all(x.is_fully_replicated
              for x in jax.tree.leaves(pair.drafter.params))
  found.append(dict(
      rows=[[r.method, r.emitted, r.rounds, r.quality, r.histogram]
            for r in rows], predicted=[x.predicted for x in made.predicted],
      keys=[r.key for r in rows], cut=cut, whole=whole,
      devices=sorted(devices)))
print(json.dumps(found))
'''


def run(pair_dir, directory, batch, *drafters):
  flags = os.environ.get('XLA_FLAGS', '')
  done = subprocess.run(
      [sys.executable, '-c', RUN, str(directory / 'out'), str(pair_dir),
       str(batch), *drafters], cwd=processes.ROOT, capture_output=True,
      text=True, check=False, env=dict(
          os.environ, JAX_PLATFORMS='cpu',
          PYTHONPATH=f'{processes.ROOT}{os.pathsep}{processes.ROOT / "tests"}',
          XLA_FLAGS=f'{flags} --xla_force_host_platform_device_count=4'))
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def check(one, four, sent):
  np.testing.assert_allclose(four['predicted'], one['predicted'], rtol=1e-4)
  np.testing.assert_allclose(sent.pop('predicted'), four.pop('predicted'),
                             rtol=1e-4)
  assert sent == four
  assert one['rows'] == four['rows'] and one['devices'] == [1]
  assert four['devices'] == [4] and four['cut'] and not one['cut']
  assert four['whole']
  assert not set(one['keys']) & set(four['keys'])    # other points: other clock


def test_rows_on_a_mesh_are_those_of_one_device(pair_dir, tmp_path):
  check(*run(pair_dir, tmp_path, 1, 'chain'))


@pytest.mark.slow
def test_and_in_batches_with_every_drafter(pair_dir, tmp_path):
  check(*run(pair_dir, tmp_path, 2, 'chain', 'tree', 'ngram', 'skip'))


@pytest.mark.slow
def test_baselines_with_loops_of_their_own(pair_dir, tmp_path):
  check(*run(pair_dir, tmp_path, 1, *rules.BASELINES))


@pytest.mark.slow
def test_a_drafter_without_an_encoder_is_lent_that_of_a_verifier_that_is_cut(
    tmp_path):
  """The shipped pair, whose drafter reads with the verifier's encoder."""
  pair = processes.ROOT / 'spec_cascades/assets/debian_ende'
  check(*run(pair, tmp_path, 1, 'chain', f'medusa:{pair}/parts/medusa',
             f'specinfer:{pair}/drafter'))


@pytest.mark.slow
def test_parts_share_a_verifier_that_is_cut(pair_dir, tmp_path):
  parts = dict(shared='medusa', prefix='hydra++', fused='eagle3', masks='pass')
  check(*run(pair_dir, tmp_path, 1, *(
      f'{name}:' + besides.write_part(
          tmp_path / kind, pair_dir / 'verifier', kind)
      for kind, name in parts.items())))


def test_meshes_that_can_not_be():
  with pytest.raises(ValueError, match='model of a mesh is 0'):
    meshes.Mesh(1, 0)
  with pytest.raises(ValueError, match="Unknown rules 'all' of a mesh"):
    meshes.Mesh(1, 2, 'all')
  with pytest.raises(ValueError, match='takes 128 devices; this process has'):
    meshes.Mesh(2, 64).layouts()
  assert meshes.Mesh().layouts() is None
  curves = (points.Curve(targets.Lossless),)
  with pytest.raises(ValueError, match='split=True'):
    sweep_lib.Sweep('x', curves, mesh=meshes.Mesh(1, 2), split=True)
  with pytest.raises(ValueError, match='2 hosts and a mesh of 3 devices'):
    executors.Ray(hosts=2, address='auto').check(
        sweep_lib.Sweep('x', curves, mesh=meshes.Mesh(1, 3)))
  with pytest.raises(ValueError, match='2 hosts and address=None'):
    executors.Ray(hosts=2).check(
        sweep_lib.Sweep('x', curves, mesh=meshes.Mesh(1, 2)))


@pytest.mark.parametrize('rules', [5, (5,), ((['a'], 'data'),), ('ab',)])
def test_rules_that_are_no_pairs_are_one_line(rules):
  mesh = sharding.mesh(1, 1, jax.devices()[:1])
  with pytest.raises(ValueError, match='allowed: ') as caught:
    sharding.Layout(mesh, rules)
  assert '\n' not in str(caught.value)
