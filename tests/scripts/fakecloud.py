"""A gcloud that keeps slices as folders, with what may go wrong with them.

Run as a program: `gcloud ARGUMENTS`, in the world that $FAKECLOUD names:
  calls.jsonl   every call's arguments
  plan.json     states: what a queued resource goes through, the last one stays;
                '!TEXT' is a failure to ask;
                ask, setup, ray, sweep: by host and how often it was made, what
                happens there: an exit code, or 'preempt'; or a list of them,
                one for each time, the last one stays
                scp: the same, of folders that are copied from there; all but 0
                leaves a part of each file
                address: what is said where a slice's is asked for
                queue: by verb, whether each such call fails; later ones do not
  NAME/         a slice that was asked for; NAME/HOST/ is a host's home
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

WORLD = pathlib.Path(os.environ['FAKECLOUD'])
# What a host really runs of a set-up: the commands that begin so.
SHELL = ('set ', 'mkdir ', 'rm ', 'cd ', '[ ', 'touch ', 'bash ', 'false ')


def counted(path):
  """How often this was called with the path before."""
  count = int(path.read_text()) if path.exists() else 0
  path.write_text(str(count + 1))
  return count


def fail_there(text, code):
  """As ssh does: the host's exit code is in words."""
  print(text, file=sys.stderr)
  fail('ERROR: (gcloud.compute.tpus.tpu-vm.ssh) [/usr/bin/ssh] exited with '
       f'return code [{code}].')


def flag(args, name):
  return next((x.split('=', 1)[1] for x in args if x.startswith(f'{name}=')),
              None)


def fail(text, code=1):
  print(text, file=sys.stderr)
  sys.exit(code)


def queued(args, plan, verb, name):
  folder = WORLD / name
  failures = plan.get('queue', {}).get(verb, ())
  if failures and any(failures[counted(WORLD / verb):][:1]):
    fail(f'ERROR: UNAVAILABLE: {verb}')
  if verb == 'create':
    if folder.exists():
      fail(f'ERROR: ALREADY_EXISTS: {name}')
    counted(WORLD / f'{name}.made')
    folder.mkdir()
  elif not folder.exists():
    fail(f'ERROR: NOT_FOUND: Resource {name} was not found')
  elif verb == 'delete':
    shutil.rmtree(folder)
  elif (folder / 'suspended').exists():
    print('SUSPENDED')
  else:
    made = int((WORLD / f'{name}.made').read_text())
    states = plan['states'][min(made, len(plan['states'])) - 1]
    state = states[min(counted(folder / 'asked'), len(states) - 1)]
    if state.startswith('!'):
      fail(state)
    print(state)


def planned(plan, key, name, host):
  """What happens there."""
  made = (WORLD / f'{name}.made').read_text()
  found = plan.get(key, {}).get(f'{host}.{made}', 0)
  if isinstance(found, list):
    found = found[min(counted(WORLD / f'{name}.{host}.{made}.{key}'),
                      len(found) - 1)]
  return found


def preempt(name):
  (WORLD / name / 'suspended').touch()
  signal.pause()                       # a connection that hangs


def halve(source, target):
  """A copy that was cut off."""
  content = pathlib.Path(source).read_bytes()
  pathlib.Path(target).write_bytes(content[:len(content) // 2 - 1])


def shell(home, command):
  """Runs it there, with the programs of the system; its exit code."""
  env = {'HOME': str(home), 'PATH': os.defpath}
  return subprocess.run(command, shell=True, cwd=home, env=env).returncode


def setup(home, command, what, name, host):
  """Its own commands, without what it would install."""
  if what == 'preempt':
    preempt(name)
  steps = [x if x.startswith(SHELL) else
           f'(exit {what})' if 'setup.sh' in x else ':'
           for x in command.split('; ')]
  if code := shell(home, '; '.join(steps)):
    fail_there(f'pip: no space left on device {host}', code)


def sweep(home, what, name, host):
  """Ten decodes a go, 20 in all, and a note of each start.

  Whatever host 0 has written is kept.
  """
  if not (home / 'spec_cascades').is_dir():
    fail_there('cd: spec_cascades: No such file or directory', 1)
  journal = home / 'spec_cascades/runs/x/examples.jsonl'
  if host == 0:
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = journal.read_text().splitlines() if journal.exists() else []
    done = sum('example' in x for x in lines)
    last = {0: 20, 'preempt': 10}.get(what, done)
    lines += ['{"kind": "compiled"}', *(
        f'{{"line": {i}, "kind": "example"}}' for i in range(done, last))]
    journal.write_text(''.join(f'{x}\n' for x in lines))
    print(f'{last} lines')
  if what == 'preempt':
    time.sleep(1)                      # results are collected meanwhile
    preempt(name)
  if what:
    fail_there(f'sweep.py: no room on host {host}', what)


def node(args, plan, verb, name):
  if not (WORLD / name).exists():
    fail(f'ERROR: NOT_FOUND: {name}')
  if verb == 'describe':
    print(plan.get('address', '10.0.0.7'))
    return
  host = int(flag(args, '--worker'))
  home = WORLD / name / str(host)
  home.mkdir(exist_ok=True)
  if verb == 'scp':
    source, target = (
        str(home / x.split(':', 1)[1]) if x.startswith(f'{name}:') else x
        for x in args[args.index('scp') + 1:][:2])
    if not os.path.exists(source):
      fail(f'scp: {source}: No such file or directory')
    if os.path.isdir(source):
      what = source.startswith(str(home)) and planned(plan, 'scp', name, host)
      shutil.copytree(source, pathlib.Path(target) / pathlib.Path(source).name,
                      dirs_exist_ok=True,
                      copy_function=halve if what else shutil.copy2)
      if what == 'preempt':
        preempt(name)
      if what:
        fail(f'scp: connection to host {host} lost', what)
    else:
      shutil.copy(source, target)
    return
  command = flag(args, '--command')
  if 'scripts/sweep.py --' in command:
    sweep(home, planned(plan, 'sweep', name, host), name, host)
  elif 'setup.sh' in command:
    setup(home, command, planned(plan, 'setup', name, host), name, host)
  elif 'ray start' in command:
    if planned(plan, 'ray', name, host) == 'preempt':
      preempt(name)
  elif code := planned(plan, 'ask', name, host) or shell(home, command):
    fail_there(f'{command}: exit {code}', code)


def main():
  args = sys.argv[1:]
  with (WORLD / 'calls.jsonl').open('a') as file:
    file.write(json.dumps(args) + '\n')
  plan = json.loads((WORLD / 'plan.json').read_text())
  assert args[:2] == ['compute', 'tpus'] and flag(args, '--zone') == 'z'
  kind, verb = args[2:4]
  name = args[4] if verb != 'scp' else next(
      x for x in args[4:6] if ':' in x).split(':')[0]
  (queued if kind == 'queued-resources' else node)(args, plan, verb, name)


if __name__ == '__main__':
  main()
