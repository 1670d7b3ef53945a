"""Errors of jobs and their events no longer quote the output of a process; what an error quoted is for admins."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

QUOTING = ("driver_lost", "internal_error", "validation_failed")
"""The codes of errors whose message was the end of an output."""
BEGINNINGS = (
    "The job failed: ",
    "the job's driver was lost and is being replaced",
    "the cluster has not started the driver yet",
)
"""How the events begin that ended in such a message."""
jobs = sa.table("jobs", sa.column("id"), sa.column("error", sa.JSON), sa.column("last_words"))
events = sa.table("job_events", *map(sa.column, ("number", "job_id", "message")), sa.column("data", sa.JSON))


def upgrade() -> None:
    connection = op.get_bind()
    quoting = []
    for id, error in connection.execute(sa.select(jobs.c.id, jobs.c.error)).all():
        if error is None or error["code"] not in QUOTING or "log" in error:
            continue
        quoting.append(id)
        message = f"{error['code']}; an admin of the server sees more with `agent-rft jobs log {id}`"
        told = error | {"message": message, "log": error["message"]}
        connection.execute(sa.update(jobs).where(jobs.c.id == id).values(error=told))
    connection.execute(sa.update(jobs).values(last_words=None))
    failed, *others = BEGINNINGS
    for beginning in others:
        mine = events.c.message.startswith(f"{beginning}", autoescape=True)
        connection.execute(sa.update(events).where(mine).values(message=beginning))
    for id in quoting:
        mine = sa.and_(events.c.job_id == id, events.c.message.startswith(failed, autoescape=True))
        connection.execute(sa.update(events).where(mine).values(message="The job failed"))
    saved = sa.select(events.c.number, events.c.data).where(events.c.message.startswith("checkpoint step-"))
    for number, data in connection.execute(saved).all():
        if data is not None and "path" in data:
            shown = {name: value for name, value in data.items() if name != "path"}
            connection.execute(sa.update(events).where(events.c.number == number).values(data=shown))


def downgrade() -> None:
    """The errors stay as they are: a version before reads them too, without `log`."""
    connection = op.get_bind()
    for id, error in connection.execute(sa.select(jobs.c.id, jobs.c.error)).all():
        if error is not None and "log" in error:
            kept = {name: value for name, value in error.items() if name != "log"}
            connection.execute(sa.update(jobs).where(jobs.c.id == id).values(error=kept))
