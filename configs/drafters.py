"""Every way to draft for the shipped verifier, in one table.

Command:
  python scripts/sweep.py --config=configs/drafters.py
Needs: a datastore, step times and sublayers, see gin/sweeps/drafters.gin.
Result: runs/drafters/ende: twelve drafters, greedy and sampled, lossless, with
tokens per call, speed-up over the verifier alone, and how the time of a decode
splits into drafting and verification. Not run to the end yet.
"""


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('ende', ('gin/sweeps/drafters.gin', 'gin/protocols/details.gin'),
           ())]
