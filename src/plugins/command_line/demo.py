"""``stepshape demo``: SmolLM2 behind a plain ``vllm serve`` on an emulated device, twelve chats at once, a table."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import openai
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .chats import CHATS, TOKENS, Answer, Chat, complaints
from .demo_systems import DemoSystem
from .model import smollm2
from .vllm_server import (
    ServerError,
    VllmServer,
    as_typed,
    command_line,
    free_port,
    noise,
)

NAME = "smollm2"
HEALTHY_WITHIN_S = 300.0
ANSWERED_WITHIN_S = 300.0
REPORT_VARIABLE = "STEPSHAPE_STEP_REPORT"


def serve(folder: Path, port: int, system: DemoSystem) -> int:
    """Become the server of the demo, in the foreground. Returns an exit status only if the model could not be made."""
    status = smollm2(folder)
    if not status:
        _become_the_server(folder, port, system)
    return status


def _become_the_server(folder: Path, port: int, system: DemoSystem) -> NoReturn:
    command = command_line(folder, port=port, name=NAME, flags=system.flags)
    print(f"{as_typed(command, system.environment)}\n", flush=True)
    os.environ.update(system.environment)
    os.execvp(command[0], command)


def demo(folder: Path, runs: Path, port: int | None, system: DemoSystem) -> int:
    """Run the demo and return the exit status. ``runs``: a folder for the server's log and its report."""
    status = smollm2(folder)
    if status:
        return status
    console = Console(highlight=False)
    started = time.monotonic()
    runs.mkdir(parents=True, exist_ok=True)
    report = runs / f"{system.stem}.json"
    report.unlink(missing_ok=True)
    port = port or free_port()
    command = command_line(folder, port=port, name=NAME, flags=system.flags)
    console.print(f"\n{as_typed(command, system.environment)}\n", soft_wrap=True, markup=False)
    environment = {**system.environment, REPORT_VARIABLE: str(report.resolve())}
    server = VllmServer(command, port=port, log=runs / f"{system.stem}.log", environment=environment)
    try:
        problems = _visit(server, console, system.mark)
        with console.status("stopping the server"):
            code = server.stop()
    except (ServerError, openai.OpenAIError, TimeoutError) as failure:
        _end(server, console)
        print(f"stepshape: {failure or type(failure).__name__}", file=sys.stderr)
        return 1
    except BaseException:
        _end(server, console)
        raise
    line = noise(server.text())
    if line is not None:
        problems.append(f"the server printed {line.strip()!r}; read {server.log}")
    if code:
        problems.append(f"the server ended with exit code {code}; read {server.log}")
    if report.exists():
        console.print(system.table(json.loads(report.read_text(encoding="utf-8"))))
    else:
        problems.append(f"the worker left no report, so it did not close the device; read {server.log}")
    for problem in problems:
        print(f"stepshape: {problem}", file=sys.stderr)
    if not problems:
        took = time.monotonic() - started
        console.print(f"The server ended with exit code 0. {took:.0f} s in all; log: {server.log}")
    return 1 if problems else 0


def _end(server: VllmServer, console: Console) -> None:
    """After a failure or Ctrl-C: as well as it goes, and for certain."""
    try:
        with console.status("stopping the server"):
            server.stop()
    except (ServerError, KeyboardInterrupt):
        server.kill()


def _visit(server: VllmServer, console: Console, mark: str) -> list[str]:
    """Wait for the server, send the chats, print the answers; return what is wrong with them."""
    started = time.monotonic()
    with console.status("starting the server") as live:
        server.wait_until_healthy(
            HEALTHY_WITHIN_S, lambda s: live.update(f"starting the server: {s:.0f} s  [dim]{_last_line(server)}[/]")
        )
    console.print(f"The server is healthy after {time.monotonic() - started:.0f} s.")
    for line in server.text().splitlines():
        if mark in line:
            console.print(line[line.index(mark) :], style="dim", markup=False)
    started = time.monotonic()
    with console.status(f"{len(CHATS)} chats at once") as live:

        def progress(done: int) -> None:
            live.update(f"{len(CHATS)} chats at once: {done} answered")

        answers = asyncio.run(asyncio.wait_for(_ask_all(server, progress), ANSWERED_WITHIN_S))
    console.print(f"{len(answers)} chats answered in {time.monotonic() - started:.0f} s.\n")
    console.print(_answer_table(answers))
    console.print()
    return complaints(answers)


def _last_line(server: VllmServer) -> str:
    """The message of the log's last line, short."""
    lines = server.text().rstrip().splitlines()
    return escape(lines[-1].rpartition("] ")[2][:60]) if lines else ""


async def _ask_all(server: VllmServer, progress: Any) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:

        async def one(index: int, chat: Chat) -> None:
            answers[index] = await (_stream(client, chat) if chat.stream else _ask(client, chat))
            progress(len(answers))

        await asyncio.gather(*(one(index, chat) for index, chat in enumerate(CHATS)))
    return answers


def _request(chat: Chat) -> dict[str, Any]:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": chat.text}],
        "max_tokens": TOKENS,
        **chat.options,
        "extra_body": dict(chat.extra),
    }


async def _ask(client: openai.AsyncOpenAI, chat: Chat) -> Answer:
    reply: Any = await client.chat.completions.create(**_request(chat))
    choice = reply.choices[0]
    content = choice.logprobs.content if choice.logprobs else ()
    return Answer(
        text=choice.message.content or "",
        finish=choice.finish_reason,
        tokens=reply.usage.completion_tokens,
        logprobs=tuple(len(token.top_logprobs) for token in content),
    )


async def _stream(client: openai.AsyncOpenAI, chat: Chat) -> Answer:
    text, finish, tokens = "", None, 0
    chunks: Any = await client.chat.completions.create(
        **_request(chat), stream=True, stream_options={"include_usage": True}
    )
    async for chunk in chunks:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return Answer(text=text, finish=finish, tokens=tokens)


def _answer_table(answers: dict[int, Answer]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("asked", "message", "answer"):
        table.add_column(column, overflow="fold")
    table.add_column("end", justify="right")
    for index, chat in enumerate(CHATS):
        answer = answers[index]
        text = " ".join(answer.text.split())
        table.add_row(escape(chat.asked), escape(chat.text), escape(text), f"{answer.tokens} {answer.finish}")
    return table
