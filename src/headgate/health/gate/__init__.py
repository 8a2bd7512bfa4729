"""Gate: decides whether a dataset may be read or published now, with overrides and feature flags."""
