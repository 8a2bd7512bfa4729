"""Serverless workers: advances executions and runs activities inside function invocations, woken by queue messages."""
