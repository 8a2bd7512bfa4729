# Alarms of functions, queues, schedules, tables and machines. Those of custom metrics are made where they are written.

locals {
  alarm_actions = concat(
    var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn],
    [for topic in aws_sns_topic.alarms : topic.arn],
  )

  # Queues that nothing reads: a message in one asks for a decision.
  dead_letter_queues = merge(
    { for name in keys(aws_sqs_queue.failures) : name => "${var.name}-failed-${name}" },
    { for name, queue in aws_sqs_queue.failed_wakes : name => queue.name },
  )

  # Queues that functions read, with the seconds after which the oldest message is late. Long timers wait in none.
  read_queues = merge(
    { for name, each in local.wake_queues : name => { full_name = each.full_name, late_seconds = 900 } if name != "later" },
    { for name, full_name in local.chunk_queue_names : name => { full_name = full_name, late_seconds = 3600 } },
  )
}

resource "aws_sns_topic" "alarms" {
  for_each = var.create_alarm_topic ? toset(["alarms"]) : toset([])

  name              = "${var.name}-alarms"
  kms_master_key_id = var.create_keys ? aws_kms_key.key["topics"].arn : null
}

# Functions.

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

resource "aws_cloudwatch_metric_alarm" "throttles" {
  for_each = local.functions

  alarm_name          = "${var.name}-${each.key}-throttles"
  alarm_description   = "The function ${each.key} was not run for a quarter of an hour at a time: the account's concurrency is used up."
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  dimensions          = { FunctionName = aws_lambda_function.function[each.key].function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 3
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# The sweep invokes the function again for what did not reach its failure destination.
resource "aws_cloudwatch_metric_alarm" "destination" {
  for_each = local.activity_functions

  alarm_name          = "${var.name}-activity-${each.key}-destination"
  alarm_description   = "Lambda could not send failed invocations of activity-${each.key} to their queue."
  namespace           = "AWS/Lambda"
  metric_name         = "DestinationDeliveryFailures"
  dimensions          = { FunctionName = aws_lambda_function.function["activity-${each.key}"].function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# A function that is not called, is throttled, fails or hangs completes nothing: its own log says nothing of the first.
resource "aws_cloudwatch_metric_alarm" "silence" {
  for_each = local.rules

  alarm_name          = "${var.name}-${each.key}-silence"
  alarm_description   = "The function ${each.key} has not completed for a quarter of an hour."
  namespace           = "Headgate/Functions"
  metric_name         = "function.completed"
  dimensions          = { function = aws_lambda_function.function[each.key].function_name }
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
  alarm_description   = "Changed rows wait for more than five minutes before ${each.key} reads them."
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

resource "aws_cloudwatch_metric_alarm" "http" {
  for_each = local.http_apis

  alarm_name          = "${var.name}-${each.key}-5xx"
  alarm_description   = "Callers of ${each.key} get server errors."
  namespace           = "AWS/ApiGateway"
  metric_name         = "5xx"
  dimensions          = { ApiId = aws_apigatewayv2_api.http[each.key].id }
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = 3
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# Queues.

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  for_each = local.dead_letter_queues

  alarm_name          = "${each.value}-letters"
  alarm_description   = "Deliveries were given up, and wait in ${each.value}."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.value }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "queue_age" {
  for_each = local.read_queues

  alarm_name          = "${each.value.full_name}-late"
  alarm_description   = "The oldest message of ${each.value.full_name} waits for more than ${each.value.late_seconds / 60} minutes."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = each.value.full_name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = each.value.late_seconds
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# Rules and one-shot schedules.

resource "aws_cloudwatch_metric_alarm" "rules" {
  for_each = local.rules

  alarm_name          = "${var.name}-${each.key}-rule"
  alarm_description   = "EventBridge could not call the function ${each.key}."
  namespace           = "AWS/Events"
  metric_name         = "FailedInvocations"
  dimensions          = { RuleName = "${var.name}-${each.key}" }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "schedules" {
  for_each = toset(["InvocationDroppedCount", "InvocationsFailedToBeSentToDeadLetterCount"])

  alarm_name          = "${var.name}-schedules-${each.key}"
  alarm_description   = "A one-shot schedule (an SLA, a later start, a long timer) did not reach what it calls."
  namespace           = "AWS/Scheduler"
  metric_name         = each.key
  dimensions          = { ScheduleGroup = var.name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# Tables. Requests that DynamoDB throttles are tried again: only many in a row need more capacity.

resource "aws_cloudwatch_metric_alarm" "table_throttles" {
  for_each = {
    for pair in setproduct(keys(local.tables), ["ReadThrottleEvents", "WriteThrottleEvents"]) :
    "${pair[0]}-${pair[1]}" => { table = pair[0], metric = pair[1] } if var.table_alarms
  }

  alarm_name          = "${var.table_prefix}${each.key}"
  alarm_description   = "DynamoDB throttles requests of ${each.value.table}: a hot key, or too little capacity."
  namespace           = "AWS/DynamoDB"
  metric_name         = each.value.metric
  dimensions          = { TableName = "${var.table_prefix}${each.value.table}" }
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = 3
  threshold           = 100
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# The lifecycle.

resource "aws_cloudwatch_metric_alarm" "executions" {
  for_each = toset(["ExecutionsFailed", "ExecutionsTimedOut", "ExecutionsAborted", "ExecutionThrottled"])

  alarm_name          = "${var.name}-lifecycle-${each.key}"
  alarm_description   = "An execution of the lifecycle did not come to its end, or was held up by a quota."
  namespace           = "AWS/States"
  metric_name         = each.key
  dimensions          = { StateMachineArn = local.machine_arn }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# The state store, by what functions write to their logs.

locals {
  state_store_alarms = {
    HighThrottling = {
      metric = "dynamodb.throttle_count", dimensions = {}, statistic = "Sum", percentile = null
      period = 60, periods = 3, threshold = 100, comparison = "GreaterThanThreshold"
      about  = "DynamoDB throttles more than a hundred requests a minute."
    }
    HighLatency = {
      metric     = "dynamodb.read_latency", dimensions = { table = "observability-signal-state" }, statistic = null
      percentile = "p99", period = 60, periods = 5, threshold = 50, comparison = "GreaterThanThreshold"
      about      = "One read of signals in a hundred takes more than 50 ms."
    }
    HighErrorRate = {
      metric = "api.request_count", dimensions = { status_code = "5xx" }, statistic = "Sum", percentile = null
      period = 60, periods = 3, threshold = 1, comparison = "GreaterThanThreshold"
      about  = "The API answers with server errors."
    }
    LowCacheHitRate = {
      metric = "cache.hit_rate", dimensions = { cache_layer = "l1" }, statistic = "Average", percentile = null
      period = 300, periods = 3, threshold = 50, comparison = "LessThanThreshold"
      about  = "The cache answers less than half of the reads."
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "state_store" {
  for_each = { for name, each in local.state_store_alarms : name => each if var.custom_metrics }

  alarm_name          = "${var.name}-StateStore-${each.key}"
  alarm_description   = each.value.about
  namespace           = "Observability/StateStore"
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  extended_statistic  = each.value.percentile
  period              = each.value.period
  evaluation_periods  = each.value.periods
  threshold           = each.value.threshold
  comparison_operator = each.value.comparison
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}
