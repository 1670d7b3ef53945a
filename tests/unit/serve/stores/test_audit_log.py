"""The audit log: entries in their order, found by what they say, and never changed."""

from __future__ import annotations

from agent_rft.serve.stores.audit_log import AuditEntry, AuditLog
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


def test_the_log_can_only_be_appended_to_and_read() -> None:
    assert {name for name in vars(AuditLog) if not name.startswith("_")} == {"append", "list"}
