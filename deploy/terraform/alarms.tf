locals {
  alarm_actions = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "errors" {
  for_each = local.functions

  alarm_name          = "${var.name}-${each.key}-errors"
  alarm_description   = "The function ${each.key} has failed; its log says why."
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  dimensions          = { FunctionName = aws_lambda_function.function[each.key].function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# Whoever is not called cannot tell of it: that is seen from outside.
resource "aws_cloudwatch_metric_alarm" "silence" {
  for_each = local.rules

  alarm_name          = "${var.name}-${each.key}-silence"
  alarm_description   = "The function ${each.key} has not been called for a quarter of an hour."
  namespace           = "AWS/Lambda"
  metric_name         = "Invocations"
  dimensions          = { FunctionName = aws_lambda_function.function[each.key].function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 3
  threshold           = 1
  comparison_operator = "LessThanThreshold"
  treat_missing_data  = "breaching"
  alarm_actions       = local.alarm_actions
}

moved {
  from = aws_cloudwatch_metric_alarm.iterator_age
  to   = aws_cloudwatch_metric_alarm.iterator_age["stream-router"]
}

resource "aws_cloudwatch_metric_alarm" "iterator_age" {
  for_each = toset(concat(["stream-router"], var.app == "" ? [] : ["waker"]))

  alarm_name          = "${var.name}-${each.key}-behind"
  alarm_description   = "Changed rows wait for more than five minutes before ${each.key} hears of them."
  namespace           = "AWS/Lambda"
  metric_name         = "IteratorAge"
  dimensions          = { FunctionName = aws_lambda_function.function[each.key].function_name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 300000
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  for_each = merge(aws_sqs_queue.failures, aws_sqs_queue.failed_wakes)

  alarm_name          = "${each.value.name}-letters"
  alarm_description   = "Something was given up, and waits in ${each.value.name}."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.value.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "executions" {
  for_each = toset(["ExecutionsFailed", "ExecutionsTimedOut", "ExecutionsAborted"])

  alarm_name          = "${var.name}-lifecycle-${each.key}"
  alarm_description   = "An execution of the lifecycle did not come to its end."
  namespace           = "AWS/States"
  metric_name         = each.key
  dimensions          = { StateMachineArn = aws_sfn_state_machine.lifecycle.arn }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}
