"""BiLD as published and as a target distribution, greedy, and its rivals.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_bild.py
  CHECKPOINTS: see configs/paper_t5.py.
Hardware: one TPU v4 chip or a GPU with 16 GB; for sharing see paper_t5.py.
Time: not measured. Three sweeps of 40 points, 500 texts, 3 trials are 180,000
decodes; at .1 s each, assumed, 5 hours.
Result: three folders in runs/paper_bild, each with a table, a picture and a
report. Our curves have the fallback threshold of `baselines.OriginalBiLD`.
Published (Kim et al., 2023; NVIDIA T4, other checkpoints; score, speed-up,
rollback and fallback thresholds), without and with alignment:
  WMT, BLEU           31.28 1.34x (2, .6)    31.26 1.47x (2, .8)
    faster            30.47 1.43x (3, .5)    30.33 1.70x (5, .6)
  XSum, ROUGE-L       35.12 1.48x (3, .5)    35.05 1.50x (2, .6)
    faster            34.02 1.72x (5, .3)    33.95 1.80x (5, .4)
  CNN/DM, ROUGE-L     41.44 1.71x (3, .4)    41.52 1.85x (3, .3)
    faster            40.57 2.05x (6, .2)    40.96 2.12x (6, .2)
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
METRICS = {'wmt14_ende': 'BLEU', 'xsum': 'ROUGE-L', 'cnn_dailymail': 'ROUGE-L'}
CURVES = ', '.join(f'@{name}/points.Curve()' for name in (
    'lossless', 'bild', 'original', 'tokens', 'greedy', 'v1', 'diff'))


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(task,
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_large'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            f"sweep.Sweep.quality = '{metric}'", 'TEMPERATURES = (0.0,)',
            f'sweep.Sweep.curves = [{CURVES}]'))
          for task, metric in METRICS.items()]
