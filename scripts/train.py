"""Trains a model: python scripts/train.py --gin_file=FILE [--gin.NAME=VALUE].

The same command resumes a run that was interrupted.
"""
from __future__ import annotations

import argparse
import sys

import gin

from spec_cascades.training import loop


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--gin_file', action='append', required=True)
  args, rest = parser.parse_known_args()
  bindings = []
  for item in rest:
    if not item.startswith('--gin.') or '=' not in item:
      print(f'train.py: {item!r} is not known; give --gin_file=FILE and '
            '--gin.NAME=VALUE.', file=sys.stderr)
      return 2
    name, value = item.removeprefix('--gin.').split('=', 1)
    bindings.append(f'{name} = {value}')
  try:
    gin.parse_config_files_and_bindings(args.gin_file, bindings)
    run = gin.get_configurable(loop.train)
  except (ValueError, OSError, SyntaxError) as error:
    print('train.py: ' + ' '.join(str(error).split()), file=sys.stderr)
    return 2
  try:
    run(log=lambda line: print(line, flush=True))
  except (ValueError, TypeError) as error:
    print('train.py: ' + ' '.join(str(error).split()), file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
