"""A wheel's bill of materials, told shortly: what was changed in it, what went, and how often it was built."""

from typing import Any

from vbuild.sbom.model import Bill, Treatment


def data(bill: Bill) -> dict[str, Any]:
    """*bill* as ``schema.json`` says."""
    return {
        "tool": bill.tool,
        "files": len(bill.files),
        "changed": [file.path for file in bill.files if file.before],
        "gone": [{"path": gone.path, "fate": str(gone.fate), "purl": gone.purl} for gone in bill.gone],
        "builds": len(bill.makings),
    }


def line(bill: Bill) -> str:
    """The same in a line."""
    changed = sum(bool(file.before) for file in bill.files)
    fates = {fate: sum(gone.fate is fate for gone in bill.gone) for fate in Treatment}
    said = [f"{len(bill.files)} compiled", f"{changed} changed", *(f"{count} {fate}" for fate, count in fates.items())]
    return ", ".join(text for text in said if not text.startswith("0 ")) or "nothing compiled"
