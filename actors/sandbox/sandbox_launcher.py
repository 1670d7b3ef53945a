"""Outer process of one sandbox: creates its namespaces, starts the worker in them, and kills everything at the end.

No process of the sandbox outlives the launcher. The launcher kills all of them if:

- the worker ends
- the owner closes the socket on the launcher's standard input, or is gone
- the processes together exceed the memory limit

Before it creates the namespaces, the launcher forks the runner (`agent_rft.actors.sandbox.untrusted_runner`), which
holds the sandboxes of untrusted code. The launcher runs none of the grader's code. It is run by path with an empty
environment, as `python -I -S sandbox_launcher.py CONFIG`, so it and its imports use only the standard library.
`agent_rft.actors.sandbox.sandbox_config` builds CONFIG.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from agent_rft.actors.sandbox import cgroup, scratch, untrusted_runner
from agent_rft.actors.sandbox.memory_usage import SandboxMemory, list_process_tree, read_socket_capacity
from agent_rft.actors.sandbox.untrusted_runner import MEMORY_EXIT

OWN_PROCESSES = 2
"""Number of our own processes in the cgroup of a sandbox: the worker and bubblewrap's first process."""
POLL_S = 0.05
GONE_WITHIN_S = 10.0

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
OLD = "/.old"
SandboxConfig = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Return the `result` of a C library call.

    Raises:
        OSError: The result is an error; the message starts with `what`.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


