"""All durable state: one port, a catalogue of tables, and the backends that keep it.

Domain code imports `port`, `tables`, `conditions` and `writes`. Only `headgate.bootstrap.store` names a backend.
"""
