"""Stands where ttnn looks for the compiler of device code, which its wheel does not bring.

On a mocked machine nothing of what is compiled ever runs; it only has to be there, and to have the form of a program.
Firmware is copied from what the wheel brings compiled; a kernel is one instruction. Run by ttnn, not by us.
"""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

VERSION = "riscv-tt-elf-g++ (tenstorrent/sfpi:0.0.0) 15.1.0"
_RETURN = 0x00008067
_ADDRESS = 0x8000


def kernel() -> bytes:
    """A RISC-V program of one segment, with the relocation section that ttnn asks of a kernel."""
    text = struct.pack("<I", _RETURN) * 16
    names, strings = b"\0.text\0.rela.text\0.symtab\0.strtab\0.shstrtab\0", b"\0_start\0"
    symbols = bytes(16) + struct.pack("<IIIBBH", 1, _ADDRESS, len(text), 0x12, 0, 1)
    at, offsets = 84, []
    for piece in (text, symbols, strings, names):
        offsets.append(at)
        at += len(piece) + -len(piece) % 4
    header = struct.pack(
        "<16sHHIIIIIHHHHHH", b"\x7fELF\1\1\1", 2, 243, 1, _ADDRESS, 52, at, 2, 52, 32, 1, 40, 6, 5
    )
    segment = struct.pack("<8I", 1, offsets[0], _ADDRESS, _ADDRESS, len(text), len(text), 5, 4)

    def section(name: bytes, kind: int, flags: int, address: int, place: int, *rest: int) -> bytes:
        return struct.pack("<10I", names.index(name), kind, flags, address, place, *rest)

    sections = [
        bytes(40),
        section(b".text", 1, 6, _ADDRESS, offsets[0], len(text), 0, 0, 4, 0),
        section(b".rela.text", 4, 0x40, 0, offsets[1], 0, 3, 1, 4, 12),
        section(b".symtab", 2, 0, 0, offsets[1], len(symbols), 4, 1, 4, 16),
        section(b".strtab", 3, 0, 0, offsets[2], len(strings), 0, 0, 1, 0),
        section(b".shstrtab", 3, 0, 0, offsets[3], len(names), 0, 0, 1, 0),
    ]
    pieces = b"".join(piece + bytes(-len(piece) % 4) for piece in (text, symbols, strings, names))
    return header + segment + pieces + b"".join(sections)


def compile_to(output: Path, arguments: list[str], precompiled: Path) -> None:
    """What a compiler would have left at ``output``: a program, or an object with the list of what it depends on."""
    if ".elf" in output.name:
        name = output.name.partition(".")[0]
        firmware = sorted(precompiled.glob(f"*/{name}/{name}.elf"))
        if "kernels" in output.absolute().parts or not firmware:
            output.write_bytes(kernel())
        else:
            shutil.copy(firmware[0], output)
        return
    output.touch()
    sources = [word for word in arguments if word.endswith((".cc", ".cpp", ".c", ".S"))]
    output.with_suffix(".d").write_text(f"{output}: {' '.join(sources)}\n")


def main(arguments: list[str]) -> None:
    if "--version" in arguments:
        print(VERSION)
    elif "-o" in arguments:
        output = Path(arguments[arguments.index("-o") + 1])
        compile_to(output, arguments, Path(__file__).resolve().parents[4] / "tt_metal" / "pre-compiled")


if __name__ == "__main__":
    main(sys.argv[1:])
