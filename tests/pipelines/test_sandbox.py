"""The sandbox holds, whatever a program tries, and no trick counts as passed. Each test runs behind both walls."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tomllib
from pathlib import Path

import pytest

from assay.pipelines.errors import SandboxError
from assay.pipelines.program_tests import split
from assay.pipelines.sandbox import BACKENDS, Execution, Job, Limits, Sandbox, run_python, run_tests

SHORT = Limits(seconds=0.6, wall_seconds=1.5, memory_mb=256, output_mb=1, disk_mb=4, processes=8)


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request):
    if request.param == "bwrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    with Sandbox(workers=1, backend=request.param) as sandbox:
        yield sandbox


def run(sandbox, code: str, limits: Limits = SHORT, stdin: str = "") -> Execution:
    return sandbox.run(Job(textwrap.dedent(code), None, stdin), limits)


def supervisor(sandbox) -> int:
    """Process id of the sandbox's only cell."""
    cell = sandbox._idle.get()
    sandbox._idle.put(cell)
    return cell._process.pid


def cell_processes(sandbox) -> int:
    """Processes of the cell's session or of its programs' namespaces that are alive on this machine."""
    session, count = supervisor(sandbox), 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session
        except OSError:
            continue
    return count


def test_a_script_sees_its_input_and_an_empty_place(sandbox):
    seen = run(sandbox, """
        import os, sys
        print(input(), os.getpid(), [name for name in os.listdir("/proc") if name.isdigit()], os.listdir("/tmp"))
        print(sorted(os.environ), file=sys.stderr)
    """, stdin="hello")  # fmt: skip
    assert (seen.status, seen.stdout) == ("passed", "hello 1 ['1'] []\n")
    assert "HOME" in seen.stderr
    assert 0 < seen.seconds < 60


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("print(1)\n1 / 0", "failed", "ZeroDivisionError"),
        ("print(", "failed", "SyntaxError"),
        ("import sys; sys.exit(0)", "exited", ""),
        ("exit('bad')", "failed", "bad"),
        ("import os; os._exit(0)", "exited", ""),
        ("import ctypes; ctypes.string_at(0)", "crashed", ""),
        ("while True: pass", "timeout", ""),
        ("import time; time.sleep(60)", "timeout", ""),
        ("x = bytearray(10**10)", "memory", ""),
        ("while True: print('x' * 1000)", "output", ""),
        ("import atexit; atexit.register(print, 'late'); import threading; threading.Thread(target=print).start()",
         "passed", ""),
        ("import multiprocessing\nwith multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2]))", "passed", ""),
        ("import os, time\nif os.fork():\n    time.sleep(0.3)\n    raise ValueError", "failed", "ValueError"),
        ("import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = b'x' * (100 << 20)\n"
         "        time.sleep(60)\ntime.sleep(60)", "memory", ""),
    ],
)  # fmt: skip
def test_statuses(sandbox, code, status, says):
    execution = run(sandbox, code)
    assert execution.status == status, execution
    assert says in execution.stderr
    assert execution.processor_seconds < 1.8, "before the kernel's own limit, at two seconds"
    assert len(execution.stdout) <= SHORT.output_mb << 20


def test_no_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0assay-test-of-the-sandbox")
        abstract.listen()
        execution = run(sandbox, f"""
            import socket
            for family, address in [(socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})),
                                    (socket.AF_UNIX, "\\0assay-test-of-the-sandbox")]:
                try:
                    socket.socket(family).connect(address)
                    print("connected")
                except OSError as error:
                    print(error.errno)
        """)  # fmt: skip
        for listener in (server, abstract):
            listener.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listener.accept()
    assert execution.stdout == "1\n111\n"


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True: os.fork()",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "import os\nfor _ in range(6):\n    os.fork()\nx = [bytearray(60 << 20) for _ in range(4)]\nwhile True: pass",
        "x = [0]\nwhile True: x += x",
    ],
)
def test_bombs_end_and_leave_nothing(sandbox, bomb):
    before = run(sandbox, "print(1)") and cell_processes(sandbox)
    pid = supervisor(sandbox)
    execution = run(sandbox, bomb)
    assert execution.status in ("timeout", "memory", "processes", "failed"), execution
    assert execution.seconds < 30
    assert cell_processes(sandbox) == before
    assert supervisor(sandbox) == pid, "the cell lived through it"


