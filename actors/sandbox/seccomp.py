"""Seccomp filter of a sandbox, which allows the system calls that Python and numpy need and denies all others.

Denied calls include:

- calls that reach beyond the sandbox's processes and files (sockets, tracing, mounts, namespaces, keys)
- calls used in known sandbox escapes (bpf, io_uring, userfaultfd, ...)
- calls that allocate memory that the sandbox's limit does not count (memfd, System V shared memory, messages with
  descriptors, splice)
- calls that change the clock, or the limits or priority of another process

Some calls are allowed only with certain arguments (`_argument_filters`).
"""

from __future__ import annotations

import errno
import platform
import struct

MACHINES = ("x86_64", "aarch64")
ALLOWED: dict[str, tuple[int, int]] = {
    # files
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "lseek": (8, 62),
    "openat": (257, 56), "openat2": (437, 437), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23),
    "dup3": (292, 24), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "fstatfs": (138, 44), "faccessat": (269, 48), "faccessat2": (439, 439), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "renameat": (264, 38),
    "renameat2": (316, 276), "mkdirat": (258, 34), "linkat": (265, 37), "unlinkat": (263, 35), "symlinkat": (266, 36),
    "mknodat": (259, 33), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55),
    "fchownat": (260, 54), "umask": (95, 166), "utimensat": (280, 88), "truncate": (76, 45), "ftruncate": (77, 46),
    "fallocate": (285, 47), "fadvise64": (221, 223), "readahead": (187, 213), "fsync": (74, 82), "fdatasync": (75, 83),
    "flock": (73, 32), "sendfile": (40, 71), "copy_file_range": (326, 285), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    # memory
    "brk": (12, 214), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "mincore": (27, 232), "msync": (26, 227), "get_mempolicy": (239, 236), "membarrier": (324, 283),
    # processes
    "execve": (59, 221), "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260),
    "waitid": (247, 95), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getpgid": (121, 155),
    "setpgid": (109, 154), "getsid": (124, 156), "setsid": (112, 157), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "capget": (125, 90), "getpriority": (140, 141), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "getrusage": (98, 165), "times": (100, 153), "uname": (63, 160), "sysinfo": (99, 179),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getscheduler": (145, 120),
    "sched_getparam": (143, 121), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    # signals
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "getitimer": (36, 102),
    "setitimer": (38, 103),
    # waiting
    "futex": (202, 98), "futex_waitv": (449, 449), "futex_wake": (454, 454), "futex_wait": (455, 455),
    "futex_requeue": (456, 456), "ppoll": (271, 73), "pselect6": (270, 72), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd2": (290, 19),
    "signalfd4": (289, 74), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    "pipe2": (293, 59), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "getrandom": (318, 278),
    # socket pairs
    "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
}  # fmt: skip
"""System calls by name, with their numbers on x86-64 and 64-bit ARM, from arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux."""
ALLOWED_X86: dict[str, int] = {
    "open": 2, "creat": 85, "dup2": 33, "stat": 4, "lstat": 6, "access": 21, "readlink": 89, "getdents": 78,
    "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87, "symlink": 88, "mknod": 133, "chmod": 90,
    "chown": 92, "lchown": 94, "utime": 132, "utimes": 235, "futimesat": 261, "fork": 57, "vfork": 58, "getpgrp": 111,
    "arch_prctl": 158, "pause": 34, "alarm": 37, "poll": 7, "select": 23, "epoll_create": 213, "epoll_wait": 232,
    "eventfd": 284, "signalfd": 282, "pipe": 22, "time": 201,
}  # fmt: skip
"""Older system calls that 64-bit ARM does not have, with their numbers on x86-64."""
CHECKED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "rt_sigaction": (13, 134),
    "mmap": (9, 222),
    "socketpair": (53, 199),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
}
"""Calls that are allowed only with certain arguments."""
LAST_KNOWN = 469
"""Highest system call number of Linux 6.17. Newer calls fail with ENOSYS, as on a kernel that does not have them.
Libraries then fall back to older calls."""
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020080
"""Clone flags that create namespaces: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""
AF_UNIX = 1
MSG_OOB = 1
SIGCHLD = 17
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x01, 0x20, 0x40000
FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
"""Allowed commands of fcntl: F_DUPFD, GETFD, SETFD, GETFL, SETFL, GETLK, OFD_GETLK, DUPFD_CLOEXEC, GETPIPE_SZ.
SETPIPE_SZ is denied, because it enlarges a buffer."""
FCNTL_IGNORED = (6, 7, 37, 38)
"""Commands of fcntl that succeed without locking anything: F_SETLK, SETLKW, OFD_SETLK, OFD_SETLKW.
A real lock would use memory that the sandbox's limit does not count. SQLite needs these calls to succeed."""
IOCTL = (0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Allowed requests of ioctl: TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
PRCTL = (3, 15, 16, 21, 23, 39, 0x53564D41)
"""Allowed prctl options: PR_GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, GET_NO_NEW_PRIVS, SET_VMA."""

LOAD, AND, EQUAL, GREATER_OR_EQUAL, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
DENY = ERRNO | errno.EPERM
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
"""Offsets of fields in struct seccomp_data."""
Step = tuple[int, int, int, int]
"""Instruction of the filter: code, steps to skip if true, steps to skip if false, value."""


def is_architecture_supported() -> bool:
    return platform.machine() in MACHINES


def allowed_calls(machine: str) -> dict[str, int]:
    """Return the numbers of the calls that are allowed with any arguments."""
    column = MACHINES.index(machine)
    legacy = ALLOWED_X86 if machine == "x86_64" else {}
    return {name: numbers[column] for name, numbers in ALLOWED.items()} | legacy


def checked_calls(machine: str) -> dict[str, int]:
    """Return the numbers of the calls that are allowed only with certain arguments."""
    column = MACHINES.index(machine)
    return {name: numbers[column] for name, numbers in CHECKED.items()}


def build_filter(machine: str | None = None, *, keeps_sigchld: bool = False) -> bytes:
    """Return the filter as an array of struct sock_filter, for prctl(PR_SET_SECCOMP).

    A denied call fails with EPERM. clone3 fails with ENOSYS, because a filter cannot read its flags; the C library then
    uses clone. A call with another architecture's numbers (32 bit, x32) kills the process. With `keeps_sigchld`, the
    action of SIGCHLD cannot be changed, because the CPU time of ignored children would not be counted.
    """
    machine = machine or platform.machine()
    steps = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        steps += [(GREATER_OR_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    numbers, checks = checked_calls(machine), _argument_filters(keeps_sigchld)
    for name, number in numbers.items():
        steps += [(EQUAL, 0, len(checks[name]), number), *checks[name]]
    for first, last in _ranges(sorted(allowed_calls(machine).values())):
        steps += [(GREATER_OR_EQUAL, 0, 2, first), (GREATER_OR_EQUAL, 1, 0, last + 1), (RETURN, 0, 0, ALLOW)]
    steps += [(GREATER_OR_EQUAL, 0, 1, LAST_KNOWN + 1), (RETURN, 0, 0, ERRNO | errno.ENOSYS), (RETURN, 0, 0, DENY)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _argument_filters(keeps_sigchld: bool) -> dict[str, list[Step]]:
    """Return the filter steps for each system call in `CHECKED`."""
    shared = MAP_SHARED | MAP_ANONYMOUS  # like a huge page, this memory belongs to no process and no file
    mapping = [_load(3), (ANY_BIT, 2, 0, MAP_HUGETLB), (AND, 0, 0, shared), (EQUAL, 0, 1, shared), _DENY, _ALLOW]
    return {
        "clone": _unless_bits(0, NEW_NAMESPACES),
        "clone3": [(RETURN, 0, 0, ERRNO | errno.ENOSYS)],
        "prctl": _if_one_of(0, PRCTL),
        "prlimit64": _if_one_of(0, (0,)),  # only for the process itself
        "rt_sigaction": _KEEP_SIGCHLD if keeps_sigchld else [_ALLOW],
        "mmap": mapping,
        "socketpair": _if_one_of(0, (AF_UNIX,)),
        "fcntl": [_load(1), *_returns(FCNTL_IGNORED, ERRNO), *_if_one_of(1, FCNTL)],
        "ioctl": _if_one_of(1, IOCTL, errno.ENOTTY),
        "sendto": _unless_bits(3, MSG_OOB),
        "recvfrom": _unless_bits(3, MSG_OOB),
    }


_ALLOW: Step = (RETURN, 0, 0, ALLOW)
_DENY: Step = (RETURN, 0, 0, DENY)


_KEEP_SIGCHLD: list[Step] = [
    *((LOAD, 0, 0, ARGUMENTS), (EQUAL, 1, 0, SIGCHLD), _ALLOW),
    *((LOAD, 0, 0, ARGUMENTS + 8), (EQUAL, 0, 3, 0)),  # a null pointer to the new action only reads the current one
    *((LOAD, 0, 0, ARGUMENTS + 12), (EQUAL, 0, 1, 0), _ALLOW, _DENY),
]


def _load(argument: int) -> Step:
    return (LOAD, 0, 0, ARGUMENTS + 8 * argument)


def _if_one_of(argument: int, values: tuple[int, ...], error: int = errno.EPERM) -> list[Step]:
    return [_load(argument), *_returns(values, ALLOW), (RETURN, 0, 0, ERRNO | error)]


def _returns(values: tuple[int, ...], result: int) -> list[Step]:
    """Return steps that make the filter return `result` if the argument loaded last is one of `values`."""
    return [step for value in values for step in ((EQUAL, 0, 1, value), (RETURN, 0, 0, result))]


def _unless_bits(argument: int, bits: int) -> list[Step]:
    return [_load(argument), (ANY_BIT, 0, 1, bits), _DENY, _ALLOW]


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as ranges (first, last) of consecutive numbers, which make the filter shorter."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
