"""How one report after the other becomes the table of GPUs.

`advance` folds a report in; `aged` takes the readings out of a table that has grown too old. A GPU
once seen is never forgotten, so that its loss stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .gpu import GpuLost, GpuRecord, GpuReport, GpuSample, GpuTable


def advance(table: GpuTable, report: GpuReport) -> GpuTable:
    """The table after one more report."""
    records = {_key(record): record for record in table.records}
    for sample in report.samples:
        records[_key(sample)] = _seen(_known(records, sample), sample, report.unix)
    read = {_key(sample) for sample in report.samples}
    lost = [_named(gone, table, read) for gone in report.lost]
    for gone in lost:
        records.setdefault(_key(gone), GpuRecord(gone.index, gone.uuid, gone.name))
    mourned = {_key(gone) for gone in lost}
    for key in records.keys() - read:
        records[key] = _missed(records[key])
        if report.ok and key not in mourned:
            record = records[key]
            lost.append(GpuLost(record.index, record.uuid, record.name, "missing"))
    # A number that was given to another board belongs to the one that is read under it now.
    owner = {gone.index: _key(gone) for gone in lost} | {sample.index: _key(sample) for sample in report.samples}
    for index, xid in report.xid_events:
        key = owner.get(index, f"index {index}")
        records[key] = _with_xid(records.get(key) or GpuRecord(index, "", ""), xid)
    ordered = tuple(sorted(records.values(), key=lambda record: (record.index, record.uuid)))
    return GpuTable(report.samples, report.at, report.ok, report.error, tuple(lost), ordered)


def aged(table: GpuTable, now: float, limit: float = 5.0) -> GpuTable:
    """The table without its readings when they are more than `limit` seconds old."""
    if now - table.at <= limit:
        return table
    error = table.error or f"no sample for {now - table.at:.0f} s"
    records = tuple(replace(record, up=False) for record in table.records)
    return replace(table, samples=(), ok=False, error=error, records=records)


def only(table: GpuTable, words: Sequence[str] | None) -> GpuTable:
    """The table of some GPUs, by number or (the begin of) UUID; None means all of them."""
    if words is None:
        return table

    def meant(gpu: GpuSample | GpuLost | GpuRecord) -> bool:
        return any(word == str(gpu.index) or (bool(gpu.uuid) and gpu.uuid.startswith(word)) for word in words)

    return replace(
        table,
        samples=tuple(filter(meant, table.samples)),
        lost=tuple(filter(meant, table.lost)),
        records=tuple(filter(meant, table.records)),
    )


def _key(gpu: GpuSample | GpuLost | GpuRecord) -> str:
    return gpu.uuid or f"index {gpu.index}"


def _known(records: dict[str, GpuRecord], sample: GpuSample) -> GpuRecord:
    """The GPU's record, also when it was only known by its number so far."""
    nameless = records.pop(f"index {sample.index}", None)
    return records.get(_key(sample)) or nameless or GpuRecord(sample.index, sample.uuid, sample.name)


def _named(gone: GpuLost, table: GpuTable, read: set[str]) -> GpuLost:
    """A helper that started after the loss does not know which board it was; we may."""
    for record in table.records:
        if not gone.uuid and record.index == gone.index and record.uuid and record.uuid not in read:
            return replace(gone, uuid=record.uuid, name=record.name)
    return gone


def _seen(record: GpuRecord, sample: GpuSample, unix: float) -> GpuRecord:
    samples = {**record.samples, "ok": record.samples["ok"] + 1}
    return GpuRecord(sample.index, sample.uuid, sample.name, True, samples, unix, record.xid_errors)


def _missed(record: GpuRecord) -> GpuRecord:
    return replace(record, up=False, samples={**record.samples, "failed": record.samples["failed"] + 1})


def _with_xid(record: GpuRecord, xid: int) -> GpuRecord:
    return replace(record, xid_errors={**record.xid_errors, xid: record.xid_errors.get(xid, 0) + 1})
