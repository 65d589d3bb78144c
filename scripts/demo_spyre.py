"""Serves SmolLM2 on an emulated Spyre card, sends it twelve chats at once, and shows what the buckets made of them.

``--serve-only`` leaves the server running.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "models" / "smollm2"
RUNS = ROOT / "runs"
REPORT, LOG = RUNS / "demo-spyre.json", RUNS / "demo-spyre.log"
QUESTIONS = (
    "Why do the tides come twice a day?",
    "Name three primary colours.",
    "What is the capital of France?",
    "Write one line about rain.",
    "What is 2 + 2?",
    "Who was Ada Lovelace?",
    "How do bees make honey?",
    "What is a prime number?",
    "How do planes fly?",
    "What is photosynthesis?",
    "Say hello in Spanish.",
    "What does HTTP stand for?",
)
TOKENS = 24
# Prompts of these chats have 40 to 50 tokens: a widest body of 64 rows holds one, and wastes little.
OPTIONS = ("--max-model-len", "512", "--max-num-seqs", "12", "--max-num-batched-tokens", "64")


def main(arguments: list[str]) -> int:
    from stepshape.adapters.checkpoints.smollm2 import convert, packaged_gguf

    convert(packaged_gguf(), FOLDER, lambda what, done, total: None)
    RUNS.mkdir(exist_ok=True)
    port = free_port()
    serve_only = "--serve-only" in arguments
    print(f"Serving SmolLM2-135M on an emulated Spyre card, port {port}; its log is in {LOG.relative_to(ROOT)}")
    with LOG.open("w") as log:
        server = subprocess.Popen(
            [str(Path(sys.executable).with_name("vllm")), "serve", str(FOLDER), "--port", str(port), *OPTIONS],
            env={**os.environ, **environment()},
            stdout=None if serve_only else log,
            stderr=None if serve_only else log,
            cwd=ROOT,
        )
    try:
        if serve_only:
            return server.wait()
        started = time.monotonic()
        if not healthy(server, port):
            print(f"The server ended before it was ready; see {LOG}", file=sys.stderr)
            return 1
        print(f"Ready after {time.monotonic() - started:.0f} s, warm-up included. Twelve chats at once:\n")
        started = time.monotonic()
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            for question, answer in zip(QUESTIONS, pool.map(lambda q: chat(port, q), QUESTIONS), strict=True):
                print(f"  {question}\n    {answer}")
        seconds = time.monotonic() - started
    finally:
        stop(server)
    show(json.loads(REPORT.read_text()), seconds)
    return 0


def environment() -> dict[str, str]:
    return {
        "STEPSHAPE_SPYRE_DEVICE": "emulated",
        "STEPSHAPE_TT_DEVICE": "",
        "STEPSHAPE_STEP_REPORT": str(REPORT),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def healthy(server: subprocess.Popen[bytes], port: int) -> bool:
    """True once the server answers; False if it has ended."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(1)
        else:
            return True
    return False


def chat(port: int, question: str) -> str:
    body = {
        "model": str(FOLDER),
        "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: str = json.load(response)["choices"][0]["message"]["content"]
    return " ".join(answer.split())


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()


def show(report: dict[str, Any], seconds: float) -> None:
    late = report["device"]["artifacts"] + report["device"]["eager_kernels"]
    waste = report["padded_over_useful"]
    print(f"\n{report['steps']} steps in {seconds:.0f} s")
    body = sorted(report["body_rows"].items(), key=lambda entry: int(entry[0]))
    print("  body shapes          " + ", ".join(f"{rows} rows x {count}" for rows, count in body))
    for kernel, count in report["kernels"].items():
        print(f"  {count:4d} x {kernel}")
    print("  padded over useful   " + ", ".join(f"{name.replace('_', ' ')} {ratio}" for name, ratio in waste.items()))
    print(f"  warm-up              {report['warm_up']['variants']} variants in {report['warm_up']['seconds']:.0f} s")
    print(f"  compiles after it    {late}")
    print(
        f"  copies to the card   {report['device']['host_to_device']}, at most {report['most_copies_in_a_step']} a step"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
