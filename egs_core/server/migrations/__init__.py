"""How a site's database gets its tables, and how an older one becomes one of today (Alembic)."""
