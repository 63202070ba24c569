"""Linux calls that shut a process in: namespaces, mounts, resource limits and a system-call filter.

Raises OSError naming the step that the kernel refused.
"""

import ctypes
import os
import platform
import resource
import signal
import struct

__all__ = ["confine", "enter_cell", "fork_program"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_PYTHON_LIBC = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which a forked child needs
_NS = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
       "pid": 0x20000000, "net": 0x40000000}  # fmt: skip
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVS, _SET_SECCOMP = 4, 24, 38, 22
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
NOBODY = 65534
_user = [NOBODY, NOBODY]  # of the cell; a process in a new user namespace cannot ask before it has a map

# Refused with EPERM. Memory that no limit counts, other processes' memory, keys that a user's processes share,
# new namespaces and mounts, and doors into the kernel that no program of a benchmark needs.
_REFUSED = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "memfd_create": 319,
        "memfd_secret": 447, "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "add_key": 248,
        "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166,
        "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "io_uring_setup": 425, "open_by_handle_at": 304, "clone3": 435,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "memfd_create": 279,
        "memfd_secret": 447, "shmget": 194, "shmat": 196, "msgget": 186, "semget": 190, "mq_open": 180, "add_key": 217,
        "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41,
        "chroot": 51, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425,
        "open_by_handle_at": 265, "clone3": 435,
    },
}  # fmt: skip
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}


