"""Expressions: JSONPath, JSONata, intrinsic functions and choice rules, compiled to evaluators."""
