"""Formats: converts definitions of two older formats to ours."""
