"""The audit log: entries in their order, found by what they say, and never changed."""

from __future__ import annotations

from agent_rft.serve.stores.audit_log import HOUR_S, MAX_FULL_ENTRIES, AuditEntry, AuditLog
from agent_rft.serve.stores.database import Database


def test_the_latest_entries_come_first_and_filters_are_combined(any_database: Database) -> None:
    now = [1.5]
    log = AuditLog(any_database, lambda: now[0])
    log.append("key-1", "file.create", "file-1", request_id="req_1", status=200)
    now[0] = 2.5
    log.append("key-2", "file.delete", "file-1", request_id="req_2", outcome="refused", status=403)
    log.append("operator", "key.revoke", "key-2")
    second = AuditEntry(2.5, "key-2", "file.delete", "file-1", "req_2", "refused", 403)
    third = AuditEntry(2.5, "operator", "key.revoke", "key-2", None, "done", None)
    first = AuditEntry(1.5, "key-1", "file.create", "file-1", "req_1", "done", 200)
    assert log.list(10) == [third, second, first] and log.list(2) == [third, second]
    assert log.list(10, object="file-1") == [second, first]
    assert log.list(10, object="file-1", outcome="done") == [first]
    assert log.list(10, actor="operator") == log.list(10, action="key.revoke") == [third]
    assert log.list(10, actor="nobody") == []


def test_after_the_first_refusals_of_an_hour_the_others_are_only_counted(any_database: Database) -> None:
    now = [HOUR_S + 0.5]
    log = AuditLog(any_database, lambda: now[0])

    def refuse(actor: str, action: str, times: int) -> None:
        for number in range(times):
            log.append(actor, action, f"id-{number}", request_id="req", outcome="refused", status=403, countable=True)

    refuse("key-1", "file.delete", MAX_FULL_ENTRIES + 5)
    refuse("key-1", "job.cancel", 3)
    cancelled, deleted, *full = log.list(100, actor="key-1")
    assert deleted == AuditEntry(now[0], "key-1", "file.delete", None, None, "refused", 403, None, 5)
    assert cancelled == AuditEntry(now[0], "key-1", "job.cancel", None, None, "refused", 403, None, 3)
    assert [entry.object for entry in full] == [f"id-{number}" for number in reversed(range(MAX_FULL_ENTRIES))]
    assert {(entry.num_requests, entry.request_id) for entry in full} == {(1, "req")}
    refuse("key-2", "file.delete", 1)
    log.append("key-1", "file.delete", "x", outcome="failed", status=404, countable=True)
    log.append("key-1", "file.delete", "y")
    assert [entry.object for entry in log.list(3)] == ["y", "x", "id-0"], "keys and outcomes have their own limits"
    now[0] += HOUR_S
    refuse("key-1", "file.delete", 1)
    assert log.list(1)[0].object == "id-0", "the next hour begins in full"
    log.append("key-1", "file.create", client_request_id="mine-1")
    assert log.list(1)[0].client_request_id == "mine-1"


def test_what_has_changed_something_is_never_only_counted(any_database: Database) -> None:
    log = AuditLog(any_database, lambda: 1.0)
    for _ in range(3 * MAX_FULL_ENTRIES):
        log.append("key-1", "file.delete", "file-1", status=200)
    assert {entry.num_requests for entry in log.list(100)} == {1} and len(log.list(100)) == 3 * MAX_FULL_ENTRIES


def test_the_log_can_only_be_appended_to_and_read() -> None:
    assert {name for name in vars(AuditLog) if not name.startswith("_")} == {"append", "list"}
