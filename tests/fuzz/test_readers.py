"""Fuzzing can fail: the readers that judge what is cut, relinked or written notice faults in the code that did it."""

import shutil
import subprocess
import sys

import pytest

from tests.factories.tools import needs
from tests.factories.windows import MINGW

_ELF, _PE, _GPU, _ZIP = "vbuild.elf.surgery.", "vbuild.pe.cutting", "vbuild.gpu_code.", "vbuild.wheel.zip_write"
# target, module, what stands there, and what is a fault instead
FAULTS = {
    "code that is needed no more": (
        "slim", f"{_ELF}cutting", "edits += (Edit(gap, (bytes(len(gap)),)) for gap in zeros)", "pass",
    ),
    "fewer program headers": ("slim", f"{_ELF}cutting", "e_phnum=len(table.headers)", "e_phnum=image.header.e_phnum"),
    "section headers elsewhere": (
        "slim", f"{_ELF}cutting", "e_shoff=holes.offset(start) if", "e_shoff=start if",
    ),
    "pointers off": ("slim", f"{_ELF}cutting", ".pointers, move.new.start)", ".pointers, move.new.start + 8)"),
    "symbols that stay behind": (
        "slim", f"{_ELF}cutting", "words |= symbol_words(image, [*moves, *slid], without=plan.unneeded)", "",
    ),
    "PT_DYNAMIC that stays behind": ("slim", f"{_ELF}cutting", "words |= slid_words", ""),
    "segments elsewhere in the file": (
        "slim", f"{_ELF}cutting", "replace(header, p_offset=holes.offset(header.p_offset)).pack()", "header.pack()",
    ),
    "sections elsewhere in the file": (
        "slim", f"{_ELF}cutting",
        "replace(header, sh_offset=plan.holes.offset(header.sh_offset)) for header in", "header for header in",
    ),
    "sections elsewhere in memory": ("slim", f"{_ELF}cutting", "sh_addr=header.sh_addr + slide.by,", ""),
    "longer sections": ("slim", f"{_ELF}cutting", "sh_size=stop - start, sh", "sh_size=stop - start + 8, sh"),
    "the section headers of what is gone": ("slim", f"{_ELF}cutting", "if section in plan.unneeded:", "if False:"),
    "pieces at one address": ("slim", f"{_ELF}holes", "p_vaddr=segment.p_vaddr + moved", "p_vaddr=segment.p_vaddr"),
    ".bss lost": ("slim", f"{_ELF}holes", "p_memsz=stop - start + beyond", "p_memsz=stop - start"),
    ".bss behind each piece": ("slim", f"{_ELF}holes", " if stop == segment.span.stop else 0", ""),
    "code that cannot be run": (
        "slim", f"{_ELF}holes",
        "stays = _has_code(layout, piece) or not piece.p_flags & SegmentFlag.R", "stays = False",
    ),
    "PT_PHDR of the old size": (
        "slim", f"{_ELF}holes", "return replace(table, headers=tuple(rows))", "return table",
    ),
    "half of the filter": ("slim", f"{_ELF}holes", "low | high for low", "low for low"),
    "merged without rights": ("slim", f"{_ELF}holes", "p_flags=lower.p_flags | upper.p_flags", "p_flags=lower.p_flags"),
    "merged and cut off": (
        "slim", f"{_ELF}holes", "p_memsz=upper.addresses.stop - lower.p_vaddr", "p_memsz=upper.p_memsz",
    ),
    "addends that stay": ("slim", f"{_ELF}cut_check", "words[pointer.row + _ADDEND] = address", "pass"),
    "words that stay": ("slim", f"{_ELF}cut_check", "if word == pointer.target:", "if False:"),
    "symbols of another size": ("slim", f"{_ELF}cut_check", "len(move.new)\n", "len(move.new) + 8\n"),
    "symbols of sections that are gone": (
        "slim", f"{_ELF}cut_check", "*(_orphaned(table, gone) if gone else ())", "",
    ),
    "DLL: pointers off": ("slim-pe", _PE, "pointer.place, start) for", "pointer.place, start + 8) for"),
    "DLL: sections elsewhere": (
        "slim-pe", _PE, "raw_at=shifts.offset(header.raw_at) if size", "raw_at=header.raw_at if size",
    ),
    "DLL: debug data elsewhere": ("slim-pe", _PE, "raw_at=shifts.offset(entry.raw_at)", "raw_at=entry.raw_at"),
    "DLL: another checksum": ("slim-pe", _PE, "+ file.size", "+ file.size + 1"),
    "DLL: symbols elsewhere": (
        "slim-pe", _PE, "symbols_at=shifts.offset(coff.symbols_at)", "symbols_at=coff.symbols_at",
    ),
    "another name needed": ("relink", f"{_ELF}relink", '"--replace-needed", old, new', '"--replace-needed", old, old'),
    "nothing added": ("relink", f"{_ELF}relink", 'command += ["--add-needed", name]', "pass"),
    "no SONAME": ("relink", f"{_ELF}relink", 'command += ["--set-soname", order.soname]', "pass"),
    "bundle: places that are no multiples": ("bundle", f"{_GPU}bundle", "gap = -end % ALIGNMENT", "gap = -end % 8"),
    "bundle: code without its gap": ("bundle", f"{_GPU}bundle", "parts += [bytes(gap), code]", "parts += [code]"),
    "bundle: one entry too many": ("bundle", f"{_GPU}bundle", "Count(len(kept))", "Count(len(kept) + 1)"),
    "bundle: the hash of another": (
        "bundle", f"{_GPU}bundle", "(total, len(bundle), _hash(bundle))", "(total, len(bundle), 1)",
    ),
    "bundle: other code": (
        "device-file", f"{_GPU}bundle", "entry.uncompressed_size) in wanted", "entry.uncompressed_size) not in wanted",
    ),
    "fatbin: the flags of before": (
        "fatbin", f"{_GPU}fatbin", "flags=header.flags & ~COMPRESSED | FatbinFlag.ZSTD", "flags=header.flags",
    ),
    "fatbin: without padding": ("fatbin", f"{_GPU}fatbin", "padding = bytes(-len(frame) % ALIGNMENT)", 'padding = b""'),
    "fatbin: another size": (
        "fatbin", f"{_GPU}fatbin", "uncompressed_size=len(code),", "uncompressed_size=len(code) + 8,",
    ),
    "wheel: the sizes of the longest": (
        "wheel", _ZIP, "replace(member, compressed_size=compressed_size, packed", "replace(member, packed",
    ),
    "wheel: no CRC": (
        "wheel", _ZIP, "replace(header, crc=crc).pack()))\n        return", "header.pack()))\n        return",
    ),
    "wheel: no flag of names in UTF-8": (
        "wheel", _ZIP, "options if member.path.isascii() else options | ZipFlag.UTF8", "options",
    ),
    "wheel: one entry fewer": ("wheel", _ZIP, "count = len(self._entries)", "count = len(self._entries) - 1"),
    "RUNPATH for RPATH": ("relink", f"{_ELF}relink", '["--force-rpath"]', "[]"),
}  # fmt: skip


@needs("gcc")
@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str) -> None:
    target, module, old, new = FAULTS[fault]
    if target == "slim-pe" and not shutil.which(MINGW):
        pytest.skip(f"no {MINGW}, which links the DLLs")
    command = [sys.executable, "-m", "tests.fuzz.faulty", target, module, old, new]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, ""), ran
    assert ran.stdout


@pytest.mark.nightly
def test_without_a_fault_nothing_is_noticed() -> None:
    command = [sys.executable, "-m", "tests.fuzz.faulty", "relink", f"{_ELF}relink", "def _patch(", "def _patch("]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
