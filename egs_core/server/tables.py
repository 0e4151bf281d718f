"""The tables of a site's database as this version reads them. How older ones become so: `migrations`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


class Text(sa.TypeDecorator[str]):
    """PostgreSQL takes no NUL in a text, and what a user writes may have one: a batch must not fail by it."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:  # noqa: ARG002  # SQLAlchemy's name
        return None if value is None else text(value)


def text(value: str) -> str:
    """What PostgreSQL takes."""
    return value.replace("\0", "\ufffd")


NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only INTEGER counts by itself in SQLite

TABLES = sa.MetaData()
META = sa.Table("meta", TABLES, sa.Column("name", Text, primary_key=True), sa.Column("value", sa.LargeBinary))
ENTRIES = sa.Table("entries", TABLES, sa.Column("number", NUMBER, primary_key=True), sa.Column("entry", sa.LargeBinary))
RUNS = sa.Table("runs", TABLES, sa.Column("number", NUMBER, primary_key=True), sa.Column("run", sa.LargeBinary))
TOKENS = sa.Table(  # `tokens`, of earlier versions, had but the token that each start writes
    "access_tokens",
    TABLES,
    sa.Column("id", Text, primary_key=True),
    sa.Column("digest", Text, unique=True),
    sa.Column("name", Text),
    sa.Column("role", Text),
    sa.Column("team", Text),
    sa.Column("created_at", sa.Float),
    sa.Column("created_by", Text),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)
LOG = sa.Table(
    "log",
    TABLES,
    sa.Column("number", NUMBER, primary_key=True),
    sa.Column("at", sa.Float),
    *(sa.Column(name, Text) for name in ("who", "role", "origin", "verb", "subject", "team", "text")),
)
LEADER = sa.Table(  # of one row; SQLite's has no use: a server has its folder for itself
    "leader",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("holder", Text, nullable=False),
    sa.Column("place", Text, nullable=False),
)
