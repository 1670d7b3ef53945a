"""Hostile code under test: each function is an attack, with what the grader passes on standard input.

It is never imported: `tests.support.untrusted_attacks` runs it as the code of `run_untrusted`. The task is to print the
sum of two numbers; an attack that was blocked does so, one that succeeded raises.
"""

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)


def solve(task):
    print(task["a"] + task["b"])


def refused(*actions):
    for number, action in enumerate(actions):
        try:
            result = action()
        except OSError:
            continue
        raise AssertionError(f"action {number} succeeded: {result!r:.200}")


def call(number, *arguments):
    """A system call, which fails with OSError."""
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "a system call")
    return result


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


# -- blocked: the code gets what its answer deserves -------------------------------------------------------------------


def is_honest(task):
    import numpy as np

    assert np.ones(2).sum() == 2
    solve(task)


def reads_the_grader(task):
    """Neither its memory, nor its source or files, nor the secret of who runs it."""
    assert os.getpid() < 10 and os.getppid() == 1
    assert "VERY_SECRET" not in os.environ and not os.path.exists("/proc/self")
    for name in ("agent_rft", "grader"):
        assert name not in sys.modules
    refused(*(lambda descriptor=descriptor: os.fstat(descriptor) for descriptor in range(3, 256)))
    refused(
        lambda: os.open(task["secret_file"], os.O_RDONLY),
        lambda: call(task["process_vm_readv"], 1, 0, 0, 0, 0, 0),
        lambda: call(task["process_vm_readv"], task["pid"], 0, 0, 0, 0, 0),
        lambda: call(task["pidfd_getfd"], os.pidfd_open(1), 3, 0),
        *(lambda place=place: os.listdir(place) for place in (task["folder"], "/proc/1", "/run", "/home")),
    )
    solve(task)


def traces_others(task):
    refused(*(lambda pid=pid: call(task["ptrace"], 16, pid, 0, 0) for pid in (1, task["pid"], os.getpid())))
    solve(task)


def signals_others(task):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV):
        os.kill(1, number)
    refused(lambda: os.kill(task["pid"], 0), lambda: os.kill(-1, 0), lambda: os.kill(3, 0))
    solve(task)


def writes_outside(task):
    refused(
        *(
            lambda place=place: os.mkdir(f"{place}/mine")
            for place in ("/", "/dev", "/usr/lib", "/.own", task["folder"])
        ),
        lambda: os.symlink("/etc", "/mine"),
        lambda: os.chmod("/", 0o777),
        lambda: os.open("/.own/agent_rft/actors/sandbox/pid1.py", os.O_WRONLY),
    )
    os.symlink(task["secret_file"], "link")
    os.symlink("/", "root")
    refused(lambda: os.open("link", os.O_RDONLY), lambda: os.mkdir("root/mine"))
    solve(task)


def uses_the_network(task):
    refused(
        lambda: socket.socket(socket.AF_INET),
        lambda: socket.socket(socket.AF_INET6),
        lambda: socket.socket(socket.AF_UNIX),
        lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        lambda: socket.create_connection(("127.0.0.1", task["port"]), 1),
    )
    solve(task)


def changes_clocks_and_limits(task):
    refused(
        lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
        lambda: call(task["adjtimex"], 0),
        lambda: os.nice(-1),
        lambda: os.setuid(0),
        lambda: call(task["unshare"], 0x10000000),
    )
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        hard = resource.getrlimit(kind)[1]
        assert hard != resource.RLIM_INFINITY
        try:
            resource.setrlimit(kind, (hard, hard + 1))
        except (OSError, ValueError):
            continue
        raise AssertionError(kind)
    solve(task)


def hides_its_children(task):
    """Children that are discarded without being waited for would not be in the sum of processor times."""
    handler = signal.getsignal(signal.SIGCHLD)
    refused(
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGCHLD, lambda *_: None),
        lambda: call(task["prctl"], 36, 1, 0, 0, 0),  # PR_SET_CHILD_SUBREAPER
    )
    assert handler == signal.SIG_DFL
    solve(task)


