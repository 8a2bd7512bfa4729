"""Jobs outside Headgate: what OpenLineage and dbt report of them, and of their runs."""
