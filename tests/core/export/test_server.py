"""`serve`: a page and its artifacts on loopback, for clients with the token."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.export.report_document import PageServer
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import HOME_VARIABLE


@pytest.fixture
def server(tiny_run: RunDirectory) -> Iterator[PageServer]:
    with serving(tiny_run) as one:
        yield one


def test_the_page_and_the_artifacts_are_there(server: PageServer, tiny_run: RunDirectory) -> None:
    with urlopen(server.url) as answer:
        assert answer.headers.get_content_type() == "text/html"
        assert b"What was found" in answer.read()
    with urlopen(f"{server.url}trace.json.gz") as answer:
        assert answer.read() == tiny_run.trace_path.read_bytes()


@pytest.mark.parametrize("path", ["/", "/record.json", "/wrong/", "/%2e%2e/%2e%2e/etc/passwd"])
def test_without_the_token_there_is_nothing(server: PageServer, path: str) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{server.port}{path}")


@pytest.mark.parametrize("name", ["../events.jsonl", "events.jsonl", "snapshot.pickle"])
def test_only_what_is_named_is_served(server: PageServer, name: str) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(server.url + name)


def test_a_port_that_is_taken_is_refused(tiny_run: RunDirectory, server: PageServer) -> None:
    with pytest.raises(SpecError, match="port"):
        PageServer(tiny_run, server.port)


def test_a_port_that_cannot_be_is_refused(tiny_run: RunDirectory) -> None:
    with pytest.raises(SpecError, match="port"):
        PageServer(tiny_run, 70_000)


BY_A_NUMBER = """
import pwd, sys

def getpwuid(number):
    raise KeyError(number)

pwd.getpwuid = getpwuid
from sysbench.tui.cli import main
sys.exit(main())
"""
"""The command as a container's user calls it whose number has no name."""


@pytest.mark.parametrize("program", [("-m", "sysbench.tui.cli"), ("-c", BY_A_NUMBER)])
def test_the_command_prints_the_tunnel_and_ends_with_the_interrupt(
    tiny_run: RunDirectory, program: tuple[str, str]
) -> None:
    names = ("LOGNAME", "USER", "LNAME", "USERNAME")  # getpass asks for these first
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {HOME_VARIABLE: str(tiny_run.path.parents[1])}
    command = [sys.executable, "-P", *program, "serve", tiny_run.id, "--json"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        address = json.loads(text)
        with urlopen(address["url"]) as answer:
            assert answer.status == 200
        port = address["url"].split(":")[2].split("/")[0]
        forward, _, here = address["tunnel"].rpartition(" ")
        assert forward == f"ssh -N -L {port}:127.0.0.1:{port}"
        account, _, machine = here.rpartition("@")
        assert machine == socket.gethostname()
        assert bool(account) == (BY_A_NUMBER not in program)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", ""])
def test_a_page_of_another_name_gets_nothing(server: PageServer, host: str) -> None:
    with pytest.raises(HTTPError, match="421"):
        urlopen(Request(server.url, headers={"Host": host}))


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost:8000", "localhost"])
def test_a_tunnel_may_have_a_port_of_its_own(server: PageServer, host: str) -> None:
    with urlopen(Request(server.url, headers={"Host": host})) as answer:
        assert answer.status == 200


def test_a_client_that_says_nothing_is_dropped(
    tiny_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysbench.core.export.report_document.SILENT_SECONDS", 0.05)
    with (
        serving(tiny_run) as one,
        socket.create_connection(("127.0.0.1", one.port), timeout=60) as client,
    ):
        assert client.recv(1) == b""


@contextmanager
def serving(run: RunDirectory) -> Iterator[PageServer]:
    one = PageServer(run)
    thread = Thread(target=one.serve)
    thread.start()
    try:
        yield one
    finally:
        one.close()
        thread.join()


def link_the_file(trace: Path, secret: Path) -> None:
    trace.unlink()
    trace.symlink_to(secret)


def link_the_folder(trace: Path, secret: Path) -> None:
    shutil.rmtree(trace.parent)
    secret.rename(secret.with_name(trace.name))
    trace.parent.symlink_to(secret.parent)


def make_a_pipe(trace: Path, secret: Path) -> None:
    trace.unlink()
    os.mkfifo(trace)


def delete(trace: Path, secret: Path) -> None:
    trace.unlink()


@pytest.mark.parametrize(
    ("change", "is_later"),
    [
        *((change, False) for change in (link_the_file, make_a_pipe, delete)),
        *((change, True) for change in (link_the_file, link_the_folder, make_a_pipe, delete)),
    ],
)
def test_only_a_file_of_the_run_is_served(
    tiny_run: RunDirectory,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[Path, Path], None],
    is_later: bool,
) -> None:
    run = RunDirectory(shutil.copytree(tiny_run.path, tmp_path / "runs" / tiny_run.id))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if not is_later:
        change(run.trace_path, secret)
    with serving(run) as one:
        if is_later:
            with urlopen(f"{one.url}trace.json.gz") as answer:
                assert answer.read() == tiny_run.trace_path.read_bytes()
            change(run.trace_path, secret)
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{one.url}trace.json.gz", timeout=60)
        with urlopen(f"{one.url}record.json") as answer:
            assert answer.read() == tiny_run.record_path.read_bytes()
    assert capfd.readouterr().err == ""


def test_a_client_that_hangs_up_is_no_error(
    tiny_run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tiny_run) as one:
        path = f"/{one.url.split('/')[3]}/"
        for line in ("GET /x", f"GET {path}", f"GET {path}trace.json.gz", "GET", "POST /"):
            for host in ("localhost", "evil.example"):
                with socket.create_connection(("127.0.0.1", one.port)) as client:
                    reset = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    client.sendall(f"{line} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        with urlopen(one.url) as answer:
            assert answer.status == 200
    assert capfd.readouterr().err == ""
