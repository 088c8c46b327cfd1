"""Downloads public data sets and prepares them for TFDS.

Example:
  python scripts/prepare_public.py gsm8k mbpp natural_questions
"""
from __future__ import annotations

import argparse
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  """Prepares one after the other; those that are there are left alone."""
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='+', metavar='NAME',
                      help='as in spec_cascades/data/public_datasets.py')
  parser.add_argument(
      '--data_dir', help='TFDS data directory (default: $TFDS_DATA_DIR, else '
      '~/tensorflow_datasets, as for TFDS itself)')
  flags = parser.parse_args(args)
  from spec_cascades.data import public  # It loads TensorFlow.
  from spec_cascades.data import public_datasets
  for name in flags.names:
    public_datasets.find(name)
  for name in flags.names:
    info = public.prepare(name, tfds_data_dir=flags.data_dir)
    print(f'{name}: {info.data_dir}', flush=True)


if __name__ == '__main__':
  _cli.run(main)
