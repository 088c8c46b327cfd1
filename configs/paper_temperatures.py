"""T5 small for large, three tasks, at temperatures 0, 0.1 and 0.5, gamma 5.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_temperatures.py
  CHECKPOINTS, hardware and sharing: see configs/paper_t5.py, which has T=1.
Time: not measured. Three sweeps of 192 points, 500 texts, 3 trials are
864,000 decodes; at .1 s each 24 hours.
Result: three folders in runs/paper_temperatures with a table, a picture with a
panel for each temperature, and a report.
Published (Narasimhan et al., 2025), without figures that we know: the token
rules and OPT reduce latency most, sequential cascades least; at T=0 the token
rules are greedy lenience, so these curves coincide.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
TASKS = ('wmt14_ende', 'xsum', 'cnn_dailymail')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(task,
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_large'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            'TEMPERATURES = (0.0, 0.1, 0.5)'))
          for task in TASKS]
