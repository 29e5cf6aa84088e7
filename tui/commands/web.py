"""`serve` and `web`: a run's page, and the workstation, in the browser of your own machine."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import secrets
import shlex
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from sysbench.core.errors import MissingLibraryError, SpecError
from sysbench.core.runs.run_directory import find_run
from sysbench.tui.commands.arguments import add_run_argument, examples, imported_file
from sysbench.tui.commands.output import print_answer

if TYPE_CHECKING:
    from aiohttp.web import Application

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self' ws:; frame-ancestors 'none'"
)
"""Content security policy; it blocks the web font that textual-serve requests."""

CLOSING_SECONDS = 2.0
"""Time for a workstation to exit after the server was asked to stop."""


def declare_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve a run's page and artifacts on loopback, behind a token, and print the ssh command\n"
        "that forwards the port to your machine. Ctrl+C stops it."
    )
    parser.epilog = examples(
        ("sysbench-tui serve last", ""), ("sysbench-tui serve last --port 8000", "")
    )
    add_run_argument(parser)
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: any free one)"
    )


def declare_web(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve the workstation on loopback, behind a token, and print the ssh command that\n"
        "forwards the port to your machine. Each browser tab is a separate workstation that ends\n"
        "with the tab; its runs go on. Ctrl+C stops the server. Needs the extra `web`."
    )
    parser.epilog = examples(("sysbench-tui web", ""), ("sysbench-tui web --port 8000", ""))
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: any free one)"
    )


def serve_page(arguments: argparse.Namespace) -> int:
    from sysbench.core.export.report_document import PageServer  # lazy: --help stays fast
    from sysbench.core.inspection.decoding import bundled_run  # lazy: --help stays fast

    file = imported_file(arguments.run)
    run = (bundled_run(file) if file else None) or find_run(arguments.run)
    server = PageServer(run, arguments.port)
    print_address(run.id, server.port, server.url, {"run": run.id}, json=arguments.json)
    try:
        server.serve()
    except KeyboardInterrupt:
        return 0
    return 0


def print_address(what: str, port: int, url: str, document: dict[str, str], *, json: bool) -> None:
    from sysbench.core.export.report_document import LOOPBACK  # lazy: --help stays fast

    tunnel = f"ssh -N -L {port}:{LOOPBACK}:{port} {_here()}"
    print_answer(
        document | {"url": url, "tunnel": tunnel},
        f"{what}, until you press Ctrl+C",
        f"  from your own machine  {tunnel}",
        f"  then open              {url}",
        json=json,
    )
    sys.stdout.flush()


def _here() -> str:
    """Return ``user@host`` for ssh; the host may need a domain from outside."""
    machine = socket.gethostname()
    try:
        return f"{getpass.getuser()}@{machine}"
    except (KeyError, OSError):
        # A container's user may have no name: KeyError, since Python 3.13 OSError.
        return machine


def main(arguments: argparse.Namespace) -> int:
    from sysbench.core.export.report_document import LOOPBACK  # lazy: --help stays fast

    _require_library()
    try:
        listener = socket.create_server((LOOPBACK, arguments.port))
    except (OSError, OverflowError) as error:
        raise SpecError("port", arguments.port, f"not a free port: {error}") from error
    port, token = listener.getsockname()[1], secrets.token_urlsafe(16)
    url = f"http://{LOOPBACK}:{port}/{token}/"
    print_address("the workstation", port, url, {}, json=arguments.json)
    asyncio.run(_serve(listener, port, token))
    return 0


def _require_library() -> None:
    try:
        import textual_serve  # noqa: F401  # lazy: optional
    except ImportError:
        raise MissingLibraryError(
            f"textual-serve is not installed for {sys.executable}: pip install 'sysbench-tui[web]'"
        ) from None


async def _serve(listener: socket.socket, port: int, token: str) -> None:
    """Serve until a signal arrives, which also stops the workstations."""
    from aiohttp import web  # lazy: optional

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(
        _application(port, token), access_log=None, shutdown_timeout=CLOSING_SECONDS
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        await ended.wait()
    finally:
        await runner.cleanup()


def _application(port: int, token: str) -> Application:
    """Build textual-serve's application below the token, for requests to the loopback name.

    `Server.serve` has no token and no security headers, and binds the port itself.
    """
    import aiohttp_jinja2  # lazy: optional
    import jinja2  # lazy: optional
    from aiohttp import web  # lazy: optional
    from textual_serve.server import Server  # lazy: optional

    from sysbench.core.export.report_document import HOSTS, LOOPBACK  # lazy: --help stays fast

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.host.partition(":")[0] not in HOSTS:
            raise web.HTTPMisdirectedRequest
        return await handler(request)  # type: ignore[no-any-return]

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"

    command = shlex.join([sys.executable, "-P", "-m", "sysbench.tui.cli"])
    server = Server(command, LOOPBACK, port, title="sysbench-tui")
    application = web.Application(middlewares=[guarded])
    application.on_response_prepare.append(add_headers)
    aiohttp_jinja2.setup(application, loader=jinja2.FileSystemLoader(server.templates_path))
    # textual-serve builds its URLs from these names, so they contain the token.
    application.add_routes(
        [
            web.get(f"/{token}/", server.handle_index, name="index"),
            web.get(f"/{token}/ws", server.handle_websocket, name="websocket"),
            web.get(f"/{token}/download/{{key}}", server.handle_download, name="download"),
            web.static(f"/{token}/static", server.statics_path, name="static"),
        ]
    )
    return application
