"""Gemma 2 IT, 2B for 9B and for 27B, eight tasks with solved examples, gamma 1.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_gemma.py
  CHECKPOINTS holds gemma2_{2b,9b,27b}_it in any format; python
  scripts/prepare_public.py fetches the data. The questions took 1,000 prompts
  there: --gin.EXAMPLES=1000.
Hardware: weights are float32 here, 47 GB for 2B and 9B: an 80 GB GPU. 27B, 120
GB with 2B, needs a sharded verifier, which scripts/sweep.py does not place yet.
Time: not measured. A sweep has 64 points; 500 texts, 3 trials are 96,000
decodes, some 1 s each: 27 hours on one chip; share them.
Result: sixteen folders in runs/paper_gemma. The cost that the paper plots here
is the column rejection_rate.
Published (Narasimhan et al., 2025): token rules ahead; OPT does not help, since
27B's own confidence is the better signal. We know no figures.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
# Buckets: widths of prompts, and caps of prompt and answer together.
TASKS = {
    'wmt14_ende': ('BLEU', ((512, 640), (2048, 2176))),
    'gsm8k': ('GSM8K', ((2048, 2432),)),
    'mbpp': ('MBPP', ((1024, 1536), (2048, 2560))),
    'squad_v2': ('F1', ((1024, 1056), (2048, 2080))),
    'web_questions': ('WebQ', ((128, 160),)),
    'natural_questions': ('NQ', ((128, 160),)),
    'trivia_qa': ('TriviaQA-EM', ((512, 544),)),
    'cnn_dailymail': ('ROUGE-2', ((2048, 2176),))}
CURVES = ', '.join(f'@{name}/points.Curve()' for name in (
    'lossless', 'lossy', 'bild', 'chow', 'diff', 'opt', 'v1', 'v2', 'v3',
    'tokens'))


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(f'{task}_{size}',
           ('gin/sweeps/paper.gin', 'gin/tasks/public.gin',
            'gin/protocols/paper.gin'),
           (f"VERIFIER = '{ROOT}/gemma2_{size}_it'",
            f"DRAFTER = '{ROOT}/gemma2_2b_it'", 'GAMMA = 1',
            f"TASK = '{task}'", "STYLE = 'few_shot'", f"QUALITY = '{quality}'",
            f'BUCKETS = {buckets}'))
          for task, (quality, buckets) in TASKS.items()
          for size in ('9b', '27b')]
