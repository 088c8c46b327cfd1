"""The README's example runs, and its links lead somewhere."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def test_the_example_decodes(capsys):
  code = re.findall(r'```python\n(.*?)```', README, re.S)[0]
  assert len(code.strip().splitlines()) <= 13
  exec(compile(code, 'README.md', 'exec'), {})
  translation, per_call = capsys.readouterr().out.strip().rsplit('\n', 1)
  assert translation and 1 <= float(per_call.strip('[] ')) <= 6


@pytest.mark.parametrize('link', sorted(set(
    re.findall(r'\]\((?!https?:)([^)#]+)\)', README))))
def test_links_lead_somewhere(link):
  assert (ROOT / link).exists(), f'README.md links to {link}'
