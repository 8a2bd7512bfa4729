"""Airflow operators, sensors and run reports for Headgate."""

__version__ = "0.1.0"
