"""Audit: a tamper-evident log of changes in hash chains, its verification, and encrypted fields."""
