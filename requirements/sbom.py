"""Writes an SBOM (CycloneDX 1.6) for each list of packages: `make sbom`.

An SBOM contains names, versions, licenses and hashes. A component has the hashes of all its files, since the file that
is installed depends on the Python version and the machine.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from requirements.licenses import licenses
from requirements.lists import FOLDER, LISTS, Pin, read

OUTPUT = FOLDER.parent / "build"


def sbom(kind: str) -> str:
    """Return the SBOM of the list `kind` as JSON."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    bom = Bom()
    root = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        licenses=[_terms(project["license"])],
    )
    of = dict(licenses())
    components = [_component(pin, of[pin.name]) for pin in read(kind)]
    bom.metadata.component = root
    bom.components.update(components)
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(pin: Pin, license: str) -> Component:
    url = PackageURL("pypi", name=pin.name, version=pin.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes]
    return Component(
        name=pin.name, version=pin.version, purl=url, bom_ref=str(url), hashes=hashes, licenses=[_terms(license)]
    )


def _terms(license: str) -> License:
    return LicenseFactory().make_from_string(license)


def main(output: Path = OUTPUT) -> None:
    """Write one SBOM file for each list to the folder `output`."""
    output.mkdir(exist_ok=True)
    for kind in LISTS:
        path = output / f"sbom-{kind}.json"
        path.write_text(f"{sbom(kind)}\n")
        print(path)


if __name__ == "__main__":
    main()
