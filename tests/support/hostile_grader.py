"""A hostile grader: each function is an attack that returns 1.0 if it was blocked, and raises if it succeeded.

It is never imported: `tests.support.python_attacks` reads it as the source of a python grader.
"""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import signal
import socket
import sqlite3
import struct
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
    uses_the_library()
    return 1.0


def uses_the_library():
    """What a list of allowed system calls breaks first."""

    async def talk():
        process = await asyncio.create_subprocess_exec(sys.executable, "-V")
        assert await process.wait() == 0
        one, other = socket.socketpair()
        here, there = await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)
        there[1].write(b"x" * 100_000)
        assert len(await here[0].readexactly(100_000)) == 100_000

    asyncio.run(talk())
    with sqlite3.connect("file.db") as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (1)")
    shutil.copy2("file.db", "copy.db")
    shutil.copytree(".", "../tmp/tree", ignore=lambda *_: ["tree"])
    shutil.make_archive("archive", "gztar", "tree")
    os.mkfifo("fifo")
    with open("mapped", "wb+") as file:
        file.truncate(1 << 16)
        with mmap.mmap(file.fileno(), 0) as shared:
            shared[:3] = b"abc"
            shared.flush()
        assert file.read(3) == b"abc"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # first: unblocked, the alarm kills a delayed process
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    assert signal.sigwait({signal.SIGALRM}) == signal.SIGALRM
    assert not sys.stdin.isatty() and shutil.get_terminal_size() and os.cpu_count()


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
    for number in item["denied"]:
        ctypes.set_errno(0)
        assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, number
    ctypes.set_errno(0)
    assert libc.syscall(5000, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
    for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000):
        ctypes.set_errno(0)
        assert libc.unshare(flag) == -1, "unshare"
        assert libc.syscall(item["numbers"]["clone"], flag | signal.SIGCHLD, 0, 0, 0, 0) == -1, "clone"
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
    for name in ("spec.operator.operator_config", "actors.sandbox.sandbox_start", "cluster", "serve"):
        try:
            __import__(f"agent_rft.{name}")
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


# -- memory that is in no process --------------------------------------------------------------------------------------


def shares_memory(item):
    """Shared memory that is not a file stays when no process maps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (0x21, 0x23, 0x40022, 0x40021):  # SHARED, SHARED_VALIDATE, of huge pages; all ANONYMOUS
        assert libc.mmap(None, ctypes.c_size_t(1 << 21), 3, flags, -1, 0) == -1, hex(flags)
    return refused(lambda: mmap.mmap(-1, 1 << 30), lambda: open("/dev/zero", "rb"), lambda: os.memfd_create("x"))


def enlarges_buffers(item):
    one, other = socket.socketpair()
    read, write = os.pipe()
    return refused(
        lambda: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26),
        lambda: other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26),
        lambda: one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, read.to_bytes(4, sys.byteorder))]),
        lambda: one.send(b"x", socket.MSG_OOB),
        lambda: fcntl.fcntl(write, 1031, 1 << 20),
        *(lambda family=family: socket.socketpair(family) for family in range(46) if family != socket.AF_UNIX),
    )


def in_children(count, action):
    for _ in range(count):
        if os.fork() == 0:
            try:
                action()
                time.sleep(1000)
            finally:
                os._exit(0)


def fills_socket_buffers(item):
    def fill():
        held = [end for _ in range(120) for end in socket.socketpair()]
        for end in held:
            end.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    end.send(bytes(1 << 16))

    in_children(50, fill)
    time.sleep(1000)


def adds_files_to_memory(item):
    """690 MiB are allowed; the files of the scratch folder make it too much."""

    def hold():
        held = b"x" * (230 << 20)
        time.sleep(1000)
        os._exit(len(held))

    in_children(3, hold)
    with open("file", "wb") as file:
        for _ in range(item["scratch_bytes"] >> 20):
            file.write(bytes(1 << 20))
    time.sleep(1000)


def fills_pipes(item):
    """The kernel bounds pipes for each user; the grade is that it did."""
    counts, written = os.pipe(), 0

    def fill():
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.pipe())
        size = 0
        for _, write in held:
            os.set_blocking(write, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    size += os.write(write, bytes(1 << 12))
        os.write(counts[1], size.to_bytes(8, "big"))

    in_children(40, fill)
    for _ in range(40):
        written += int.from_bytes(os.read(counts[0], 8), "big")
    assert written < 256 << 20, written
    return 1.0


def locks_without_end(item):
    """Each lock is memory of the kernel, so none is set."""
    write = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
    with open("file", "w") as file:
        for command in (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38):
            fcntl.fcntl(file, command, write)
        if os.fork() == 0:
            os._exit(struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, write))[0])
        assert os.waitstatus_to_exitcode(os.wait()[1]) == fcntl.F_UNLCK
    return 1.0


def opens_descriptors(item):
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    for end in held:
        os.close(end)
    assert 200 < len(held) <= 256, len(held)
    return 1.0


def forks_without_end(item):
    pids = []
    with contextlib.suppress(OSError):
        while True:
            pids.append(os.fork())
            if pids[-1] == 0:
                time.sleep(1000)
    assert len(pids) <= 64, len(pids)
    return 1.0


def calls_by_name(item):
    """The best known ways out, by name; `calls_the_kernel` tries all numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, number in item["escapes"].items():
        ctypes.set_errno(0)
        result = libc.syscall(number, 0, 0, 0, 0, 0)
        assert result == -1 and ctypes.get_errno() == errno.EPERM, (name, result, ctypes.get_errno())
    return refused(lambda: socket.socket(socket.AF_INET), lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))


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
