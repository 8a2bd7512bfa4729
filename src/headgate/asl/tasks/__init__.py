"""Tasks: the resources a Task can call, and the AWS service actions that Headgate implements."""
