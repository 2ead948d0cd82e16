"""The files of a release: the copy with public links, the list of included software, and what must be inside."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tomllib
import uuid
import zipfile
from pathlib import Path
from typing import Any

VENDOR = Path("client") / "console" / "static" / "vendor"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A link or image of Markdown with a relative target: ``!``, text, path, anchor."""
PAGES = {
    "Documentation": "/blob/v{version}/README.md",
    "Source": "",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/blob/v{version}/SECURITY.md",
}
"""Addresses for the metadata, after that of the repository."""


def copy_clone(root: Path, target: Path) -> None:
    """Copy the files of a clone that Git tracks, or would track, as they are now."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (root / name).is_file():  # not the links of `.pkg/flintmq`
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def make_public(clone: Path, home: str, version: str) -> None:
    """Give the metadata the addresses under ``home``, and make the links of its README absolute, as an index needs."""
    home = home.rstrip("/")
    project = clone / "pyproject.toml"
    urls = "".join(f'{name} = "{home}{page.format(version=version)}"\n' for name, page in PAGES.items())
    head, table, tail = project.read_text(encoding="utf-8").partition("[project.optional-dependencies]\n")
    project.write_text(f"{head}[project.urls]\n{urls}\n{table}{tail}", encoding="utf-8")
    readme = clone / "README.md"
    readme.write_text(absolute_links(readme.read_text(encoding="utf-8"), home, version), encoding="utf-8")


def absolute_links(text: str, home: str, version: str) -> str:
    """Return Markdown whose relative links lead to the files of the tag in the repository ``home``, images to their
    bytes."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, path, anchor = found.groups(default="")
        words = LINK.sub(absolute, words)  # an image may be the text of a link
        return f"{mark}[{words}]({home}/{'raw' if mark else 'blob'}/v{version}/{path}{anchor})"

    return LINK.sub(absolute, text)


def sbom(clone: Path, version: str) -> str:
    """Return the list of the software of others that the wheel includes, as CycloneDX in JSON."""
    licence = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["license"]
    packages: dict[str, dict[str, Any]] = {}
    for name, entry in sorted(tomllib.loads((clone / VENDOR / "vendor.toml").read_text()).items()):
        purl = f"pkg:npm/{entry['package']}@{entry['version']}"
        package = packages.setdefault(
            purl,
            {
                "type": "library",
                "bom-ref": purl,
                "name": entry["package"],
                "version": entry["version"],
                "licenses": [{"license": {"id": entry["licence"]}}],
                "purl": purl,
                "components": [],
            },
        )
        digest = base64.b64decode(entry["integrity"].removeprefix("sha384-")).hex()
        path = ("flintmq" / VENDOR / name).as_posix()
        package["components"].append(
            {"type": "file", "bom-ref": path, "name": path, "hashes": [{"alg": "SHA-384", "content": digest}]}
        )
    own = f"pkg:pypi/flintmq@{version}"
    described = {"type": "library", "bom-ref": own, "name": "flintmq", "version": version, "purl": own}
    described["licenses"] = [{"expression": licence}]  # type: ignore[assignment] # a list among texts
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described},
        "components": list(packages.values()),
        "dependencies": [{"ref": own, "dependsOn": sorted(packages)}],
    }
    # The same content has the same number, so that a build can be repeated.
    content["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True)).urn
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def embed(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to the ``.dist-info`` of a wheel, and to its RECORD."""
    with zipfile.ZipFile(wheel) as old:
        members = [(info, old.read(info)) for info in old.infolist()]
    (record,) = (info for info, _ in members if info.filename.endswith(".dist-info/RECORD"))
    path = record.filename.removesuffix("RECORD") + name
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerow((path, f"sha256={digest}", len(content)))
    scratch = wheel.with_suffix(".new")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as new:
        for info, data in members:
            if info is record:
                added = zipfile.ZipInfo(path, record.date_time)
                added.external_attr, added.compress_type = record.external_attr, record.compress_type
                new.writestr(added, content)
                data = rows.getvalue().encode() + data
            new.writestr(info, data)
    scratch.replace(wheel)


def flaws(folder: Path, version: str) -> list[str]:
    """Return what is wrong with the files of a release in ``folder``: missing or surplus members."""
    info = f"flintmq-{version}.dist-info"
    source = f"flintmq-{version}"
    with zipfile.ZipFile(folder / f"flintmq-{version}-py3-none-any.whl") as wheel:
        inside = set(wheel.namelist())
    with tarfile.open(folder / f"{source}.tar.gz") as archive:
        packed = set(archive.getnames())
    wanted = {
        *(f"flintmq/{name}" for name in ("py.typed", "conf/broker.toml", "conf/compose.yaml")),
        *(f"flintmq/{package}/__init__.pyi" for package in ("broker/store", "client")),
        *(f"{info}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt", "sboms/flintmq.cdx.json")),
        f"{info}/licenses/LICENSE",
        f"{info}/licenses/{VENDOR.as_posix()}/htmx-LICENSE.txt",
    }
    found = [f"the wheel has no {name}" for name in sorted(wanted - inside)]
    surplus = {name for name in inside if re.match(r"flintmq/(tests|scripts|docs|distributions)/|(?!flintmq)", name)}
    found += [f"the wheel has {name}, which is not for users" for name in sorted(surplus)]
    needed = ("tests/conftest.py", "scripts/test", "docs/concepts.md", "CHANGELOG.md", "SECURITY.md", "constraints.txt")
    found += [f"the source archive has no {name}" for name in needed if f"{source}/{name}" not in packed]
    return found
