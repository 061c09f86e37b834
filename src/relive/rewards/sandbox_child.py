"""The program that runs untrusted Python code: it ties its own hands, then lets the code go.

It is started as a script in a process of its own, imports nothing of Relive, and speaks with `relive.rewards.code` by
frames (4 bytes of length, then JSON) on its standard input and on the descriptor named in its first argument:

1. in:  ``{"code", "stdin", "limits", "readable", "folder"}``
2. out: ``{"isolation": [...]}``, before any of the code runs
3. out: ``{"ran": bool}``, when the code has ended
4. in:  ``{"tests", "token"}``, only now, so that the code had no tests to read
5. out: ``{"token", "passed", "problem"}``

The last answer counts only with the token: code that leaves early (``os._exit(0)``) proves nothing.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x8000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MOUNT_PRIVATE_BELOW, MOUNT_NO_SETUID_NO_DEVICES = 0x44000, 0x2 | 0x4
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
ALL_FILE_RIGHTS = (1 << 13) - 1  # version 1 of Landlock's file rights
READ_RIGHTS = 0b1101  # execute, read a file, list a folder
RIGHTS_OF_A_FILE = 0b0111  # those that mean something for a file that is no folder
TCP_RIGHTS = 0b11  # bind and connect, from version 4


def read_frame(descriptor: int) -> Any:
    """One frame as a value; ends the process when the other side is gone."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        wanted = 4 - len(data) if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data)
        piece = os.read(descriptor, wanted)
        if not piece:
            os._exit(3)
        data += piece
    return json.loads(data[4:])


def write_frame(descriptor: int, value: Any) -> None:
    """Writes one value as a frame."""
    body = json.dumps(value).encode()
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(descriptor, data) :]


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def enter_namespaces(libc: Any, folder: str) -> list[str]:
    """New, empty network and process worlds, as an unprivileged user may make them; gives what was granted."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC) != 0:
        return []
    with contextlib.suppress(OSError):
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(line)
    # A small file system in memory, so that the code cannot fill the disk. Where it is refused the limits stand alone.
    libc.mount(b"none", b"/", None, MOUNT_PRIVATE_BELOW, None)
    libc.mount(b"none", folder.encode(), b"tmpfs", MOUNT_NO_SETUID_NO_DEVICES, b"size=64m,mode=700")
    return ["network", "processes"]


def restrict_files(libc: Any, readable: list[str], folder: str) -> list[str]:
    """Landlock: read the interpreter, write one folder, touch nothing else; gives what was granted."""
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return []
    ruleset = _Ruleset(ALL_FILE_RIGHTS, TCP_RIGHTS)
    rules = libc.syscall(LANDLOCK_CREATE, ctypes.byref(ruleset), 16 if version >= 4 else 8, 0)
    if rules < 0:
        return []
    allowed = [(path, READ_RIGHTS) for path in readable]
    for path, rights in [*allowed, ("/dev/null", RIGHTS_OF_A_FILE), (folder, ALL_FILE_RIGHTS)]:
        with contextlib.suppress(OSError):
            opened = os.open(path, os.O_PATH)
            granted = rights if Path(path).is_dir() else rights & RIGHTS_OF_A_FILE
            libc.syscall(LANDLOCK_ADD, rules, 1, ctypes.byref(_PathRule(granted, opened)), 0)
            os.close(opened)
    if libc.syscall(LANDLOCK_RESTRICT, rules, 0) != 0:
        return []
    os.close(rules)
    return ["files", "network"] if version >= 4 else ["files"]


def limit_resources(limits: dict[str, int], *, own_processes: bool) -> None:
    """Hard limits of the operating system, which the code cannot raise again."""
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file"], limits["file"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    if own_processes:  # elsewhere the limit would count all of the user's processes
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit on the address space
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))


def wait_for(runner: int) -> None:
    """What is left to the first process: its own end takes the runner's whole world along."""
    os.closerange(3, 64)
    code = os.waitstatus_to_exitcode(os.waitpid(runner, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def isolate(job: dict[str, Any]) -> list[str]:
    """Limits and walls, as many as the system grants, in a fork of this process; gives the walls that stand."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    isolation = enter_namespaces(libc, job["folder"]) if libc else []
    if libc:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    runner = os.fork()
    if runner:
        wait_for(runner)
    if libc:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir(job["folder"])
    limit_resources(job["limits"], own_processes="processes" in isolation)
    if libc:
        isolation += restrict_files(libc, job["readable"], job["folder"])
    return sorted(set(isolation))


def attempt(source: str, name: str, namespace: dict[str, Any]) -> str | None:
    """Runs source text; gives what went wrong in one line, ``None`` if nothing did."""
    try:
        exec(compile(source, name, "exec"), namespace)  # noqa: S102 - this is what the program is for
    except BaseException as error:  # noqa: BLE001 - whatever it raises, it failed, and the next test still has to run
        if isinstance(error, SystemExit) and error.code in {None, 0} and name == "<answer>":
            return None
        return f"{type(error).__name__}: {error}"[:500]
    return None


def main() -> None:
    """Runs one job."""
    answers = int(sys.argv[1])
    orders = os.dup(0)
    job = read_frame(orders)
    standard_input = os.open(job["stdin"], os.O_RDONLY)
    os.dup2(standard_input, 0)
    os.close(standard_input)
    write_frame(answers, {"isolation": isolate(job)})
    namespace: dict[str, Any] = {"__name__": "__main__"}
    problem = attempt(job["code"], "<answer>", namespace)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    write_frame(answers, {"ran": problem is None})
    order = read_frame(orders)
    problems = [attempt(test, "<test>", namespace) for test in order["tests"]]
    problem = problem or next((p for p in problems if p), None)
    write_frame(answers, {"token": order["token"], "passed": [p is None for p in problems], "problem": problem})
    os._exit(0)


if __name__ == "__main__":
    main()
