"""Predicted tokens of drafters on the command line."""
import cli_test
import pytest

from tests import tinypair


@pytest.fixture
def models(tmp_path):
  folder = tinypair.make(tmp_path)
  return ['--verifier', str(folder / 'verifier'), '--drafter_dir',
          str(folder / 'drafter')]


@pytest.mark.slow
def test_a_line_for_each_drafter(models):
  (code, err, out, _), = cli_test.drive('predict_tokens', [
      ['--drafter', 'null', 'ngram', '--examples', '2', '--max_length', '6',
       *models]])
  lines = out.splitlines()
  assert code == 0 and len(lines) == 2, err
  assert lines[0].startswith('null: 1.00 tokens a call, predicted 1.00 (+0.0%)')
  assert 'rounds' in err


def test_what_cannot_be_is_said_before_a_model_is_read(models):
  for (code, err, out, programs), said in zip(
      cli_test.drive('predict_tokens', [
          ['--drafter', 'lookahead', *models], ['--drafter', 'nobody', *models],
          ['--drafter', 'chain', '--examples', '0', *models]]),
      ('lookahead drafts by what earlier', "Unknown drafter 'nobody'",
       '--examples is 0')):
    assert code == 2 and said in err and programs == 0 and not out
    assert err.count('\n') == 1
