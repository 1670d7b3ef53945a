"""Owner-only files, and request counts and clients' request ids in the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"
branch_labels = None
depends_on = None

JOBS = sa.table("jobs", sa.column("readiness", sa.JSON(none_as_null=True)), sa.column("result_files", sa.JSON()))
FILES = sa.table("files", sa.column("id", sa.String()), sa.column("owner_only", sa.Boolean()))


def upgrade() -> None:
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.add_column(sa.Column("client_request_id", sa.String(length=128), nullable=True))
        batch_op.add_column(sa.Column("num_requests", sa.Integer(), server_default=sa.text("1"), nullable=False))
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.add_column(sa.Column("owner_only", sa.Boolean(), server_default=sa.false(), nullable=False))
    connection = op.get_bind()
    readiness_checks = sa.select(JOBS.c.result_files).where(JOBS.c.readiness.is_not(None))
    for (result_files,) in connection.execute(readiness_checks).all():
        connection.execute(sa.update(FILES).where(FILES.c.id.in_(result_files)).values(owner_only=True))
