"""What Alembic runs: on the connection, and inside of the transaction, of who opens the database."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
