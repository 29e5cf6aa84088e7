"""Serve a run's page and artifacts on loopback to clients with the token."""

from __future__ import annotations

import io
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.export.report_document import run_as_page
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import open_regular

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Accepted host names, at any port because a tunnel has its own. Rejecting others prevents DNS
rebinding."""
SILENT_SECONDS = 30.0
"""Silence after which a client is dropped, because each holds a thread."""


@dataclass(frozen=True, slots=True)
class Served:
    """The content of one path: bytes, or a file to download that lies inside a folder."""

    kind: str
    content: bytes | Path
    inside: Path | None = None

    def open(self) -> IO[bytes]:
        """Open the content; OSError or DamagedFileError if it is not a file in that folder."""
        if isinstance(self.content, bytes):
            return io.BytesIO(self.content)
        # A run of another user may contain links to private files, also later.
        return open_regular(self.content, self.inside)


class PageServer:
    """Serves one run until `close`, on loopback and below the token only.

    Attributes:
        url: Address for a browser on this machine, or through a tunnel of the port.
    """

    def __init__(self, run: RunDirectory, port: int = 0) -> None:
        """Build the page and open the port; 0 picks a free one. Raises SpecError if it is not
        available."""
        token = secrets.token_urlsafe(16)
        base = f"/{token}/"
        served = {f"{base}{name}": content for name, content in _page_and_artifacts(run).items()}
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(served))
        except (OSError, OverflowError) as error:
            raise SpecError("port", port, f"a port that is free here: {error}") from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{LOOPBACK}:{self.port}{base}"

    def serve(self) -> None:
        """Answer requests until another thread calls `close`."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _page_and_artifacts(run: RunDirectory) -> dict[str, Served]:
    """Return the page, the record and the artifacts by name."""
    files = {
        "record.json": run.record_path,
        "trace.json.gz": run.trace_path,
        "snapshot.pickle": run.snapshot_path,
    }
    page = Served("text/html; charset=utf-8", run_as_page(run).encode())
    return {"": page} | {
        name: Served("application/octet-stream", path, run.path) for name, path in files.items()
    }


def _handler(served: Mapping[str, Served]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "sysbench-tui"
        sys_version = ""
        timeout = SILENT_SECONDS

        def handle(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                super().handle()

        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            elif (served_file := served.get(self.path)) is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                try:
                    file = served_file.open()
                except (OSError, DamagedFileError):
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                with file:
                    self._send(served_file.kind, file)

        def _send(self, kind: str, file: IO[bytes]) -> None:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: every path contains the token."""

    return Handler