WRITES = """
import os, sys, sysconfig
def writable(path, flags=0):
    try:
        return os.write(os.open(path, os.O_WRONLY | flags), b"99") > 0
    except OSError:
        return False
folders = ["/", sys.prefix, os.__file__[:-6], sysconfig.get_path("purelib"), *sys.path, "/dev/pts", "/cell/cell"]
folders += ["/" + name for name in os.listdir("/") if name != "proc"]
print({folder for folder in folders if writable(folder + "/assay_probe", os.O_CREAT)})
files = ["/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", sys.executable,
         "/proc/self/uid_map", "/dev/kmsg", "/dev/sda", "/dev/vda", os.__file__]
print([file for file in files if writable(file)])
mounts = [line.split() for line in open("/proc/self/mounts")]
print({place for _, place, _, options, *_ in mounts if "rw" in options.split(",")} - {"/tmp", "/proc"})
"""
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}


def check_writes(printed: str) -> None:
    places, files, mounts = printed.splitlines()
    assert (places, files) == ("{'/tmp'}", "[]")
    assert eval(mounts) <= DEVICES | {"/proc/irq", "/proc/bus"}


def test_nothing_but_tmp_can_be_written_and_it_is_small_and_gone_afterwards(sandbox):
    check_writes(run(sandbox, WRITES).stdout)
    full = run(sandbox, """
        import os
        for n in range(99):
            try:
                os.write(os.open(f"/tmp/{n}", os.O_WRONLY | os.O_CREAT), bytes(1 << 19))
            except OSError as error:
                print(error.errno, n)
                break
    """)  # fmt: skip
    assert full.stdout == "28 8\n", "no space left after eight half megabytes"
    assert run(sandbox, "import os; print(os.listdir('/tmp'))").stdout == "[]\n"
    assert not Path("/tmp/assay_probe").exists()


def test_programs_import_numpy_and_no_other_package(sandbox):
    assert run(sandbox, "import numpy; print(numpy.arange(3).sum())", Limits()).stdout == "3\n"
    assert "No module named 'polars'" in run(sandbox, "import polars").stderr


