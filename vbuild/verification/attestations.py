"""Who published a wheel: its attestations (PEP 740), checked against a root of trust, without a network.

    demo-1.0-py3-none-any.whl.provenance            what an index has of it: publishers, and the attestations of each
    demo-1.0-py3-none-any.whl.publish.attestation   one attestation alone: its certificate says who signed it
    "provenance" of the file in a simple index      the URL of such a provenance

pypi-attestations reads them; sigstore checks the signature, the certificate, and that the transparency log has both.
What is signed is the name and the SHA-256 of a file: a wheel that was slimmed, split or stamped has none.
https://peps.python.org/pep-0740/
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from msgspec import Struct
from msgspec.structs import replace
from pypi_attestations import Attestation, Provenance
from sigstore.errors import Error
from sigstore.models import TrustedRoot
from sigstore.verify import Verifier, policy

from vbuild.errors import WheelError, reason_of
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import open_file, read_file
from vbuild.verification.model import Finding, Severity, Verdict, VerifyRule

PROVENANCE, ATTESTATION = ".provenance", ".attestation"

# bytes of a file of attestations: one has ten thousand
_LARGEST = 1 << 20
# extensions of Fulcio's certificates, and PyPI's form of the last two by publisher
# https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md
_OIDS = "1.3.6.1.4.1.57264.1."
_ISSUER, _SIGNER, _REPOSITORY, _CONFIG = (f"{_OIDS}{number}" for number in (8, 9, 12, 18))


class AttestationRequest(Struct, frozen=True):
    """How attestations are checked.

    trust_root  a trusted_root.json; None for that of Sigstore's public instance
    publisher   the URL of the repository that has to have published the wheel
    fetch       gives the provenance that an index has of a wheel, by its file name
    """

    trust_root: Path | None = None
    publisher: str | None = None
    fetch: Callable[[str], bytes | None] | None = None


class _Claim(Struct, frozen=True):
    place: str
    attestation: Attestation
    publisher: Mapping[str, Any] | None = None


def attested(verdict: Verdict, request: AttestationRequest) -> Verdict:
    """*verdict* with a finding for each attestation of its wheel: who published it, or what is wrong with it.

    A wheel without any is an error. `WheelError` if the root of trust cannot be read, `FetchError` if no index answers.
    """
    verifier, wheel = _verifier(request.trust_root), verdict.wheel
    claims, findings = _claims(_files(wheel, request.fetch))
    digest = sha256_of(wheel) if claims else ""
    findings += (_judged(claim, wheel.name, digest, request, verifier) for claim in claims)
    if not claims:
        where = "beside it or on the index" if request.fetch else "beside it"
        advice = f"expected {wheel.name}{PROVENANCE}, or {wheel.name}.publish{ATTESTATION}; --fetch asks the index"
        findings.append(Finding(Severity.ERROR, VerifyRule.ATTESTATION, (), f"has no attestation {where}", advice))
    order = list(Severity)
    every = sorted((*verdict.findings, *findings), key=lambda finding: order.index(finding.severity))
    return replace(verdict, findings=tuple(every))


def attested_files(files: Iterable[tuple[str, str, Path]], request: AttestationRequest) -> Iterator[Finding]:
    """What the provenance of each of *files* (name, SHA-256, path of the provenance) says.

    `WheelError` if the root of trust or a provenance cannot be read.
    """
    verifier = _verifier(request.trust_root)
    for name, sha256, path in files:
        try:
            data = read_file(path)[:_LARGEST]
        except OSError as error:
            raise WheelError(f"{path}: cannot be read: {reason_of(error)}") from error
        claims, wrong = _claims([(f"{name}{PROVENANCE}", data)])
        yield from wrong
        yield from (_judged(claim, name, sha256, request, verifier) for claim in claims)


def _claims(files: Iterable[tuple[str, bytes]]) -> tuple[list[_Claim], list[Finding]]:
    claims: list[_Claim] = []
    wrong: list[Finding] = []
    for name, data in files:
        try:
            claims += _read(name, data)
        except ValueError as error:  # pydantic's is one
            message = f"{name}: no {'provenance' if name.endswith(PROVENANCE) else 'attestation'}: {_first(error)}"
            wrong.append(Finding(Severity.ERROR, VerifyRule.ATTESTATION, (), message))
    return claims, wrong


def _judged(claim: _Claim, name: str, sha256: str, request: AttestationRequest, verifier: Verifier) -> Finding:
    try:
        return Finding(Severity.NOTE, VerifyRule.ATTESTATION, (), _checked(claim, name, sha256, request, verifier))
    except WheelError as error:
        return Finding(Severity.ERROR, VerifyRule.ATTESTATION, (), f"{claim.place}: {error}")


def _files(wheel: Path, fetch: Callable[[str], bytes | None] | None) -> Iterator[tuple[str, bytes]]:
    beside = sorted(path for path in wheel.parent.iterdir() if path.name.startswith(f"{wheel.name}."))
    attested_by = [path for path in beside if path.name.endswith((PROVENANCE, ATTESTATION))]
    for path in attested_by:
        try:
            with open_file(path) as file:
                yield path.name, file.read(_LARGEST)
        except OSError as error:
            raise WheelError(f"{path}: cannot be read: {reason_of(error)}") from error
    if not attested_by and fetch and (data := fetch(wheel.name)) is not None:
        yield f"{wheel.name}{PROVENANCE}", data


def _read(name: str, data: bytes) -> Iterator[_Claim]:
    if name.endswith(ATTESTATION):
        yield _Claim(name, Attestation.model_validate_json(data))
        return
    for bundle in Provenance.model_validate_json(data).attestation_bundles:
        for attestation in bundle.attestations:
            yield _Claim(name, attestation, bundle.publisher.model_dump())


def _checked(claim: _Claim, name: str, digest: str, request: AttestationRequest, verifier: Verifier) -> str:
    claims = claim.attestation.certificate_claims
    publisher = claim.publisher or {}
    if publisher.get("kind") == "Google":
        signer: policy.VerificationPolicy = policy.Identity(identity=publisher["email"], issuer=_ISSUERS["Google"])
    else:
        signer = policy.OIDCIssuer(claims.get(_ISSUER, ""))
    try:
        with _quiet():
            _, payload = verifier.verify_dsse(claim.attestation.to_bundle(), signer)
        statement = json.loads(payload)
        subjects = [(subject["name"], subject["digest"]["sha256"]) for subject in statement["subject"]]
    except (Error, ValueError, LookupError, TypeError) as error:
        raise WheelError(f"not signed as it says: {_first(error)}") from error
    if subjects != [(name, digest)]:
        signed = ", ".join(f"{file} of sha256 {sha256}" for file, sha256 in subjects)
        raise WheelError(f"is for {signed or 'no file'}, and this is {name} of sha256 {digest}")
    for field, expected in _expected(publisher).items():
        stated = claims.get(field, "").partition("@")[0]  # a workflow is followed by the tag or branch that it is of
        if stated.lower() != expected.lower():
            raise WheelError(f"says that {expected} published it, and its certificate {stated or 'nobody'}")
    by = claims.get(_REPOSITORY) or _signer(claim.attestation)
    if request.publisher and _repository(by) != _repository(request.publisher):
        raise WheelError(f"published by {by}, expected {request.publisher}")
    how = f", {claims[_CONFIG]}" if _CONFIG in claims else ""
    return f"published by {by}{how} ({statement.get('predicateType')} in {claim.place})"


def _signer(attestation: Attestation) -> str:
    certificate = x509.load_der_x509_certificate(attestation.verification_material.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ", ".join(str(name.value) for name in names)


_ISSUERS = {
    "GitHub": "https://token.actions.githubusercontent.com",
    "GitLab": "https://gitlab.com",
    "Google": "https://accounts.google.com",
    "CircleCI": "https://oidc.circleci.com",
}


def _expected(publisher: Mapping[str, Any]) -> dict[str, str]:
    if not publisher:
        return {}
    kind = publisher["kind"]
    if kind not in _ISSUERS:
        raise WheelError(f"of a publisher of the kind {kind!r}; expected one of {', '.join(_ISSUERS)}")
    expected = {_ISSUER: _ISSUERS[kind]}
    if kind == "GitHub":
        repository = f"https://github.com/{publisher['repository']}"
        expected |= {_REPOSITORY: repository, _CONFIG: f"{repository}/.github/workflows/{publisher['workflow']}"}
    elif kind == "GitLab":
        repository = f"https://gitlab.com/{publisher['repository']}"
        expected |= {_REPOSITORY: repository, _CONFIG: f"{repository}//{publisher['workflow_filepath']}"}
    elif kind == "CircleCI":
        pipeline = f"projects/{publisher['project_id']}/pipeline-definitions/{publisher['pipeline_definition_id']}"
        expected |= {_SIGNER: f"https://circleci.com/api/v2/{pipeline}"}
    return expected


def _repository(url: str) -> str:
    """*url* of a repository in one spelling: CircleCI's certificates leave the scheme out."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return f"{parts.netloc}{parts.path}".rstrip("/").removesuffix(".git").lower()


def _verifier(trust_root: Path | None) -> Verifier:
    try:
        with _quiet():
            if trust_root is None:
                return Verifier.production(offline=True)
            open_file(trust_root).close()  # sigstore would wait for ever for a FIFO
            return Verifier(trusted_root=TrustedRoot.from_file(str(trust_root)))
    except OSError as error:
        raise WheelError(f"{trust_root or 'trusted root'}: cannot be read: {reason_of(error)}") from error
    except (Error, ValueError, LookupError, TypeError) as error:
        raise WheelError(f"{trust_root or 'trusted root'}: no root of trust: {_first(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("sigstore")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _first(error: BaseException) -> str:
    """The first lines of *error* as one: pydantic has the place in the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(line for line in lines[:3] if not line.startswith("For further")) or type(error).__name__
