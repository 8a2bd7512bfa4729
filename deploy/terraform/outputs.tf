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
  value       = { for name, queue in merge(aws_sqs_queue.failures, aws_sqs_queue.failed_wakes) : name => queue.id }
}

output "wake_queues" {
  description = "What calls the functions of workflows, by name."
  value       = { for name, queue in aws_sqs_queue.wakes : name => queue.id }
}

output "server_settings" {
  description = "What a server beside the functions is told, as variables of its environment."
  value = {
    HEADGATE_PIPELINES_STATE_MACHINE_ARN    = aws_sfn_state_machine.lifecycle.arn
    HEADGATE_PIPELINES_SCHEDULER_ROLE_ARN   = aws_iam_role.scheduler.arn
    HEADGATE_PIPELINES_SCHEDULER_GROUP_NAME = aws_scheduler_schedule_group.group.name
  }
}

output "alarm_topic_arn" {
  description = "The topic that alarms go to, if one was created."
  value       = one([for topic in aws_sns_topic.alarms : topic.arn])
}

output "cache_endpoint" {
  description = "Where the cache of the servers is, if there is one."
  value       = one([for cache in aws_elasticache_replication_group.cache : cache.primary_endpoint_address])
}

output "program_roles" {
  description = "Roles of programs that use the tables directly."
  value       = { for name, role in aws_iam_role.program : name => role.arn }
}
