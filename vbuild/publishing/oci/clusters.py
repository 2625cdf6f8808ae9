"""What a variant needs, for Kubernetes: which nodes an image runs on (NFD), and which devices a pod claims (DRA).

    x86_64 :: level :: v3                       cpu.cpuid AVX2, FMA3 ...
    nvidia :: cuda_version_lower_bound :: 12.6  labels of GPU feature discovery       cudaDriverVersion
    nvidia :: sm_arch :: 90_real                (nvidia.com/gpu.compute.major ...)    cudaComputeCapability

Values of one feature are alternatives; all features are needed. Notes name what cannot be expressed. Both files are
JSON, which is YAML 1.2; a claim begins with comments, so that file is YAML alone.
https://kubernetes-sigs.github.io/node-feature-discovery/v0.20/usage/image-compatibility.html
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct

from vbuild.hardware.architectures import Arch
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS
from vbuild.variants.model import Feature, Variant

Value = str | int | Mapping[str, "Value"] | Sequence["Value"]

NFD_ARTIFACT = "application/vnd.nfd.image-compatibility.v1alpha1"
NFD_SPEC = "application/vnd.nfd.image-compatibility.spec.v1alpha1+yaml"

_LOWER, _UPPER, _SM = "cuda_version_lower_bound", "cuda_version_upper_bound", "sm_arch"
_CUDA = "nvidia.com/cuda.runtime-version"
_COMPUTE = "nvidia.com/gpu.compute"
_DRIVER = "gpu.nvidia.com"
_SM_ARCH = re.compile(r"(?P<major>\d+)(?P<minor>\d)(?P<suffix>[af]?)_(?P<kind>real|virtual)", re.ASCII)
_DOTTED = re.compile(r"(?P<major>\d+)(?:\.(?P<minor>\d+))?", re.ASCII)
# DeviceSubRequests of one request (resource.k8s.io, FirstAvailableDeviceRequestMaxSize)
_MOST = 8


class VersionRange(Struct, frozen=True):
    """Versions of two numbers: of *major*, from *least* on, before *below*; and of later majors where *and_later*.

    Without *below* there is no end in the major, and without *least* no begin, nor in the majors before it.
    """

    major: int
    least: int | None = None
    below: int | None = None
    and_later: bool = False


def ranges(feature: Feature) -> tuple[VersionRange, ...] | None:
    """The versions that *feature*, one of NVIDIA's, asks for, one of them enough, or None if it asks for no such."""
    found = [_range(feature.name, value) for value in feature.values] if feature.namespace == "nvidia" else [None]
    return None if None in found else tuple(filter(None, found))


def nfd(variant: Variant) -> tuple[str | None, tuple[str, ...]]:
    """Returns NFD's compatibility specification of *variant* as JSON, and notes on what it cannot express.

    The specification is None if every node fits.
    """
    rules, notes = [], []
    for feature in variant.features:
        if (rule := _rule(feature)) is None:
            notes.append(f"{feature}: NFD has no feature for it; nodes are not told apart by it")
        elif rule:
            rules.append({"name": str(feature), **rule})
    if not rules:
        return None, tuple(notes)
    compatibility: Value = {"description": f"variant {variant.label}", "tag": variant.label, "rules": rules}
    return _json({"version": "v1alpha1", "compatibilities": [compatibility]}), tuple(notes)


def dra(name: str, images: Sequence[tuple[str, Variant]]) -> tuple[str | None, tuple[str, ...]]:
    """A ResourceClaimTemplate *name* for the *images*, names with their variants, the newest device first.

    None if none of them asks for a device; and notes on what it cannot say.
    """
    requests, notes = [], []
    for ref, variant in images:
        terms, unsaid = _expression(variant)
        notes += unsaid
        if terms:
            features = {feature.name: ranges(feature) or () for feature in variant.features}
            numbers = ([(one.major, one.least or 0) for one in features.get(name, ())] for name in (_LOWER, _SM))
            # sorted by the driver's version, then the GPU's
            newest = tuple(max(several, default=(0, 0)) for several in numbers)
            requests.append((newest, ref, variant, terms))
    requests.sort(key=itemgetter(0), reverse=True)
    if not requests:
        return None, (f"{name}: no image needs a device that DRA knows, so there is no claim",)
    if len(requests) > _MOST:
        left = ", ".join(variant.label for _, _, variant, _ in requests[_MOST:])
        notes.append(f"a claim has {_MOST} alternatives at most; left out: {left}")
    claimed = [(_dns(variant.label), ref, terms) for _, ref, variant, terms in requests[:_MOST]]
    comments = "".join(f"# device gpu/{request}: the image {ref}\n" for request, ref, _ in claimed)
    return comments + _json(_template(_dns(name), claimed)), tuple(dict.fromkeys(notes))