def test_secrets_of_the_parent_are_out_of_sight(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_TEST_SECRET", "hunter2")
    (tmp_path / "secret").write_text("hunter2")
    with Sandbox(1, sandbox.backend) as fresh:
        execution = run(fresh, f"""
            import glob, os
            names = [{str(tmp_path / "secret")!r}, "/etc/passwd", "/etc/shadow", "/root/.ssh", "/home",
                     "/proc/1/root/etc/passwd", "/proc/self/root/../etc/passwd", "/proc/self/cwd/../../etc/passwd",
                     {str(Path.home() / ".bashrc")!r}]
            os.symlink("/etc/passwd", "/tmp/link")
            os.symlink("/proc/1/root/../../etc/passwd", "/tmp/other")
            print([name for name in [*names, "/tmp/link", "/tmp/other"] if os.path.exists(name)])
            for name in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
                assert b"hunter2" not in open(name, "rb").read()
            seen = {{int(name) for name in os.listdir("/proc") if name.isdigit()}}
            print("hunter2" in str(os.environ), seen == {{os.getpid()}})
            print([os.readlink(f"/proc/self/fd/{{n}}")[:7] for n in (0, 1, 2)], os.getppid())
        """)  # fmt: skip
    assert execution.stdout.splitlines()[:2] == ["[]", "False True"], execution
    assert execution.stdout.splitlines()[2] == "['/memfd:', '/memfd:', '/memfd:'] 0"


def test_the_parent_and_the_kernel_are_out_of_reach(sandbox):
    run(sandbox, "print(1)")
    pid = supervisor(sandbox)
    execution = run(sandbox, """
        import ctypes, os, signal
        for target in (0, -1, os.getppid(), 2, 3, *range(4, 400)):
            try:
                if target != os.getpid():
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    os.kill(target, signal.SIGTERM)
            except OSError:
                pass
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(name, *args):
            return getattr(libc, name)(*args) == -1 and ctypes.get_errno() == 1
        print(refused("unshare", 0x10000000), refused("unshare", 0x20000), refused("setns", 0, 0),
              refused("chroot", b"/tmp"), refused("mount", b"none", b"/tmp", b"tmpfs", 0, 0),
              refused("ptrace", 16, 1, 0, 0), refused("memfd_create", b"x", 0),
              refused("shmget", 1, 1 << 30, 0o1600), refused("syscall", 250, 0))
        kept = ("CapEff", "CapBnd", "Seccomp:", "NoNewPrivs")
        print([line for line in open("/proc/self/status") if line.startswith(kept)])
    """)  # fmt: skip
    assert execution.status == "passed", execution
    first, second = execution.stdout.splitlines()
    assert set(first.split()) == {"True"}
    assert second.count("0000000000000000") == 2
    assert all(text in second for text in ("Seccomp:\\t2", "NoNewPrivs:\\t1"))
    assert (supervisor(sandbox), run(sandbox, "print(2)").stdout) == (pid, "2\n")


def test_killing_its_own_group_ends_only_the_program(sandbox):
    run(sandbox, "print(1)")
    pid = supervisor(sandbox)
    run(sandbox, "import os\nif os.fork() == 0: os.kill(0, 9)\nos.kill(-1, 9)\nos.kill(os.getppid(), 9)")
    assert (supervisor(sandbox), run(sandbox, "print(2)").stdout) == (pid, "2\n")


def test_daemons_do_not_outlive_their_program(sandbox):
    left = run(sandbox, """
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(0)
        print("done")
    """)  # fmt: skip
    assert (left.status, left.stdout) == ("passed", "done\n")
    assert left.seconds < 30
    assert run(sandbox, "import os; print([n for n in os.listdir('/proc') if n.isdigit()])").stdout == "['1']\n"


RIGHT = "def f(x):\n    return x + 1\n"
ASSERT = "assert f(1) == 2\nassert f(41) == 42\n"
CHECK = "\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(41) == 42\n\ncheck(f)\n"
CLOSE = "assert abs(f(1) - 2) < 1e-6\nassert all(abs(f(x) - y) < 1e-6 for x, y in [(1, 2), (41, 42)])\n"
MAPPED = "assert all(map(lambda case: f(case[0]) == case[1], [(1, 2), (41, 42)]))\n"
PROGRAMS = tomllib.loads((Path(__file__).parent / "sandbox_programs.toml").read_text())
FORGERIES, HONEST = PROGRAMS["forgery"], PROGRAMS["honest"]


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forged_verdict(sandbox, name):
    limits = SHORT.model_copy(update={"seconds": 2, "wall_seconds": 2})
    tests = (ASSERT, CHECK, CLOSE, MAPPED)
    code = FORGERIES[name]["code"]
    jobs = [split(code + part) for part in tests[:2]] + [Job(code, part) for part in tests]
    assert all(job.tests for job in jobs)
    statuses = [execution.status for execution in sandbox.run_many(jobs, limits)]
    assert not {"passed", "lost"} & set(statuses), statuses


def test_an_end_that_the_tests_swallow_is_no_pass(sandbox):
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass\n"
    assert sandbox.run(Job("import os\ndef f(x): os._exit(0)", tests)).status == "exited"
    assert sandbox.run(Job("def f(x): raise SystemExit", tests)).status == "exited"
    assert sandbox.run(Job("def f(x): raise ValueError", tests)).status == "passed"


def test_the_reading_attack_works_where_tests_are_in_the_programs_memory(sandbox):
    code = FORGERIES["reading the tests"]["code"] + "\nprint(f(41))\nif not f: assert f(41) == 4242\n"
    assert run(sandbox, code, Limits()).stdout == "4242\n"


def test_an_honest_program_passes_the_same_tests(sandbox):
    jobs = [split(RIGHT + part) for part in (ASSERT, CHECK)] + [Job(RIGHT, part) for part in (CLOSE, MAPPED)]
    assert [execution.status for execution in sandbox.run_many(jobs)] == ["passed"] * 4


@pytest.mark.parametrize("name", HONEST)
def test_tests_use_a_program_as_if_it_were_theirs(sandbox, name):
    execution = sandbox.run(Job(**HONEST[name]))
    assert execution.status == "passed", execution
    if name == "has stray prints":
        assert sorted(execution.stdout.split()) == ["1", "hi", "there"]


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (RIGHT, "def test_one():\n    assert f(1) == 3"),
        (RIGHT, "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), 3)\n"
                "unittest.main()"),
        (RIGHT, "assert g(1) == 2"),
        (RIGHT, "assert f(1) == 2 and"),
        ("def f(x): return [x]", "assert f(1) == (1,)"),
        ("def f(x): return x\nraise ValueError", "assert f(1) == 1"),
    ],
)  # fmt: skip
def test_wrong_programs_fail(sandbox, code, tests):
    assert sandbox.run(Job(code, tests)).status == "failed"


