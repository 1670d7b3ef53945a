"""The seccomp filter of a grader: a deny list, so that everything that Python and numpy need keeps working.

Denied are calls that reach beyond the sandbox's own processes and files (sockets, tracing, mounts, namespaces, keys),
calls known from sandbox escapes (bpf, io_uring, userfaultfd, ...), calls that allocate memory which no limit counts
(memfd, System V shared memory), and calls that change the clock, or another process's limits or priority.
"""

from __future__ import annotations

import errno
import platform
import struct

DENIED: dict[str, dict[str, int]] = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
        "process_madvise": 440, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "quotactl": 179,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "unshare": 272, "setns": 308,
        "add_key": 248, "request_key": 249, "keyctl": 250,
        "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64,
        "msgget": 68, "mq_open": 240,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "syslog": 103, "vhangup": 153, "iopl": 172,
        "ioperm": 173, "modify_ldt": 154, "sethostname": 170, "setdomainname": 171, "personality": 135,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
        "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
        "setpriority": 141, "ioprio_set": 251, "move_pages": 279, "migrate_pages": 256, "mbind": 237,
        "set_mempolicy": 238,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "accept4": 242,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "pidfd_getfd": 438,
        "process_madvise": 440, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "quotactl": 60,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "fanotify_init": 262, "unshare": 97, "setns": 268,
        "add_key": 217, "request_key": 218, "keyctl": 219,
        "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190,
        "msgget": 186, "mq_open": 180,
        "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
        "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "syslog": 116, "vhangup": 58,
        "sethostname": 161, "setdomainname": 162, "personality": 92,
        "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
        "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
        "setpriority": 140, "ioprio_set": 30, "move_pages": 239, "migrate_pages": 238, "mbind": 235,
        "set_mempolicy": 237,
    },
}  # fmt: skip
"""System call numbers by machine, from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h
of Linux."""
SPECIAL = {
    "x86_64": {"clone": 56, "clone3": 435, "prctl": 157, "prlimit64": 302},
    "aarch64": {"clone": 220, "clone3": 435, "prctl": 167, "prlimit64": 261},
}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
PR_SET_PDEATHSIG = 1

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER, ARCH, ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; ARGUMENT is the lower half of the first argument."""


def machine_is_known() -> bool:
    return platform.machine() in DENIED


def program(machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter, for prctl(PR_SET_SECCOMP).

    A denied call fails with EPERM. clone3 fails with ENOSYS, since a filter cannot read its flags behind a pointer, and
    the C library then uses clone. A call with another architecture's numbers (32 bit, x32) kills the process.
    """
    machine = machine or platform.machine()
    special = SPECIAL[machine]
    steps = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        steps += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    for number in DENIED[machine].values():
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    steps += [(EQUAL, 0, 1, special["clone3"]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for name, test, value, denied_if in (
        ("clone", ANY_BIT, NEW_NAMESPACES, True),
        ("prctl", EQUAL, PR_SET_PDEATHSIG, True),
        ("prlimit64", EQUAL, 0, False),  # allowed for the process itself only
    ):
        yes, no = (0, 1) if denied_if else (1, 0)
        steps += [(EQUAL, 0, 4, special[name]), (LOAD, 0, 0, ARGUMENT), (test, yes, no, value)]
        steps += [(RETURN, 0, 0, ERRNO | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
