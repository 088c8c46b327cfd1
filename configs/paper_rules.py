"""What paper_t5.py leaves out: logarithmic rules, tuned Lossy, controls, T=1.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_rules.py
  CHECKPOINTS, DEVICES, DTYPE and TASKS: see configs/paper_t5.py.
Hardware: one TPU v4 chip or an 80 GB GPU; for sharing see paper_t5.py.
Time: not measured. Six sweeps of 76 points, 500 texts, 3 trials are 684,000
decodes; at .1 s each, assumed, 19 hours.
Result: six folders in runs/paper_rules, each with a table, a picture and a
report. Lossy, Diff, OPT and TokenV3 are in it to be compared with, in the same
sweep; OriginalBiLD, which is greedy, is in paper_bild.py.
Published (Narasimhan et al., 2025): Lossy with beta = 1 is as good as with
tuned beta. We know no figures of the others.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
DEVICES = int(os.environ.get('DEVICES', 1))
DTYPE = os.environ.get('DTYPE', 'float32')
TASKS = os.environ.get('TASKS', 'wmt14_ende,xsum,cnn_dailymail').split(',')
CURVES = ', '.join(f'@{name}/points.Curve()' for name in (
    'lossless', 'lossy', 'beta', 'budget', 'chow_log', 'diff', 'diff_log',
    'opt', 'opt_log', 'ensemble', 'top_p', 'min_p', 'eta', 'oracle', 'v3'))


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  mesh = ('gin/executors/mesh.gin',) if DEVICES > 1 else ()
  cut = (f'MODEL = {DEVICES}',) if mesh else ()
  return [(f'{task}_{size}',
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin', *mesh),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_{size}'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            f"DTYPE = '{DTYPE}'", *cut,
            f'sweep.Sweep.curves = [{CURVES}]'))
          for task in TASKS for size in ('large', 'xl')]
