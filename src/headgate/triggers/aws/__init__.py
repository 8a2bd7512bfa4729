"""AWS: triggers for Glue, EMR, EMR Serverless, Step Functions and Lambda."""
