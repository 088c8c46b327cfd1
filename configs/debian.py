"""All rules, baselines and the truncation control with the shipped pair.

Command:
  python scripts/sweep.py --config=configs/debian.py
Needs: the corpus: python scripts/build_corpus.py.
Result: runs/debian/test: 120 points on 500 sentences of the test split that
have no near-duplicate in train. Quality is measured in batches, latency on the
first 60. In tables/ there, claims.md holds the paper's claims against these
curves, each with its figure, and truncation.md the control. 14 to 84 minutes
on two quiet cores; docs/debian.md shows what came out.
Of the finished sweep, a picture of a few curves, and then the time split and
texts side by side, for the report:
  python scripts/analyse.py runs/debian/test --draw 'SpecDecode, gamma 3' \
    SeqCascade Lossy 'OPT, gamma 3' 'TokenV3, gamma 3' TruncatedMinP
  python scripts/sweep.py --config=configs/debian.py \
    --gin.sweep.Sweep.split=True --gin.sweep.Sweep.inspected=8
"""


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('test', ('gin/sweeps/debian.gin', 'gin/protocols/local.gin',
                    'gin/tasks/debian_ende.gin'), ())]
