"""The tables of a site. A database from before there were revisions has them, or some of them: it is taken over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "meta",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.LargeBinary),
        if_not_exists=True,
    )
    op.create_table(
        "entries",
        sa.Column("number", number, primary_key=True),
        sa.Column("entry", sa.LargeBinary),
        if_not_exists=True,
    )
    op.create_table(
        "runs",
        sa.Column("number", number, primary_key=True),
        sa.Column("run", sa.LargeBinary),
        if_not_exists=True,
    )
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("digest", sa.String, unique=True),
        sa.Column("name", sa.String),
        sa.Column("role", sa.String),
        sa.Column("team", sa.String),
        sa.Column("created_at", sa.Float),
        sa.Column("created_by", sa.String),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        if_not_exists=True,
    )
    op.create_table(
        "log",
        sa.Column("number", number, primary_key=True),
        sa.Column("at", sa.Float),
        *(sa.Column(name, sa.String) for name in ("who", "role", "origin", "verb", "subject", "team", "text")),
        if_not_exists=True,
    )
