"""Gemma 2 IT, 2B for 9B and for 27B, eight tasks with solved examples, gamma 1.

Command:
  CHECKPOINTS=/data/checkpoints python scripts/sweep.py \
    --config=configs/paper_gemma.py
  CHECKPOINTS holds gemma2_{2b,9b,27b}_it in any format; python
  scripts/prepare_public.py fetches the data.
Hardware: in bfloat16, as they are published, 2B and 9B are 24 GB, 2B and 27B
60 GB: one 80 GB GPU, or a TPU host; with DEVICES=4 before the command, say, the
verifier is cut over four of its chips. For sharing see paper_t5.py.
Time: not measured. Latency is not the cost here, so that only the first 60
texts are timed; quality is measured on 500 texts, of the four tasks that ask
questions on 1,000, as there, 8 at a time. Sixteen sweeps of 64 points are
829,440 decodes, 768,000 of them in 96,000 batches or some more, as a batch is
of one bucket; at 2 s a batch and 1 s a timed text, assumed, 3 days in all on
one chip.
Result: sixteen folders in runs/paper_gemma. quality_by_rejection.png in each is
the paper's figure: its cost is the share of drafts rejected. TokenCascade,
which rejects none, is in frontier.png only.
Published (Narasimhan et al., 2025): token rules ahead; OPT does not help, since
27B's own confidence is the better signal. We know no figures.
"""
import os

ROOT = os.environ.get('CHECKPOINTS', 'checkpoints')
DEVICES = int(os.environ.get('DEVICES', 1))
# Caches of 8 rows of 2,432 tokens are some 9 GB for 2B and 27B together.
BATCH = 8
# Buckets: widths of prompts, and caps of answers.
TASKS = {
    'wmt14_ende': ('BLEU', ((512, 128), (2048, 128))),
    'gsm8k': ('GSM8K', ((2048, 384),)),
    'mbpp': ('MBPP', ((1024, 512), (2048, 512))),
    'squad_v2': ('F1', ((1024, 32), (2048, 32))),
    'web_questions': ('WebQ', ((128, 32),)),
    'natural_questions': ('NQ', ((128, 32),)),
    'trivia_qa': ('TriviaQA-EM', ((512, 32),)),
    'cnn_dailymail': ('ROUGE-2', ((2048, 128),))}
QUESTIONS = ('squad_v2', 'web_questions', 'natural_questions', 'trivia_qa')
CURVES = ', '.join(f'@{name}/points.Curve()' for name in (
    'lossless', 'lossy', 'bild', 'chow', 'diff', 'opt', 'v1', 'v2', 'v3',
    'tokens'))
# Solved examples end with an empty line, and so do answers that follow them;
# programs have empty lines of their own.
END = {task: None if task == 'mbpp' else '\n\n' for task in TASKS}


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  mesh = ('gin/executors/mesh.gin',) if DEVICES > 1 else ()
  cut = (f'MODEL = {DEVICES}',) if mesh else ()
  return [(f'{task}_{size}',
           ('gin/sweeps/paper.gin', 'gin/tasks/public.gin',
            'gin/protocols/local.gin', *mesh),
           (f"VERIFIER = '{ROOT}/gemma2_{size}_it'",
            f"DRAFTER = '{ROOT}/gemma2_2b_it'", "DTYPE = 'bfloat16'",
            'GAMMA = 1', f"TASK = '{task}'", "STYLE = 'few_shot'",
            f"QUALITY = '{quality}'", f'BUCKETS = {buckets}',
            f'END = {END[task]!r}', f'sweep.Sweep.curves = [{CURVES}]',
            f'EXAMPLES = {1000 if task in QUESTIONS else 500}',
            f'sweep.Sweep.batch = {BATCH}', *cut))
          for size in ('9b', '27b')
          for task, (quality, buckets) in TASKS.items()]
