"""T5 small for large and XL, three tasks, at T 0, 0.1, 0.5 and 1, gamma 5.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_temperatures.py
  CHECKPOINTS: see configs/paper_t5.py, which is T=1 alone.
Hardware: one TPU v4 chip or an 80 GB GPU; for sharing see paper_t5.py.
Time: not measured. Six sweeps of 308 points, 500 texts, 3 trials are 2,772,000
decodes; at .1 s each, assumed, some 77 hours. All tasks with large come first.
Result: six folders in runs/paper_temperatures with a table, a picture with a
panel for each temperature, and a report, whose verdict on OPT's lead over Diff
takes the highest temperature and the lowest.
Published (Narasimhan et al., 2025), without figures that we know: the token
rules and OPT reduce latency most, sequential cascades least; at T=0 Token is
greedy lenience, as TokenV3 and Lenience are here.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
TASKS = ('wmt14_ende', 'xsum', 'cnn_dailymail')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(f'{task}_{size}',
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_{size}'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            'TEMPERATURES = (0.0, 0.1, 0.5, 1.0)'))
          for size in ('large', 'xl') for task in TASKS]
