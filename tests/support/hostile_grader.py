"""A hostile grader: each function is an attack that returns 1.0 if it was blocked, and raises if it succeeded.

It is never imported: `tests.support.python_attacks` reads it as the source of a python grader.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

calls = 0


def grade(sample, item):
    return globals()[item["attack"]](item)


def refused(*actions):
    """1.0 if each of the actions fails with an OSError."""
    for number, action in enumerate(actions):
        try:
            result = action()
        except OSError:
            continue
        raise AssertionError(f"action {number} succeeded: {result!r:.200}")
    return 1.0


def is_honest(item):
    """Not an attack: checks that another grade has left nothing behind."""
    global calls
    calls += 1
    assert calls == 1 and not os.listdir("."), "another grade left something behind"
    refused(lambda: os.kill(-1, 0))
    return 0.25


def uses_what_it_may(item):
    """Not an attack either: uses what a grader may use."""

    async def soon():
        return 1

    assert asyncio.run(soon()) == 1
    code = "import numpy; print(int(numpy.ones(3).sum()))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    assert done.stdout == b"3\n" and len(os.urandom(8)) == 8 and os.listdir("/dev")
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(1 << 20))
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()
    return 1.0


def reads_secrets(item):
    known = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    known |= {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PWD"}  # set by bubblewrap
    assert set(os.environ) <= known and "secret" not in str(os.environ), os.environ
    paths = ["/proc/1/environ", "/proc/self/environ", "/proc/self/mem", "/etc/shadow", "/etc/passwd", "/sys/kernel"]
    paths += [item["secret_file"], f"/proc/{item['pid']}/environ"]
    return refused(*(lambda path=path: os.stat(path) for path in paths))


def writes_outside(item):
    paths = ["/x", "/usr/lib/x", "/etc/x", "/dev/x", os.path.dirname(os.__file__) + "/x", item["secret_file"]]
    return refused(
        *(lambda path=path: open(path, "w") for path in paths),
        lambda: os.chmod(os.__file__, 0o777),
        lambda: os.unlink(os.__file__),
        lambda: os.mknod("device", 0o60666, os.makedev(254, 0)),
    )


def opens_sockets(item):
    def abstract():
        one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return one.sendto(b"x", item["abstract"])

    families = [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET]
    return refused(
        *(lambda family=family: socket.socket(family) for family in families),
        lambda: urllib.request.urlopen(item["url"], timeout=5),
        lambda: socket.create_connection(("127.0.0.1", item["port"]), timeout=5),
        abstract,
    )


def calls_the_kernel(item):
    libc = ctypes.CDLL(None, use_errno=True)
    for name, number in item["denied"].items():
        ctypes.set_errno(0)
        assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, name
    for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000):
        ctypes.set_errno(0)
        assert libc.unshare(flag) == -1, "unshare"
        assert libc.syscall(item["clone"], flag | signal.SIGCHLD, 0, 0, 0, 0) == -1, "clone"
    return refused(lambda: os.setuid(0), lambda: os.chroot("/"), lambda: os.setgroups([0]))


def changes_limits(item):
    def raises_its_own():
        try:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except ValueError as error:
            raise OSError from error

    return refused(
        raises_its_own,
        lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: os.sched_setaffinity(0, range(64)),
        lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    )


def imports_our_code(item):
    for name in ("trainer.spec.operator", "actors.sandbox.start", "cluster", "serve"):
        try:
            __import__(name)
        except ImportError:
            continue
        raise AssertionError(name)
    return 1.0


def kills_everyone(item):
    """The first process of a namespace ignores all of these signals."""
    assert os.getppid() == 1, "no namespace: this would hit the machine"
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV):
        os.kill(1, number)
        os.kill(os.getppid(), number)
    return refused(lambda: os.kill(-1, signal.SIGKILL), lambda: os.kill(item["pid"], signal.SIGKILL))


def starts_threads(item):
    stop = threading.Event()
    try:
        for _ in range(10_000):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        return 1.0
    raise AssertionError("10,000 threads")


def leaves_a_daemon(item):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True:
                with open(f"daemon-{time.monotonic()}", "w"):
                    pass
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    return 1.0


def plays_with_links(item):
    os.symlink(os.path.dirname(item["secret_file"]), "folder")
    os.symlink("/", "root")
    os.symlink(".", "loop")
    os.makedirs("closed/inside/more")
    os.chmod("closed/inside", 0)
    for _ in range(500):
        os.mkdir("deep" * 20)
        os.chdir("deep" * 20)
    return 1.0


def fills_the_scratch_folder(item):
    written = 0
    try:
        for number in range(1000):
            with open(f"file-{number}", "wb") as file:
                for _ in range(8):
                    written += file.write(bytes(1 << 20))
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EFBIG), error
        assert written <= item["scratch_bytes"], written
        return 1.0
    raise AssertionError(f"{written} bytes")


def prints_a_gigabyte(item):
    text = "x" * (1 << 20)
    for _ in range(512):
        print(text)
        print(text, file=sys.stderr)
    return 1.0


# -- attacks that fail the grade ---------------------------------------------------------------------------------------


def forges_a_result(item):
    for descriptor in range(256):
        try:
            os.write(descriptor, b'{"value": 0.77}\n')
        except OSError:
            continue
    return 0.5


def forges_from_a_child(item):
    if os.fork() == 0:
        forges_a_result(item)
        os._exit(0)
    os.wait()
    return 0.5


def closes_everything(item):
    os.closerange(0, 256)
    return 0.5


def exits(item):
    sys.exit(3)


def exits_at_once(item):
    os._exit(3)


def recurses(item):
    recurses(item)


def overflows_the_stack(item):
    sys.setrecursionlimit(10**9)
    sorted([0], key=lambda _: overflows_the_stack(item))


def returns_much(item):
    return "x" * 50_000_000


def returns_a_huge_number(item):
    return 1 << 10_000_000


def raises_much(item):
    raise ValueError("x" * 50_000_000)


def takes_memory(item):
    return len(bytearray(1 << 40))


def takes_memory_in_many_processes(item):
    for _ in range(20):
        if os.fork() == 0:
            held = [b"x" * (1 << 26) for _ in range(3)]
            time.sleep(1000)
            os._exit(len(held))
    time.sleep(1000)


def never_returns(item):
    while True:
        pass


def never_gives_in(item):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        try:
            while True:
                time.sleep(0.001)
        except BaseException:  # noqa: BLE001 - that is the attack
            pass


def fork_bomb(item):
    while True:
        with contextlib.suppress(OSError):
            os.fork()
