"""The launcher of TPU slices in the world of scripts/fakecloud.py."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'scripts' / 'tpu'))
import launch as script  # noqa: E402
import slices  # noqa: E402, F401

READY = [['WAITING_FOR_RESOURCES', 'ACTIVE']]
RUN = ['--', '--gin_file=gin/sweeps/quickstart.gin', '--gin.A=(1, 2)']


def go(world, action, *rest, kind='v5litepod-16', **plan):
  (world / 'plan.json').write_text(json.dumps(dict(dict(states=READY), **plan)))
  script.main([action, '--name=s', '--project=p', '--zone=z', f'--type={kind}',
               '--output=out', '--poll=.25', '--collect_every=.2', *rest])


def calls(world):
  path = world / 'calls.jsonl'
  return [json.loads(x) for x in path.read_text().splitlines()] if (
      path.exists()) else []


def verbs(world):
  """Verb and host of each call, but what only looks."""
  short = [(x[3], *(y for y in x if y.startswith('--worker')))
           for x in calls(world)]
  return [x for x in short if x[0] != 'describe']


def commands(world, word):
  return [y.removeprefix('--command=') for x in calls(world) for y in x
          if y.startswith('--command=') and word in y]


def journal(folder):
  text = (folder / 'runs/x/examples.jsonl').read_text().splitlines()
  return [entry['line'] for x in text if 'line' in (entry := json.loads(x))]
