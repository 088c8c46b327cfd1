"""T5 small for large and XL, three tasks, T=1, gamma 5: the paper's lead.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_t5.py
  CHECKPOINTS holds <task>/t5_1_1_{small,large,xl} for each task below, T5 v1.1
  fine-tuned on it, in any format. scripts/prepare_public.py fetches the data.
Hardware: one TPU v4 chip or an 80 GB GPU, which hold XL in float32 (12 GB).
With DEVICES=4 before the command, say, the verifier is cut over four chips of a
host; with DTYPE=bfloat16 both models are half as large. TASKS=wmt14_ende,xsum
takes fewer tasks.
Time: not measured. Six sweeps of 77 points, 500 texts, 3 trials are 693,000
decodes; at .1 s each, assumed, some 19 hours. Several machines share a sweep:
give each the same command.
Result: six folders in runs/paper_t5, each with a table, a picture and a report.
Published (Narasimhan et al., 2025, TPU v4), for the token rules: at the large
model's quality 1.85 times as fast on WMT with small for large, up to 1.95 over
tasks, up to 2.61 for XL; within the large model's latency 22.50 BLEU on WMT,
15.85 ROUGE-2 on XSum and 12.63 on CNN/DailyMail.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
DEVICES = int(os.environ.get('DEVICES', 1))
DTYPE = os.environ.get('DTYPE', 'float32')
TASKS = os.environ.get('TASKS', 'wmt14_ende,xsum,cnn_dailymail').split(',')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  mesh = ('gin/executors/mesh.gin',) if DEVICES > 1 else ()
  cut = (f'MODEL = {DEVICES}',) if mesh else ()
  return [(f'{task}_{size}',
           ('gin/sweeps/paper.gin', f'gin/tasks/{task}.gin',
            'gin/protocols/paper.gin', *mesh),
           (f"VERIFIER = '{ROOT}/{task}/t5_1_1_{size}'",
            f"DRAFTER = '{ROOT}/{task}/t5_1_1_small'",
            f"DTYPE = '{DTYPE}'", *cut))
          for task in TASKS for size in ('large', 'xl')]
