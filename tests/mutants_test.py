"""The list of mutants stays applicable; the long suite runs all of them."""
import ast
import pathlib
import subprocess
import sys

import pytest

from tests.mutants import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_there_are_enough_and_their_names_differ():
  assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 25


@pytest.mark.parametrize('mutant', MUTANTS, ids=lambda m: m.name)
def test_a_mutant_applies_and_still_is_python(mutant):
  text = (ROOT / 'spec_cascades' / mutant.file).read_text()
  assert text.count(mutant.old) == 1
  mutated = text.replace(mutant.old, mutant.new)
  assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))
  assert (ROOT / mutant.test[0]).is_file()


@pytest.mark.slow
def test_every_mutant_dies():
  done = subprocess.run([sys.executable, 'scripts/mutants.py'], cwd=ROOT,
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
