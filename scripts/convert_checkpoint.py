"""Converts a checkpoint to the project's format, or to Hugging Face's.

Reads what checkpoints.load reads: Hugging Face directories, GGUF, T5X, Orbax
and the project's own. Pickles are refused.

Examples:
  python scripts/convert_checkpoint.py ~/models/smollm2 runs/smollm2
  python scripts/convert_checkpoint.py model.gguf runs/hf --to huggingface \\
    --dtype bfloat16
  python scripts/convert_checkpoint.py runs/drafter runs/reduced \\
    --draft_vocabulary 8192 --texts corpus.txt
The last makes a drafter that predicts the 8,192 most frequent tokens of a file,
one text a line, and leaves the others to the verifier: decoding stays exact.
"""
from __future__ import annotations

import argparse
from typing import Sequence

import _cli

MIB = 2**20


def _flags(args: Sequence[str]) -> argparse.Namespace:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('checkpoint', help='a file or a directory of any format')
  add('output', help='the directory to write; it must not exist, or be empty')
  add('--to', default='native', help='native (default) or huggingface')
  add('--dtype', help='float32 or bfloat16; default: bfloat16 if all weights '
      'are, else float32')
  add('--shard_mib', type=int, default=4096, help='weights of one file, MiB')
  add('--vocabulary', help='a SentencePiece model, if the checkpoint has none')
  add('--draft_vocabulary', type=int, metavar='K', help='predict only the K '
      'most frequent tokens of --texts')
  add('--texts', help='what to count tokens in')
  flags = parser.parse_args(args)
  if (flags.draft_vocabulary is None) != (flags.texts is None):
    raise ValueError('Got one of --draft_vocabulary and --texts; give both, or '
                     'neither.')
  return flags


def main(args: Sequence[str]) -> None:
  flags = _flags(args)
  # pylint: disable=g-import-not-at-top
  import tqdm
  from spec_cascades.checkpoints import converting
  draft = flags.texts and converting.Draft(flags.draft_vocabulary, flags.texts)
  dtype = converting.convert(
      flags.checkpoint, flags.output, to=flags.to, dtype=flags.dtype,
      shard_bytes=flags.shard_mib * MIB, vocabulary=flags.vocabulary,
      draft=draft, progress=tqdm.tqdm)
  print(f'wrote {flags.output} ({flags.to}, {dtype})')


if __name__ == '__main__':
  _cli.run(main)
