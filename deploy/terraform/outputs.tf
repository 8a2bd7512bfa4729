output "state_machine_arn" {
  description = "The lifecycle."
  value       = aws_sfn_state_machine.lifecycle.arn
}

output "pipelines_table" {
  description = "Where rows of sensors and markers are written."
  value       = aws_dynamodb_table.table["headgate-pipelines"].name
}

output "function_names" {
  description = "The functions, by what they are for."
  value       = { for name, function in aws_lambda_function.function : name => function.function_name }
}

output "failure_queues" {
  description = "Where what was given up waits to be looked at."
  value       = { for name, queue in aws_sqs_queue.failures : name => queue.id }
}
