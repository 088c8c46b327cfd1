"""Lossy decoding with beta = 1, beta that normalises, and tuned beta, T5, T=1.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_lossy.py
  CHECKPOINTS: see configs/paper_t5.py.
Hardware: one TPU v4 chip or a GPU with 16 GB; for sharing see paper_t5.py.
Time: not measured. Three sweeps of 27 points, 500 texts, 3 trials are 121,500
decodes; at .1 s each, assumed, some 3 hours.
Result: three folders in runs/paper_lossy, each with a table, a picture and a
report; TokenV3 is there to be compared with.
Published (Narasimhan et al., 2025): beta = 1 is as good as tuned beta.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
TASKS = ('wmt14_ende', 'xsum', 'cnn_dailymail')
CURVES = ', '.join(f'@{name}/points.Curve()' for name in (
    'lossless', 'lossy', 'beta', 'budget', 'v3'))


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(task,
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_large'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            f'sweep.Sweep.curves = [{CURVES}]'))
          for task in TASKS]