def leaves_files(task):
    """The next run starts in an empty folder."""
    with open("left", "w") as file:
        file.write("x")
    os.chmod("main.py", 0)
    solve(task)


def shares_memory(task):
    refused(lambda: mmap.mmap(-1, 1 << 20), lambda: call(task["memfd_create"], b"x", 0))
    solve(task)


def fills_its_folder(task):
    try:
        with open("file", "wb") as file:
            for _ in range(100):
                file.write(bytes(1 << 20))
    except OSError:
        solve(task)


def starts_many(task):
    """Stopped at the limit of processes; all are gone afterwards."""
    started = 0
    try:
        while started < 1000:
            if os.fork() == 0:
                time.sleep(1000)
            started += 1
    except OSError:
        assert started < 40
        solve(task)


def leaves_a_daemon(task):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
            time.sleep(1000)
        os._exit(0)
    solve(task)


# -- forged: no answer, so no reward -----------------------------------------------------------------------------------


def prints_a_result(task):
    """A grader that believes texts or exit statuses of the code would be lost; this one compares."""
    for text in ('{"value": 1.0}', '{"exit": 0, "stdout": "5"}', "PASSED", "OK (1 test)"):
        print(text)


def writes_to_descriptors(task):
    packet = b'\x00\x00\x00\x10{"value": 1.0}  '
    refused(*(lambda descriptor=descriptor: os.write(descriptor, packet) for descriptor in range(3, 256)))
    refused(*(lambda descriptor=descriptor: os.read(descriptor, 1) for descriptor in range(3, 256)))


def exits_early(task):
    import atexit

    atexit.register(os._exit, 0)
    sys.exit(0)


def closes_everything(task):
    os.closerange(0, 256)


# -- ended -------------------------------------------------------------------------------------------------------------


def spins(task):
    while True:
        pass


def sleeps(task):
    solve(task)
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    time.sleep(1000)


def forks_for_ever(task):
    while True:
        try:
            os.fork()
        except OSError:
            continue


def burns_in_children(task):
    """In children that nobody waits for, of this session, another, and a clone that sends no signal; and in threads."""
    solve(task)
    sys.stdout.flush()
    ended, held = os.pipe()
    for number in range(3):
        pid = call(task["clone"], 0, 0, 0, 0, 0) if number == 2 else os.fork()
        if pid == 0:
            if number == 1:
                os.setsid()
            burn(0.4)
            os._exit(0)
    os.close(held)
    subprocess.run([sys.executable, "-S", "-c", "import time\nwhile time.process_time() < .4: pass"], check=True)
    threads = [threading.Thread(target=burn, args=(0.2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.read(ended, 1)  # until the last child has ended


def takes_memory(task):
    for _ in range(8):
        if os.fork() == 0:
            held = b"x" * (32 << 20)
            time.sleep(1000)
            print(len(held))
    time.sleep(1000)


def fills_socket_buffers(task):
    pairs = []
    for _ in range(16):
        if os.fork() == 0:
            while True:
                try:
                    pair = socket.socketpair()
                    pair[0].setblocking(False)
                    while True:
                        pair[0].send(bytes(1 << 16))
                except BlockingIOError:
                    pairs.append(pair)
                except OSError:
                    time.sleep(1000)
    time.sleep(1000)


def floods(task):
    """Most of it is dropped while it is read."""
    chunk = bytes(1 << 16)
    for _ in range(4096):
        os.write(1, chunk)
        os.write(2, chunk)
    os.kill(os.getpid(), signal.SIGKILL)


def crashes(task):
    ctypes.string_at(0)


def main(name):
    assert os.listdir(".") == ["main.py"], "another run left something behind"
    globals()[name](json.loads(sys.stdin.read()))
