"""T5 small for large on WMT at draft lengths 3, 5 and 7, T=1.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_gammas.py
  CHECKPOINTS: see configs/paper_t5.py.
Hardware: one TPU v4 chip or a GPU with 16 GB; for sharing see paper_t5.py.
Time: not measured. One sweep of 203 points, 500 texts, 3 trials are 304,500
decodes; at .1 s each, assumed, some 9 hours.
Result: runs/paper_gammas/wmt14_ende with a table, a picture and a report, whose
verdicts on the claims below compare the lengths text by text.
Published (Narasimhan et al., 2025): longer drafts widen the range of latencies
that a rule can reach, and hurt where quality is near the large model's.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('wmt14_ende',
           ('gin/sweeps/paper.gin', 'gin/tasks/wmt14_ende.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/wmt14_ende/t5_1_1_large'",
            f"DRAFTER = '{ROOT}/wmt14_ende/t5_1_1_small'",
            'GAMMAS = (3, 5, 7)'))]
