"""Exports a training run as a model directory and prints its BLEU.

  python scripts/export.py --gin_file=gin/train/drafter.gin --output=DIR
"""
from __future__ import annotations

import argparse
import sys

import gin

from spec_cascades.training import export
from spec_cascades.training import loop


def main() -> int:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--gin_file', required=True, help='of the training run')
  parser.add_argument('--model_dir', help="of the run; default: the file's")
  parser.add_argument('--output', required=True, help='directory to write')
  args = parser.parse_args()
  try:
    gin.parse_config_file(args.gin_file)
    gin.get_configurable(loop.train)
    query = lambda name: gin.query_parameter(f'loop.train.{name}')
    lm, corpus = (query(name).scoped_configurable_fn()
                  for name in ('lm', 'corpus'))
    export.export(lm, corpus, args.model_dir or query('model_dir'), args.output)
  except (ValueError, OSError) as error:
    print('export.py: ' + ' '.join(str(error).split()), file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
