"""`vbuild stamp`: a wheel under a variant label, or back under its plain name.

    wheel + variant + metadata -> the same members, variant.json, RECORD, a new file name

The compressed bytes of members pass as they are (PEP 825, "Wheel metadata").
"""

from collections.abc import Iterable
from pathlib import Path

from vbuild.errors import VariantError, at, reason_of
from vbuild.files.reading import read_text
from vbuild.hardware.cpu import Cpu
from vbuild.variants.document import Declaration, Document
from vbuild.variants.model import NULL_LABEL, Property, Variant, VariantMetadata
from vbuild.variants.providers import metadata_for
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import edit_wheel


def stamped(
    wheel: Path,
    folder: Path,
    *,
    variant: Variant,
    metadata: VariantMetadata | None = None,
) -> Path:
    """Write into *folder* the copy of *wheel* that is *variant*, and return its path; it replaces an older stamp.

    Without *metadata* the namespaces of the variant come in lexical order, with the built-in providers. Every member is
    compared with RECORD. `VariantError` if the metadata does not cover the variant, or if that is for other machines
    than the wheel; `HardwareError` if it asks for an unknown CPU level; `WheelError` if the wheel is damaged.
    """
    with open_wheel(wheel) as source:
        with at(wheel.name):
            cpu, machines = Cpu.of_properties(map(str, variant.properties)), source.name.machines
            if cpu and machines and cpu.machine not in machines:
                raise VariantError(
                    f"{cpu.variant_property} is for {cpu.machine}, and the wheel for {', '.join(machines)}"
                )
            shared = metadata or metadata_for(_namespaces(variant, source.name))
            document = Document.of(variant, shared)
            name = source.name.normalised().labelled(variant.label)
        return edit_wheel(source, folder, name, edits={_path(source): document.pack()}, verify=True)


def unstamped(wheel: Path, folder: Path) -> Path:
    """Write into *folder* the copy of *wheel* that is not a variant; `VariantError` if it is none already."""
    with open_wheel(wheel) as source:
        if not (source.name.variant or source.find(_path(source))):
            raise VariantError(
                f"{wheel.name}: no variant label and no variant.json; expected a variant wheel to remove them from"
            )
        return edit_wheel(source, folder, source.name.plain(), edits={_path(source): None}, verify=True)


def described(properties: Iterable[Property], *, label: str | None, declaration: Declaration | None) -> Variant:
    """The variant of *properties* under *label*, else under their hash; without properties as *declaration* says.

    `VariantError` if the declaration has no variant of that label.
    """
    properties = tuple(properties)
    if label is None:
        return Variant.hashed(properties)
    if not properties and declaration and label != NULL_LABEL:
        return declaration.variant(label)
    return Variant.of(label, properties)


def declaration_at(path: Path) -> Declaration:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise VariantError(f"{path}: cannot be read: {reason_of(error)}") from error
    with at(path):
        return Declaration.parse(text)


def _path(wheel: Wheel) -> str:
    return f"{wheel.dist_info}/{VARIANT_JSON}"


def _namespaces(variant: Variant, name: WheelName) -> tuple[str, ...]:
    """The namespaces in use; for the null variant, which uses none, that of its platform's CPU levels.

    The list may not be empty (PEP 825, default priorities), and the wheels beside the null one begin with that.
    """
    if variant.namespaces:
        return tuple(sorted(variant.namespaces))
    return ("aarch64",) if name.platform.endswith("aarch64") else ("x86_64",)
