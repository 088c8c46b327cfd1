"""Scripts of this project as several processes on one machine."""
import os
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
JOINED = 120                  # seconds to wait for anything, at most


def free_port():
  with socket.socket() as found:
    found.bind(('localhost', 0))
    return found.getsockname()[1]


def start(count, *command, devices=1, stdin=None, **env):
  """`python` with this command, `count` times, joined on the loopback."""
  flags = os.environ.get('XLA_FLAGS', '')
  if devices > 1:
    flags += f' --xla_force_host_platform_device_count={devices}'
  place = f'localhost:{free_port()}'       # one process alone does not use it
  return [subprocess.Popen(
      [sys.executable, *map(str, command)], cwd=ROOT, text=True,
      stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      env=dict(os.environ, JAX_PLATFORMS='cpu', XLA_FLAGS=flags,
               PYTHONPATH=f'{ROOT}{os.pathsep}{ROOT / "tests"}',
               JAX_COORDINATOR_ADDRESS=place, JAX_NUM_PROCESSES=str(count),
               JAX_PROCESS_ID=str(i), **env)) for i in range(count)]


def finish(processes, timeout=540, code=0):
  """What they wrote, (stdout, stderr) each; all end with this exit code.

  Lines of Gloo's own, which it prints to stdout now and then, are left out.
  """
  texts = [process.communicate(timeout=timeout) for process in processes]
  for process, (_, err) in zip(processes, texts):
    assert process.returncode == code, err
  return [(''.join(line for line in out.splitlines(True)
                   if not line.startswith('[Gloo]')), err)
          for out, err in texts]


def wait_for(condition, *processes, seconds=JOINED):
  """Until it holds; none of the processes may end before."""
  limit = time.monotonic() + seconds
  while not condition():
    for process in processes:
      assert process.poll() is None, process.communicate()
    assert time.monotonic() < limit
    time.sleep(.02)


def stopped(processes, seconds=60):
  """What each wrote to stderr; all have to fail within `seconds`."""
  limit = time.monotonic() + seconds
  texts = []
  for process in processes:
    _, err = process.communicate(timeout=max(1, limit - time.monotonic()))
    assert process.returncode not in (0, None), err
    texts.append(err)
  return texts
