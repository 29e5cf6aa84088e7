"""`web`: the workstation through a websocket, for those who know the token."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from sysbench.tui.cli import main

WAIT_SECONDS = 60


@pytest.fixture
def server(sysbench_home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", "web", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        yield process, json.loads("".join(lines) + "}")["url"]
        process.kill()


def answer(url: str, **headers: str) -> tuple[int, str]:
    """The status and the text."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


async def seen(url: str, text: bytes) -> None:
    """Open the workstation; returns once it has painted a text."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url.replace('http', 'ws')}ws?width=80&height=24") as socket,
    ):
        painted = b""
        while text not in painted:
            message = await socket.receive(timeout=WAIT_SECONDS)
            assert message.type is aiohttp.WSMsgType.BINARY
            painted += message.data


def test_the_workstation_is_painted_with_the_token(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server
    root = url[: url.index("/", len("http://"))]
    assert url.startswith("http://127.0.0.1:")
    assert answer(f"{root}/")[0] == answer(f"{root}/ws")[0] == 404
    assert answer(url, Host="example.org")[0] == 421
    status, page = answer(url)
    assert status == 200 and f'websocket-url="ws{url.removeprefix("http")}ws"' in page
    asyncio.run(seen(url, b"What to run"))
    # A workstation ends with its tab, and the server with its signal.
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0
    assert psutil.wait_procs(children, WAIT_SECONDS)[1] == []


def test_what_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    assert main(["web"]) == 1
    assert "pip install 'sysbench-tui[web]'" in capsys.readouterr().err
