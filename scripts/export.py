"""Exports a training run as a model directory and prints its quality.

With --part, of what was trained beside a frozen verifier (heads, a layer, mask
tokens) only that, without the verifier: a fraction of the size. It knows which
verifier it belongs to, and drafts for no other: medusa:DIR, hydra++:DIR,
eagle:DIR, eagle_static:DIR, eagle_tree:DIR, eagle3:DIR, eagle3_tree:DIR,
pass:DIR or space:DIR.

Examples:
  python scripts/export.py --gin_file=gin/train/drafter.gin --output=runs/model
  python scripts/export.py --part --gin_file=gin/train/eagle.gin \\
    --output=runs/eagle_part
  python scripts/decode.py --drafter eagle:runs/eagle_part "Click the button."
"""
from __future__ import annotations

from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  parser = _cli.gin_parser(__doc__)
  parser.add_argument('--output', required=True, help='the directory to write')
  parser.add_argument('--sentences', type=int, help='texts of each set to '
                      'decode for its quality; default: all')
  parser.add_argument('--part', action='store_true', help='write only what was '
                      'trained beside a verifier that stayed as it is; prints '
                      'its loss on validation')
  parser.add_argument('--verifier', help='with --part: the checkpoint of that '
                      'verifier; default: what the run started from')
  flags, bindings = _cli.parse(parser, args)
  if flags.part and flags.sentences is not None:
    raise ValueError('Got --part and --sentences; a part has the quality of '
                     'its verifier, so leave --sentences out.')
  if flags.verifier and not flags.part:
    raise ValueError('Got --verifier without --part; give both or neither.')
  from spec_cascades.training import export  # pylint: disable=g-import-not-at-top
  from spec_cascades.training import loop  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  run = _cli.call(loop.Run)
  if flags.part:
    export.export_part(run, flags.output, verifier=flags.verifier)
  else:
    export.export(run, flags.output, sentences=flags.sentences)


if __name__ == '__main__':
  _cli.run(main)
