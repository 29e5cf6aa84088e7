"""`serve`: a page and its artifacts on loopback, for clients with the token."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.export.server import PageServer
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import HOME_VARIABLE


@pytest.fixture
def server(tiny_run: RunDirectory) -> Iterator[PageServer]:
    one = PageServer(tiny_run)
    thread = Thread(target=one.serve)
    thread.start()
    yield one
    one.close()
    thread.join()


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
    monkeypatch.setattr("sysbench.core.export.server.SILENT_SECONDS", 0.05)
    one = PageServer(tiny_run)
    thread = Thread(target=one.serve)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", one.port), timeout=60) as client:
            assert client.recv(1) == b""
    finally:
        one.close()
        thread.join()


def test_a_link_out_of_the_run_is_not_served(tiny_run: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(tiny_run.path, tmp_path / tiny_run.id))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    run.trace_path.unlink()
    run.trace_path.symlink_to(secret)
    one = PageServer(run)
    thread = Thread(target=one.serve)
    thread.start()
    try:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{one.url}trace.json.gz")
    finally:
        one.close()
        thread.join()