def _template(name: str, claimed: Iterable[tuple[str, str, Sequence[str]]]) -> dict[str, Value]:
    alternatives: list[Value] = [
        {
            "name": request,
            "deviceClassName": _DRIVER,
            "selectors": [{"cel": {"expression": " &&\n".join(terms)}}],
        }
        for request, _, terms in claimed
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}},
    }


def _range(name: str, value: str) -> VersionRange | None:
    if name == _SM and (match := _SM_ARCH.fullmatch(value)):
        major, minor = int(match["major"]), int(match["minor"])
        is_ptx = match["kind"] == "virtual"
        # code with an ``a``, or for a Jetson, runs on the one capability alone, PTX on all later ones
        if match["suffix"] == "a" or (Arch(10 * major + minor).is_tegra and not is_ptx):
            return VersionRange(major, minor, minor + 1)
        return VersionRange(major, minor, and_later=is_ptx and not match["suffix"])
    if name in {_LOWER, _UPPER} and (match := _DOTTED.fullmatch(value)):
        major, minor = int(match["major"]), int(match["minor"] or 0)
        return VersionRange(major, minor, and_later=True) if name == _LOWER else VersionRange(major, below=minor)
    return None


def _rule(feature: Feature) -> dict[str, Value] | None:
    """What NFD is to match for *feature*; empty where every node has it, or None if it has no such feature."""
    if (feature.namespace, feature.name) == ("x86_64", "level") and set(feature.values) <= set(X86_64_LEVELS):
        level = X86_64_LEVELS.index(min(feature.values))
        flags = sorted(added.cpuid for below in X86_64_LEVELS[1 : level + 1] for added in X86_64_FEATURES[below])
        expressions: dict[str, Value] = {flag: {"op": "Exists"} for flag in flags}
        return {"matchFeatures": [{"feature": "cpu.cpuid", "matchExpressions": expressions}]} if flags else {}
    found = ranges(feature)
    if found is None:
        return None
    label = _COMPUTE if feature.name == _SM else _CUDA
    terms = [term for one in found for term in _terms(one, label)]
    return {"matchAny": [{"matchFeatures": [{"feature": "local.label", "matchExpressions": term}]} for term in terms]}


def _terms(wanted: VersionRange, label: str) -> Iterator[dict[str, Value]]:
    """The alternatives that are *wanted* of the numbers ``<label>.major`` and ``.minor``."""
    major, minor = f"{label}.major", f"{label}.minor"
    exactly: Value = {"op": "In", "value": [str(wanted.major)]}
    if wanted.least is None:
        yield {major: {"op": "Lt", "value": [str(wanted.major)]}}
        if wanted.below:
            yield {major: exactly, minor: {"op": "Lt", "value": [str(wanted.below)]}}
        return
    if wanted.below is not None:
        yield {major: exactly, minor: {"op": "In", "value": [str(wanted.least)]}}
    elif wanted.least:
        yield {major: exactly, minor: {"op": "Gt", "value": [str(wanted.least - 1)]}}
    else:
        yield {major: exactly}
    if wanted.and_later:
        yield {major: {"op": "Gt", "value": [str(wanted.major)]}}


def _expression(variant: Variant) -> tuple[list[str], list[str]]:
    """What a device of *variant* is asked, all of it to be true, and notes on what it cannot be asked."""
    terms, notes = [], []
    for feature in variant.features:
        if (found := ranges(feature)) is None:
            notes.append(f"{feature}: DRA has no device for it; pods need a node selector as well")
        else:
            attribute = "cudaComputeCapability" if feature.name == _SM else "cudaDriverVersion"
            alternatives = [_compared(one, f'device.attributes["{_DRIVER}"].{attribute}') for one in found]
            terms.append(alternatives[0] if len(alternatives) == 1 else f"({' || '.join(alternatives)})")
    return terms, notes


def _compared(wanted: VersionRange, attribute: str) -> str:
    least = f'{attribute}.compareTo(semver("{wanted.major}.{wanted.least or 0}.0")) >= 0'
    if wanted.least is None:
        return f'{attribute}.compareTo(semver("{wanted.major}.{wanted.below}.0")) < 0'
    if wanted.and_later:
        return least
    below = f"{wanted.major}.{wanted.below}.0" if wanted.below is not None else f"{wanted.major + 1}.0.0"
    return f'({least} && {attribute}.compareTo(semver("{below}")) < 0)'


def _dns(text: str) -> str:
    """*text* as names in clusters are: lower case, digits and dashes (RFC 1123)."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")


def _json(value: Mapping[str, Value]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