# -- namespaces and mounts ---------------------------------------------------------------------------------------------


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    names = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    check(libc.mount(*names, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def switch_user(user: int) -> None:
    """Switch this process to another user, and keep the process's /proc entries readable for that user."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def unshare(config: SandboxConfig) -> None:
    """Enter new namespaces; the PID namespace applies to children only.

    An unprivileged user first enters a user namespace that contains only this user.
    """
    uid, gid = os.getuid(), os.getgid()
    if config["user_namespace"]:
        check(libc.unshare(CLONE_NEWUSER), "unshare the user namespace")
        inside = config["inside_id"]
        for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    check(libc.unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS), "unshare namespaces")
    libc.unshare(CLONE_NEWCGROUP)  # optional: only hides names, and not every kernel supports it


def build_root(config: SandboxConfig) -> None:
    """Replace the root with a tmpfs that has the binds, the devices and the scratch folder; unmount the old root.

    Only the scratch folder is writable.
    """
    check(libc.unshare(CLONE_NEWNS), "unshare the mount namespace")  # in the fork, so that the launcher keeps its root
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.mkdir("/tmp" + OLD)
    check(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b"/tmp", os.fsencode("/tmp" + OLD)), "pivot_root")
    os.chdir("/")
    for source, target in config["binds"]:
        bind(OLD + source, target, read_only=True)
    for folder in config["hidden"]:
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4k,mode=755")
    for device in config["devices"]:
        bind(OLD + device, device, read_only=False)
    for target, path in config["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    scratch = config["scratch"]
    os.makedirs(scratch, exist_ok=True)
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={config['scratch_bytes']},nr_inodes=20000,mode=1777")
    check(libc.umount2(os.fsencode(OLD), MNT_DETACH), "umount the old root")
    os.rmdir(OLD)
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def bind(source: str, target: str, read_only: bool) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(source, target, None, MS_BIND | MS_REC)
    flags = MOUNT_ATTR_NOSUID | (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV if read_only else 0)
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    path = os.fsencode(target)
    result = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, ctypes.byref(attributes), size)
    check(result, f"make {target} read-only")


# -- start -------------------------------------------------------------------------------------------------------------


def start_in_namespaces(config: SandboxConfig, group: cgroup.SandboxCgroup | None) -> int:
    """Start the worker as the first process of its namespace; return its process id outside the namespace."""
    unshare(config)
    pid = os.fork()
    if pid == 0:
        if group is not None:
            group.join()
        build_root(config)
        os.chdir(config["scratch"])
        os.execve(config["command"][0], config["command"], config["environment"])
    return pid


def start_bubblewrap(config: SandboxConfig, group: cgroup.SandboxCgroup | None) -> int:
    """Start the worker with bubblewrap; return the process id that bubblewrap writes to a pipe."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    command = [*config["bubblewrap"], "--info-fd", str(write), "--", *config["command"]]
    monitor = os.fork()
    if monitor == 0:
        if group is not None:
            group.join()
        os.execve(command[0], command, config["environment"])
    os.close(write)
    with open(read) as pipe:
        info = pipe.read()
    if not info:
        os.waitpid(monitor, 0)
        raise OSError("bubblewrap could not create a sandbox")
    return int(json.loads(info)["child-pid"])


def start_unsandboxed(config: SandboxConfig, group: cgroup.SandboxCgroup | None) -> int:
    """Start the worker in a new session, with an ordinary scratch folder; return its process id."""
    import tempfile  # slow to import, and the other methods do not need it

    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    config["folder"] = tempfile.mkdtemp(prefix="grader-")
    status = os.stat(config["folder"])
    config["folder_identity"] = (status.st_dev, status.st_ino)
    pid = os.fork()
    if pid == 0:
        if group is not None:
            group.join()
        os.setsid()
        os.chdir(config["folder"])
        environment = {**config["environment"], "HOME": config["folder"], "TMPDIR": config["folder"]}
        os.execve(config["command"][0], config["command"], environment)
    return pid


def remove_scratch_folder(folder: str, identity: tuple[int, int]) -> None:
    """Remove the scratch folder that this process created, unless it has been replaced."""
    with suppress(OSError):
        scratch.empty_folder(folder, identity)
        os.rmdir(folder)


STARTS = {"bubblewrap": start_bubblewrap, "namespaces": start_in_namespaces, "none": start_unsandboxed}


# -- end ---------------------------------------------------------------------------------------------------------------


def wait_for_end(memory: SandboxMemory, pidfd: int, limit_bytes: int) -> bool:
    """Wait until the worker ends, the owner is gone, or memory exceeds the limit; return True in the last case."""
    poll = select.poll()
    poll.register(0, 0)  # hang-up only: incoming data is for the worker
    poll.register(pidfd, select.POLLIN)
    while not poll.poll(POLL_S * 1000):
        if memory.exceeds(limit_bytes):
            return True
    return False


def kill_all_processes(pidfd: int, has_pid_namespace: bool, group: cgroup.SandboxCgroup | None) -> None:
    """Kill all processes. In a PID namespace, the kernel does this when the first process ends."""
    deadline = time.monotonic() + GONE_WITHIN_S
    if group is not None:
        group.kill()
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    while time.monotonic() < deadline:
        for other in [] if has_pid_namespace else list_process_tree(os.getpid())[1:]:
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def hold_sandbox(config: SandboxConfig) -> bool:
    """Run one sandbox until it ends. Return whether the sandbox used too much memory."""
    buffer_bytes = read_socket_capacity()  # read now, because not every network namespace has the file
    group = cgroup.create_cgroup(config["memory_bytes"], config["num_processes"] + OWN_PROCESSES)
    if config["launcher_uid"] is not None:
        switch_user(config["launcher_uid"])
    pid = STARTS[config["method"]](config, group)
    for descriptor in config["inherited"]:
        os.close(descriptor)
    pidfd = os.pidfd_open(pid)
    sandboxed = config["method"] != "none"
    memory = SandboxMemory(pid, config["scratch"] if sandboxed else None, buffer_bytes if sandboxed else 0)
    too_much = wait_for_end(memory, pidfd, config["memory_bytes"])
    kill_all_processes(pidfd, sandboxed, group)
    if group is not None:
        too_much = too_much or group.has_run_out_of_memory()
        group.remove()
    if "folder" in config:
        remove_scratch_folder(config["folder"], config["folder_identity"])
    return too_much


def main() -> None:
    config = json.loads(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the owner may ignore it, which this process would inherit
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the kernel kills this process first when memory runs out
    if config["runs"] is not None:
        config["inherited"] = untrusted_runner.fork_runner(config["runs"], hold_sandbox)
        config["command"] += map(str, config["inherited"])
    sys.exit(MEMORY_EXIT if hold_sandbox(config) else 0)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{error}")
