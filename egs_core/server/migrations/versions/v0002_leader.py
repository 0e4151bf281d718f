"""The row that says which of several servers is the active one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("place", sa.String, nullable=False),
        if_not_exists=True,  # SQLite keeps a table whose revision was not written down, as when a server was killed
    )
    op.execute("INSERT INTO leader SELECT 1, 0, 0, '', '' WHERE NOT EXISTS (SELECT 1 FROM leader)")
