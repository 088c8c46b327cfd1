"""T5 small for large on WMT with nucleus sampling, T=1, gamma 5.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_top_p.py
  CHECKPOINTS: see configs/paper_t5.py.
Hardware: one TPU v4 chip or a GPU with 16 GB; for sharing see paper_t5.py.
Time: not measured. Three sweeps of 77 points, 500 texts, 3 trials are 346,500
decodes; at .1 s each, assumed, some 10 hours.
Result: three folders in runs/paper_top_p, each with a table, a picture and a
report.
Published (Narasimhan et al., 2025): the paper has curves with top-p; we know no
figures of theirs, nor which values they took. These are common ones.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(f'top_p_{top_p:g}',
           ('gin/sweeps/paper.gin', 'gin/tasks/wmt14_ende.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/wmt14_ende/t5_1_1_large'",
            f"DRAFTER = '{ROOT}/wmt14_ende/t5_1_1_small'", f'TOP_P = {top_p}'))
          for top_p in (0.8, 0.9, 0.95)]