def test_a_dead_cell_costs_its_own_item_alone(sandbox):
    with Sandbox(1, sandbox.backend) as fresh:
        run(fresh, "print(1)")
        timer = threading.Timer(0.5, os.killpg, (supervisor(fresh), 9))
        timer.start()
        lost = run(fresh, "import time; time.sleep(30)", Limits(wall_seconds=60))
        assert (lost.status, lost.stderr) == ("lost", "the supervisor died")
        assert run(fresh, "print(2)").stdout == "2\n"


def test_cells_end_with_the_process_that_started_them():
    script = "import os, sys\nfrom assay.pipelines.sandbox import *\ns = Sandbox(1)\ns.run(Job('print(1)'))\n" \
             "print(s._idle.get()._process.pid, flush=True)\nos.kill(os.getpid(), 9)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pid, deadline = int(done.stdout), time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def as_nobody(code: str) -> subprocess.CompletedProcess:
    """Python under a user without rights; root reaches its own Python there through a mount of its own."""
    path = [str(Path(__file__).parents[2] / "src"), *sys.path]
    python = f"/mnt/bin/python3.{sys.version_info[1]}"
    drop = "exec setpriv --reuid=65534 --regid=65534 --clear-groups"
    script = f"mount --bind {sys.base_prefix} /mnt && {drop} {python} -c"
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:
        command = ["unshare", "--mount", "sh", "-c", f'{script} "$0"', code]
    environment = {"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_ordinary_user_needs_no_rights(backend):
    done = as_nobody(f"""if True:
        from assay.pipelines.sandbox import *
        with Sandbox(1, {backend!r}) as sandbox:
            print(sandbox.run(Job("import os; print(os.getuid() > 0, os.getpid(), os.listdir('/tmp'))")).stdout)
            print(sandbox.run(Job({RIGHT!r}, {ASSERT!r})).status)
            bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
            print(sandbox.run(Job(bomb), Limits(seconds=1, wall_seconds=2)).status in ("processes", "timeout"))
            print(sandbox.run(Job("import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))")).stdout)
            print(sandbox.run(Job({WRITES!r})).stdout)
    """)  # fmt: skip
    first, _, writes = done.stdout.partition("-1\n\n")
    assert first.split() == ["True", "1", "[]", "passed", "True"], done
    check_writes(writes.strip())


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs util-linux")
def test_a_machine_without_namespaces_is_refused():
    code = """if True:
        for kind in ("user", "pid", "net"):
            open(f"/proc/sys/user/max_{kind}_namespaces", "w").write("0")
        from assay.pipelines.sandbox import run_python
        print(run_python("print(1)"))
    """
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    error = done.stderr.splitlines()[-1]
    assert all(part in error for part in ("SandboxError", "none was run", "namespaces: ", "bwrap: ")), error


def test_shared_sandbox_from_many_threads():
    results: list[str] = []
    threads = [threading.Thread(target=lambda n=n: results.append(run_python(f"print({n})").stdout)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [f"{n}\n" for n in range(6)]
    assert run_tests(RIGHT, "assert f(1) == 2").status == "passed"


def test_limits_and_arguments_are_checked():
    with pytest.raises(ValueError):
        Limits(seconds=0)
    with pytest.raises(ValueError, match="backend"):
        Sandbox(backend="docker")
    sandbox = Sandbox(1)
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(Job("print(1)"))
