"""Findings for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ...protocol.display import show_bytes, to_json
from ...protocol.escaping import escape
from .findings import KINDS, Finding, Findings
from .verify import Verified
from .verify_backup import VerifiedBackup


def as_json(verified: Verified, path: Path) -> Iterator[str]:
    """Yield JSON lines: each kept finding, then the summary."""
    yield from _findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "store": str(path),
            "broker": verified.broker,
            "stopped_in_order": verified.clean,
            "log_start": verified.log_start,
            "log_end": verified.log_end,
            "log_bytes": verified.log_bytes,
            "records": verified.records,
            "queues": verified.queues,
            "units": verified.units,
            "index_files": verified.index_files,
            "entries": verified.entries,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def backup_as_json(verified: VerifiedBackup, folder: Path) -> Iterator[str]:
    """Yield JSON lines for a backup."""
    manifest = verified.manifest
    yield from _findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "backup": str(folder),
            "source": manifest.source,
            "made_at": manifest.made_at,
            "version": manifest.version,
            "beside_a_broker": manifest.running,
            "log_start": manifest.log_begin,
            "log_end": manifest.log_end,
            "records": verified.records,
            "tables": len(manifest.tables),
            "bytes": verified.bytes,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def _findings_json(findings: Findings) -> Iterator[str]:
    for finding in findings:
        yield to_json(
            {
                "kind": finding.kind,
                "file": str(finding.path),
                "position": None if finding.position < 0 else finding.position,
                "physical_offset": None if finding.physical_offset < 0 else finding.physical_offset,
                "what": finding.text,
                "why": KINDS[finding.kind].why,
                "remedy": KINDS[finding.kind].remedy,
            }
        )


def backup_as_text(verified: VerifiedBackup, folder: Path, shown: int) -> Iterator[str]:
    """Yield the text report of a backup."""
    manifest = verified.manifest
    beside = "beside a running broker" if manifest.running else "of a stopped store"
    files = f"{len(manifest.log):,} file{'s' * (len(manifest.log) != 1)}"
    made = f"made {escape(manifest.made_at)} by FlintMQ {escape(manifest.version)}"
    yield f"backup   {escape(str(folder))}, {made} {beside}"
    yield f"source   {escape(manifest.source)}"
    yield (
        f"log      {verified.records:,} records in {files}, physical offsets {manifest.log_begin:,} to "
        f"{manifest.log_end:,}"
    )
    yield f"tables   {len(manifest.tables):,}"
    rate = verified.bytes / max(verified.seconds, 1e-3)
    yield f"checked  {show_bytes(verified.bytes)} in {verified.seconds:.2f} s, {show_bytes(rate)}/s"
    yield from _conclusion(
        verified.findings, folder, shown, "every file is as it was backed up, and every record of the log can be read"
    )


def as_text(verified: Verified, path: Path, shown: int) -> Iterator[str]:
    """Yield the text report of a store: a summary, then the findings by kind, ``shown`` of each."""
    stopped = "stopped in order" if verified.clean else "not stopped in order: the next start recovers it"
    log_files = f"{verified.log_files:,} file{'s' * (verified.log_files != 1)}"
    index_files = f"{verified.index_files:,} file{'s' * (verified.index_files != 1)}"
    rate = verified.log_bytes / max(verified.seconds, 1e-3)
    yield f"store    {path}, {verified.broker}'s, {stopped}"
    yield (
        f"log      {verified.records:,} records in {log_files}, physical offsets {verified.log_start:,} to "
        f"{verified.log_end:,}"
    )
    yield f"queues   {verified.units:,} messages in {verified.queues:,} queues"
    yield f"index    {verified.entries:,} entries in {index_files}"
    yield (
        f"checked  {show_bytes(verified.log_bytes)} of the log and all that belongs to it in {verified.seconds:.2f} s, "
        f"{show_bytes(rate)}/s"
    )
    yield from _conclusion(verified.findings, path, shown, "nothing is wrong")


def _conclusion(findings: Findings, path: Path, shown: int, sound: str) -> Iterator[str]:
    """Yield the notes and the findings, and in the last line their number, or ``sound`` if there are none."""
    for note in findings.notes:
        yield f"note     {escape(note)}"
    yield from findings_text(findings, path, shown)
    if findings.total:
        yield ""
        yield f"damaged  {findings.total:,} finding{'s' * (findings.total != 1)} of {len(findings.counts):,} kinds"
    else:
        yield f"sound    {sound}"


def findings_text(findings: Findings, store: Path, shown: int) -> Iterator[str]:
    """Yield the findings by kind, at most ``shown`` of each."""
    for kind, group in groupby(findings, key=lambda finding: finding.kind):
        count = findings.counts[kind]
        yield ""
        yield f"{KINDS[kind].title}: {count:,}"
        for finding, _ in zip(group, range(shown), strict=False):
            yield f"  {finding_line(finding, store)}"
        if count > shown:
            yield f"  … and {count - shown:,} more"
        yield f"  why it matters: {KINDS[kind].why}"
        yield f"  what helps: {KINDS[kind].remedy}"


def finding_line(finding: Finding, store: Path) -> str:
    """Return place and error of a finding on one line; the file is relative to the store."""
    path = finding.path.relative_to(store) if finding.path.is_relative_to(store) else finding.path
    where = [f"byte {finding.position:,}"] if finding.position >= 0 else []
    if finding.physical_offset >= 0:
        where.append(f"physical offset {finding.physical_offset:,}")
    return escape(f"{path}{', ' if where else ''}{', '.join(where)}: {finding.text}")
