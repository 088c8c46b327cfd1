"""Runs one untrusted program, confined by the kernel; see `sandbox`.

This file is run as a script by a fresh interpreter, imports nothing of the
project and reads its task from standard input. A seccomp filter, which can't be
lifted again, lets through the system calls named below, and ends the process at
any other: so nothing that runs later in it, Python or machine code, root or
not, can start a process or thread, run a file, open one for writing, make,
change or remove one, or open a socket.
"""
from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import struct
import sys
import types
from typing import Any

READY = b'ready\n'                           # the filter is in place
PASSED, FAILED, MEMORY = b'passed ', b'failed ', b'memory '
REFUSED = os.EX_OSERR                        # exit code: there is no filter

# What an interpreter needs to compute, to import and to print to nowhere.
CALLS = {'x86_64': '''
    read 0 write 1 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9
    mprotect 10 munmap 11 brk 12 rt_sigaction 13 rt_sigprocmask 14
    rt_sigreturn 15 pread64 17 readv 19 writev 20 access 21 select 23
    sched_yield 24 mremap 25 madvise 28 dup 32 nanosleep 35 getpid 39 exit 60
    uname 63 getcwd 79 readlink 89 gettimeofday 96 getrusage 98 sysinfo 99
    times 100 getuid 102 getgid 104 geteuid 107 getegid 108 getppid 110
    sigaltstack 131 gettid 186 time 201 futex 202 sched_getaffinity 204
    getdents64 217 restart_syscall 219 clock_gettime 228 clock_getres 229
    clock_nanosleep 230 exit_group 231 newfstatat 262 readlinkat 267
    faccessat 269 pselect6 270 ppoll 271 getrandom 318 statx 332
    faccessat2 439''', 'aarch64': '''
    getcwd 17 dup 23 faccessat 48 close 57 getdents64 61 lseek 62 read 63
    write 64 readv 65 writev 66 pread64 67 pselect6 72 ppoll 73 readlinkat 78
    newfstatat 79 fstat 80 exit 93 exit_group 94 futex 98 nanosleep 101
    clock_gettime 113 clock_getres 114 clock_nanosleep 115
    sched_getaffinity 123 sched_yield 124 restart_syscall 128 sigaltstack 132
    rt_sigaction 134 rt_sigprocmask 135 rt_sigreturn 139 times 153 uname 160
    getrusage 165 gettimeofday 169 getpid 172 getppid 173 getuid 174
    geteuid 175 getgid 176 getegid 177 gettid 178 sysinfo 179 brk 214
    munmap 215 mremap 216 mmap 222 mprotect 226 madvise 233 getrandom 278
    statx 291 faccessat2 439'''}
# Let through by an argument: files are opened to read, descriptors only asked.
OPENAT = {'x86_64': 257, 'aarch64': 56}
FCNTL = {'x86_64': 72, 'aarch64': 25}        # F_DUPFD, F_GETFD...
IOCTL = {'x86_64': 16, 'aarch64': 29}        # TCGETS, TIOCGWINSZ, FIOCLEX
FCNTL_COMMANDS = (0, 1, 2, 3, 1030)
IOCTL_REQUESTS = (0x5401, 0x5413, 0x5451)
# Refused without an end: importing socket or subprocess tries it in vain.
EPOLL = {'x86_64': 291, 'aarch64': 20}       # epoll_create1
AUDIT = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4                  # offsets in struct seccomp_data
Instruction = tuple[int, int, int, int]      # code, steps if true, if not, k


def argument(i: int) -> int:
  """Where the low half of a call's i-th argument is in seccomp_data."""
  return 16 + 8 * i


def filter_of(machine: str) -> list[Instruction]:
  """The filter as classic BPF; whatever it doesn't name is killed."""
  reading = (os.O_CLOEXEC | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOCTTY
             | os.O_NOFOLLOW)
  kill, allow = (RETURN, 0, 0, KILL), (RETURN, 0, 0, ALLOW)
  out = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT[machine]), kill,
         (LOAD, 0, 0, NUMBER)]
  for number in map(int, CALLS[machine].split()[1::2]):
    out += [(EQUAL, 0, 1, number), allow]
  out += [(EQUAL, 0, 4, OPENAT[machine]), (LOAD, 0, 0, argument(2)),
          (ANY_BIT, 1, 0, ~reading & 0xFFFFFFFF), allow, kill]
  for numbers, values in (FCNTL, FCNTL_COMMANDS), (IOCTL, IOCTL_REQUESTS):
    out += [(EQUAL, 0, 2 * len(values) + 2, numbers[machine]),
            (LOAD, 0, 0, argument(1))]
    for value in values:
      out += [(EQUAL, 0, 1, value), allow]
    out.append(kill)
  return out + [(EQUAL, 0, 1, EPOLL[machine]), (RETURN, 0, 0, REFUSE), kill]


def confine(machine: str) -> None:
  """Puts the filter on this process for good; OSError if the kernel can't."""
  class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_char_p)]
  rows = filter_of(machine)
  packed = b''.join(struct.pack('=HBBI', *row) for row in rows)
  call = ctypes.CDLL(None, use_errno=True).prctl
  for option, value, pointer in (
      (1, 9, None),                          # PR_SET_PDEATHSIG, SIGKILL
      (38, 1, None),                         # PR_SET_NO_NEW_PRIVS
      (22, 2, ctypes.byref(Program(len(rows), packed)))):  # PR_SET_SECCOMP
    if call(option, ctypes.c_ulong(value), pointer, None, None):
      raise OSError(ctypes.get_errno(), 'prctl')


def limit(seconds: int, memory: int) -> None:
  """Sets what the kernel counts: processor seconds, bytes, files, processes."""
  for name, soft, hard in (
      ('CPU', seconds, seconds + 1), ('AS', memory, memory), ('FSIZE', 0, 0),
      ('NOFILE', 32, 32), ('NPROC', 0, 0), ('CORE', 0, 0)):
    resource.setrlimit(getattr(resource, f'RLIMIT_{name}'), (soft, hard))


def execute(program: str, tests: str) -> bytes:
  """Runs a program, then its tests in the same namespace."""
  module = types.ModuleType('program')
  sys.modules['program'] = module
  try:
    for name, source in ('program', program), ('tests', tests):
      exec(compile(source, name, 'exec'), module.__dict__)
  except MemoryError:
    return MEMORY
  except BaseException as error:             # SystemExit is no success
    return FAILED + type(error).__name__.encode(errors='replace')
  return PASSED


def main() -> None:
  """Reads a task, closes every way out but one pipe, runs it, and says how."""
  task: dict[str, Any] = json.load(sys.stdin)
  said, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
  for descriptor in range(3):
    os.dup2(nowhere, descriptor)
  os.close(nowhere)
  try:
    limit(task['seconds'], task['memory'])
    confine(os.uname().machine)
  except (OSError, ValueError):              # of setrlimit, where it may not
    os._exit(REFUSED)
  os.write(said, READY)
  verdict = execute(task['program'], task['tests'])
  os.write(said, verdict + b' ' + task['secret'].encode())
  os._exit(0)


if __name__ == '__main__':
  main()
