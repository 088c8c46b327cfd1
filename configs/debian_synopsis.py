"""All rules, baselines and the truncation control on descriptions of packages.

Command:
  python scripts/sweep.py --config=configs/debian_synopsis.py
Needs: the corpus: python scripts/build_corpus.py.
Result: runs/debian_synopsis/test: 120 points on 500 descriptions of the test
split that have no near-duplicate in train, by ROUGE-L, in 17 to 40 minutes on
two cores; docs/synopsis.md shows what came out. What is in the
folder, and what can be had of the finished sweep, is as of debian.py:
  python scripts/analyse.py runs/debian_synopsis/test --draw \
    'SpecDecode, gamma 3' SeqCascade Lossy 'OPT, gamma 3' 'TokenV3, gamma 3' \
    TruncatedMinP
"""


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('test', ('gin/sweeps/debian.gin', 'gin/protocols/local.gin',
                    'gin/tasks/debian_synopsis.gin'), ())]