def _check(step: str, result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{step}: {os.strerror(error)}")


def _unshare(*names: str) -> None:
    _check(f"unshare {' '.join(names)}", _LIBC.unshare(sum(_NS[name] for name in names)))


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(f"mount {source} on {target}", result)


def _prctl(option: int, *values: int) -> None:
    values = (*values, 0, 0, 0, 0)[:4]
    _check(f"prctl {option}", _LIBC.prctl(option, *(ctypes.c_ulong(value) for value in values)))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _map_user(uid: int, gid: int) -> None:
    """One user and one group, under their own numbers; the kernel grants no more to an ordinary user."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def enter_cell(binds: dict[str, str], links: dict[str, str], mounted: bool) -> None:
    """Move this process behind a file system of its own; with root's rights they are given up afterwards.

    Args:
        binds: folders that are seen, read-only: the place inside, and the folder outside.
        links: symbolic links beside them, and what they point to.
        mounted: bwrap has done so already: only `/proc` and root's rights are left to settle.

    Without bwrap the process forks, and the child goes on as the first process of its namespaces.
    """
    privileged = os.geteuid() == 0
    os.umask(0o022)
    if not mounted:
        _unshare_cell(privileged)
        _build_root(binds, links)
    elif privileged:
        _mount("proc", "/proc", "proc", _NOSUID | _NODEV)  # bwrap covers parts of its own: none could be nested in it
    if privileged and _real_root():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _prctl(_SET_DUMPABLE, 1)
    _prctl(_NO_NEW_PRIVS, 1)
    _user[:] = os.geteuid(), os.getegid()


def _real_root() -> bool:
    with open("/proc/self/uid_map") as file:
        return int(file.read().split()[2]) > NOBODY


def _unshare_cell(privileged: bool) -> None:
    names = ("mount", "pid", "net", "ipc", "uts", "cgroup")
    try:
        if not privileged:
            raise PermissionError
        _unshare(*names)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        _unshare("user", *names)
        _map_user(uid, gid)
    if first := os.fork():
        os.closerange(0, 1 << 16)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 255)


def _build_root(binds: dict[str, str], links: dict[str, str]) -> None:
    _mount("none", "/", flags=_REC | _PRIVATE)
    folders = {path: os.open(outside, os.O_PATH) for path, outside in binds.items()}  # before /tmp hides some
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    for path, folder in folders.items():
        os.makedirs(f"/tmp{path}", exist_ok=True)
        _mount(f"/proc/self/fd/{folder}", f"/tmp{path}", flags=_BIND | _REC)
        os.close(folder)
        attributes = struct.pack("QQQQ", _RDONLY | _NOSUID | _NODEV, 0, 0, 0)
        result = _LIBC.syscall(_MOUNT_SETATTR, -100, f"/tmp{path}".encode(), 0x8000, attributes, len(attributes))
        _check(f"make {path} read-only", result)
    for name in ("tmp", "proc", "dev"):
        os.makedirs(f"/tmp/{name}", exist_ok=True)
    for name in ("null", "zero", "full", "random", "urandom"):
        os.close(os.open(f"/tmp/dev/{name}", os.O_CREAT))
        _mount(f"/dev/{name}", f"/tmp/dev/{name}", flags=_BIND)
    for place, target in {**links, "/dev/shm": "/tmp", "/dev/fd": "/proc/self/fd"}.items():
        os.symlink(target, f"/tmp{place}")
    _mount("proc", "/tmp/proc", "proc", _NOSUID | _NODEV)
    os.chdir("/tmp")
    _check("pivot_root", _LIBC.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."))
    _check("umount /", _LIBC.umount2(b".", 2))
    os.chdir("/")
    _mount("none", "/", flags=_REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def fork_program() -> int:
    """`os.fork()` whose child is the first process of namespaces of its own; call `confine` there before anything."""
    flags = signal.SIGCHLD | sum(_NS[name] for name in ("user", "mount", "pid", "ipc"))
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _PYTHON_LIBC.syscall(_CLONE[platform.machine()], ctypes.c_ulong(flags), *[ctypes.c_ulong(0)] * 4)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        _check("clone into new namespaces", pid)
    return pid


def confine(memory: int, seconds: float, processes: int, files: int, output: int, disk: int) -> None:
    """What a forked process does before it runs a program: a fresh /tmp and /proc, limits, no rights, the filter.

    Args:
        memory, output: bytes of address space a process, bytes a file.
        seconds: processor time a process; the kernel's second line behind the supervisor's watch.
        processes, files: processes and threads of the program, open files a process.
        disk: bytes under /tmp.
    """
    os.setpgid(0, 0)  # kill(0) reaches a whole group, other namespaces included
    _map_user(*_user)
    _write("/proc/sys/user/max_user_namespaces", "0")
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={disk},nr_inodes=4096,mode=1777")
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    os.chdir("/tmp")
    processor = int(seconds) + 2
    for name, value in {"AS": memory, "CPU": processor, "NPROC": processes, "NOFILE": files, "FSIZE": output,
                        "CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "SIGPENDING": 64}.items():  # fmt: skip
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    for capability in range(64):
        if _LIBC.prctl(_DROP_BOUND, capability, 0, 0, 0) < 0:
            break
    if not _FILTER_CODE:
        raise OSError(f"no filter of system calls for {platform.machine()}; known: {', '.join(_REFUSED)}")
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _check("drop capabilities", _LIBC.capset(header, none))
    _filter_calls()


def _filter(machine: str) -> bytes:
    """Seccomp's program: refused calls and every socket but a Unix one fail with EPERM; a foreign architecture kills.

    clone3 fails with ENOSYS instead, so that libc takes clone.
    """
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    kill, allow, refuse, absent = 0x80000000, 0x7FFF0000, 0x50001, 0x50026
    code = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURE[machine]), (give, 0, 0, kill), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (give, 0, 0, kill)]
    for name, number in _REFUSED[machine].items():
        code += [(equal, 0, 1, number), (give, 0, 0, absent if name == "clone3" else refuse)]
    code += [(equal, 0, 3, _SOCKET[machine]), (load, 0, 0, 16), (equal, 1, 0, 1), (give, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *line) for line in [*code, (give, 0, 0, allow)])


def _filter_calls() -> None:
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(_FILTER_CODE) // 8, ctypes.addressof(_FILTER)))
    _prctl(_SET_SECCOMP, 2, ctypes.addressof(program))


_FILTER_CODE = _filter(platform.machine()) if platform.machine() in _REFUSED else b""
_FILTER = ctypes.create_string_buffer(_FILTER_CODE)
