"""A fresh machine: what the set-up script does and says, and a first start of the app."""

import contextlib
import http.server
import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]

MODEL_CATALOG = "focus_core/models/catalog.py"
FAKE_PYTHON = """#!/bin/sh
# Stands for a Python of version $FAKE_VERSION: notes each call, and can make an environment of itself.
echo "$@" >> "$FAKE_LOG"
case "$*" in *urllib.request*) exec "$REAL_PYTHON" "$@" ;; esac
case "$1 $2" in
"-V ") echo "Python $FAKE_VERSION" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") [ "$3" = install ] && printf '%s\\n' "$FAKE_SAYS"; exit "${FAKE_PIP:-0}" ;;
"-m focus_core.models") exit "${FAKE_FETCH:-0}" ;;
*) [ "${FAKE_VERSION#3.}" -ge 11 ] ;;
esac
"""


class Machine:
    """A copy of the set-up files beside a Python that only notes what it is asked."""

    def __init__(self, folder: Path):
        self.root = folder / "project"
        for name in [*(p.name for p in ROOT.glob("requirements*.txt")), "scripts/setup.sh", MODEL_CATALOG]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.python = folder / "python-of-the-test"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        self.log = folder / "calls.txt"
        self.env = {"PATH": os.environ["PATH"], "PYTHON": str(self.python), "FAKE_LOG": str(self.log)}
        self.env |= {"REAL_PYTHON": sys.executable, "FAKE_SAYS": "Collecting torch"}
        self.env["FAKE_VERSION"] = "3.12"

    def setup(self, goal: str = "app", **env: str) -> tuple[int, str, list[str]]:
        """Run the script; return its exit status, what it said, and what it had Python install."""
        self.log.write_text("")
        command = ["bash", str(self.root / "scripts/setup.sh"), goal]
        done = subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=60)
        lines = self.log.read_text().splitlines()
        calls = [line.split()[-1] for line in lines if line.startswith(("-m pip", "-m focus_core"))]
        return done.returncode, done.stdout + done.stderr, calls


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_second_setup_has_nothing_to_do(machine):
    status, said, calls = machine.setup()
    assert status == 0
    assert said.index("about 3.1 GB") < said.index("93 MB"), "the sizes are said before the downloads"
    assert calls == ["requirements.txt", "fetch"]
    assert machine.setup() == (0, "", [])
    status, said, calls = machine.setup("test")
    assert (status, calls) == (0, ["requirements-dev.txt"])
    assert machine.setup("test") == (0, "", [])


def test_changed_requirements_are_installed(machine):
    machine.setup()
    with (machine.root / "requirements.txt").open("a") as file:
        file.write("one-more==1.0\n")
    assert machine.setup()[2] == ["requirements.txt"]


def test_wheels_come_from_the_index_that_is_asked_for(machine):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/cpu"
        _, said, _ = machine.setup(TORCH_INDEX=index)
    assert f"--extra-index-url {index} --progress-bar off -r requirements.txt" in machine.log.read_text()
    assert "0.6 GB" in said


def test_an_index_that_does_not_answer_is_named_at_once_and_nothing_is_installed(machine):
    index, began = f"http://127.0.0.1:{free_port()}/cpu", time.monotonic()
    status, said, calls = machine.setup(TORCH_INDEX=index)
    assert status == 1
    assert time.monotonic() - began < 10
    (line,) = said.splitlines()[1:]
    assert line.startswith(f"TORCH_INDEX={index} does not answer (")
    assert "requirements.txt" not in calls


def test_without_a_terminal_large_files_are_still_told(machine):
    said = machine.setup(
        FAKE_SAYS="Collecting torch\n  Downloading https://x.example/cpu/torch-2.whl (184.0 MB)\n"
        "Downloading six-1.whl (11 kB)\nUsing cached scipy-1.whl (35.0 MB)\nInstalling collected packages: six, torch"
    )[1]
    told = [line.strip() for line in said.splitlines() if line.startswith("  ")]
    assert told == [
        "Downloading torch-2.whl (184.0 MB)",
        "Using cached scipy-1.whl (35.0 MB)",
        "Unpacking the packages",
    ]


def test_an_old_python_is_refused_with_the_version(machine):
    status, said, calls = machine.setup(FAKE_VERSION="3.9")
    assert status == 1
    assert "needs Python 3.11 or newer" in said
    assert "3.9" in said
    assert calls == []
    assert not (machine.root / ".venv").exists()


def test_a_failed_installation_is_tried_again(machine):
    status, said, _ = machine.setup(FAKE_PIP="1")
    assert status == 1
    assert "run the same command again" in said
    assert machine.setup()[2] == ["requirements.txt", "fetch"]


def test_without_the_model_the_app_is_set_up_and_the_model_is_tried_again(machine):
    status, said, _ = machine.setup(FAKE_FETCH="1")
    assert status == 0
    assert "any other model works" in said
    assert machine.setup()[2] == ["fetch"]


def test_a_damaged_model_stops_the_setup(machine):
    assert machine.setup(FAKE_FETCH="2")[0] == 1
    assert machine.setup()[2] == ["fetch"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_first_start_asks_nothing_and_answers_on_localhost_only(tmp_path):
    port = free_port()
    home = tmp_path / "home"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STREAMLIT_", "XDG_"))}
    env |= {"HOME": str(home), "DISPLAY": ":99", "BROWSER": "true"}
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.port", str(port)]
    server = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    said = bytearray()

    def listen() -> None:
        with contextlib.suppress(OSError):  # the terminal is gone when the server ends
            while part := os.read(controller, 4_096):
                said.extend(part)

    threading.Thread(target=listen, daemon=True).start()
    try:
        answer = wait_for(f"http://127.0.0.1:{port}/_stcore/health", server)
        assert answer == b"ok", said.decode(errors="replace")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
            assert b"<html" in page.read()
        listening = listening_addresses(psutil.Process(server.pid))
        assert listening
        assert listening <= {"127.0.0.1", "::1"}
        text = said.decode(errors="replace")
        assert "localhost" in text
        assert "mail" not in text
        assert "External URL" not in text
    finally:
        tree = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        server.wait(timeout=20)
        for child in psutil.wait_procs(tree, timeout=10)[1]:
            child.kill()
        os.close(controller)


def listening_addresses(process: psutil.Process) -> set[str]:
    """Return the addresses that a process and its children listen at; a child may end meanwhile."""
    found = {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in child.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found


def wait_for(address: str, server: subprocess.Popen, seconds: float = 60) -> bytes:
    """Return the body of the first answer; empty when none came in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
            return bytes(answer.read())
        time.sleep(0.1)
    return b""
