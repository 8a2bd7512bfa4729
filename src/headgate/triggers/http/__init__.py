"""HTTP: triggers for Airflow, Databricks and any HTTP endpoint."""
