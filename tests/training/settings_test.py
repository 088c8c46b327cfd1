"""Settings of a run are kept beside it, and a changed one is said."""
import dataclasses
import json

import numpy as np
import pytest

from spec_cascades.models import t5
from spec_cascades.training import data
from spec_cascades.training import loop
from spec_cascades.training import online
from spec_cascades.training import optimizers
from spec_cascades.training import settings
from training.runs import recipe


class Words:
  """A vocabulary that is no dataclass."""
  path = 'words.model'


@pytest.fixture
def run(tmp_path):
  corpus = data.ParallelText(str(tmp_path), Words(), buckets=(48,))
  return loop.Run(t5.T5(t5.T5Config(num_heads=2)), corpus, str(tmp_path),
                  recipe())


def test_every_setting_has_a_name_and_no_address(run):
  found = settings.flat(run)
  assert found['lm.config.num_heads'] == '2' and found['lm'] == 'T5'
  assert found['recipe.steps'] == '12' and found['corpus.buckets'] == '(48,)'
  assert found['corpus.vocabulary'] == 'Words(words.model)'
  assert found['optimizer'] == 'spec_cascades.training.optimizers.adafactor'
  assert not [x for x in found.values() if ' at 0x' in x]
  names = {f'recipe.{f.name}' for f in dataclasses.fields(loop.Recipe)}
  assert names < set(found)


def test_what_changed_is_said_once(run, tmp_path):
  assert settings.compare(tmp_path, run, 0) == []
  assert settings.compare(tmp_path, run, 4) == []
  changed = dataclasses.replace(
      run, recipe=recipe(steps=20), optimizer=optimizers.adamw,
      online=online.Online(gamma=3))
  lines = settings.compare(tmp_path, changed, 8)
  assert 'since step 0, recipe.steps was 12, is 20' in lines
  assert 'since step 0, online.gamma was absent, is 3' in lines
  assert any('optimizers.adamw' in x for x in lines)
  assert settings.compare(tmp_path, changed, 9) == []
  rows = (tmp_path / settings.FILE).read_text().splitlines()
  assert [json.loads(row)['step'] for row in rows] == [0, 8]


def test_a_run_from_before_a_setting_had_what_is_its_default(run, tmp_path):
  settings.compare(tmp_path, run, 0)
  place = tmp_path / settings.FILE
  row = json.loads(place.read_text())
  del row['settings']['recipe.z_loss']
  place.write_text(json.dumps(row) + '\n')
  assert settings.compare(tmp_path, run, 4) == []
  changed = dataclasses.replace(run, recipe=recipe(z_loss=0.))
  assert settings.compare(tmp_path, changed, 4) == [
      'since step 0, recipe.z_loss was 0.0001, is 0.0']


def test_other_texts_under_the_same_name_are_said(run, tmp_path):
  """The step is all of a position in them, so they have to be the same."""
  one, other = ({16: dict(inputs=np.arange(6).reshape(2, 3) + x)}
                for x in (0, 1))
  assert settings.digest(one) == settings.digest(dict(one))
  for x in (other, {32: one[16]}, {16: dict(targets=one[16]['inputs'])},
            {16: dict(inputs=one[16]['inputs'].reshape(3, 2))}):
    assert settings.digest(x) != settings.digest(one)
  first, then = map(settings.digest, (one, other))
  assert settings.compare(tmp_path, run, 0, first) == []
  assert settings.compare(tmp_path, run, 3, first) == []
  assert settings.compare(tmp_path, run, 3) == []       # not asked
  line, = settings.compare(tmp_path, run, 4, then)
  assert line == (f'since step 0, {settings.TEXTS} was {first}, is {then}')
  assert settings.compare(tmp_path, run, 5, then) == []


@pytest.mark.parametrize('content', ['{}\n', '[1]\n', 'x\n', '\n'])
def test_a_damaged_file_is_named(run, tmp_path, content):
  (tmp_path / settings.FILE).write_text(content)
  with pytest.raises(ValueError, match='settings.jsonl does not hold settings'):
    settings.compare(tmp_path, run, 0)
