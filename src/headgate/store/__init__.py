"""Store: the port for all durable state, the table catalogue, and the SQLite and DynamoDB backends.

Domain code uses `port`, `catalogue`, `model` and `topics`. Only `headgate.bootstrap.store` names a backend.
"""
