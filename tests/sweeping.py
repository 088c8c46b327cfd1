"""scripts/sweep.py as a process: 8 points on 60 texts, with a tiny pair."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES, POINTS = 60, 8


def start(pair_dir, cache, out, *files, **bindings):
  """Starts the sweep; compilations are shared in `cache` to save time."""
  env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=str(cache),
             JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0')
  settings = {
      'OUTPUT_DIR': out, 'EXAMPLES': EXAMPLES, 'GAMMA': 3,
      'BUCKETS': ((80, 24),), 'sweep.Sweep.verifier': pair_dir / 'verifier',
      'sweep.Sweep.drafter': pair_dir / 'drafter', 'sweep.Sweep.curves':
      '[@chow/points.Curve()]', 'chow/points.Curve.alphas': (.3, .6),
      'chow/points.Curve.temperatures': (1., 0.),
      'sweep.Sweep.predicted': False, **bindings}
  return subprocess.Popen(
      [sys.executable, 'scripts/sweep.py',
       '--gin_file=gin/sweeps/quickstart.gin',
       *(f'--gin_file={file}' for file in files),
       *(f'--gin.{name}={value}' for name, value in settings.items())],
      cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE)


def records(path):
  """Complete example lines of a journal."""
  lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
  parsed = [json.loads(line) for line in lines]
  return [entry for entry in parsed if entry['kind'] == 'example']
