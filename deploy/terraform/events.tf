# Events: the stream of the event log feeds an SNS topic and an EventBridge bus, and a rule for each subscription of the
# app takes events from that bus. Buses of other accounts and regions are connected by rules and a policy.

variable "event_bus" {
  description = "Whether events are published to an EventBridge bus, which also delivers events to subscriptions of the app."
  type        = bool
  default     = false
}

variable "event_topic_arn" {
  description = "Topic for changes of signals, incidents, datasets and pipelines; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.event_topic_arn == "" || can(regex("^arn:aws[a-z-]*:sns:", var.event_topic_arn))
    error_message = "event_topic_arn: write an ARN that begins with arn:aws:sns:."
  }
}

variable "event_bus_senders" {
  description = "Accounts that may put events on the bus, as their ids: those whose buses forward to it."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for account in var.event_bus_senders : can(regex("^[0-9]{12}$", account))])
    error_message = "event_bus_senders: write account ids of 12 digits."
  }
}

variable "event_bus_forwards" {
  description = "ARNs of buses of other accounts or regions that get the events of this deployment, by a name of yours."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for arn in values(var.event_bus_forwards) : can(regex("^arn:aws[a-z-]*:events:", arn))])
    error_message = "event_bus_forwards: write ARNs that begin with arn:aws:events:."
  }
}

locals {
  event_needs = {
    "event-sink"  = var.event_bus || var.event_topic_arn != ""
    "bus-handler" = var.event_bus && var.app != ""
  }
  event_functions = {
    for name, each in jsondecode(file("${path.module}/event_functions.json")) : name => each if local.event_needs[name]
  }
  event_bus_names = var.event_bus ? toset(["events"]) : toset([])

  # The source of this deployment's own events. Two deployments that exchange events differ in name, account or region.
  event_source = "headgate.${var.name}.${local.account}.${var.region}"

  event_environment = {
    "event-sink" = {
      EVENT_BUS_NAME    = var.event_bus ? var.name : ""
      EVENT_SOURCE      = local.event_source
      EVENT_TOPIC_ARN   = var.event_topic_arn
      FAILED_EVENTS_URL = try(aws_sqs_queue.failed_events["events"].url, "")
    }
    "bus-handler" = { EVENT_SOURCE = local.event_source }
  }
  event_bus_arn = "arn:${local.partition}:events:${var.region}:${local.account}:event-bus/${var.name}"

  # Written by 'headgate aws package' beside the package, from the subscriptions of the app.
  bus_rules = local.event_needs["bus-handler"] ? try(local.package_description.bus_rules, {}) : {}
}

resource "aws_cloudwatch_event_bus" "events" {
  for_each = local.event_bus_names

  name = var.name
}

# One statement for each account. Within the account, the role of the rule that forwards decides.
resource "aws_cloudwatch_event_permission" "sender" {
  for_each = var.event_bus ? toset(var.event_bus_senders) : toset([])

  event_bus_name = aws_cloudwatch_event_bus.events["events"].name
  statement_id   = "sender-${each.key}"
  action         = "events:PutEvents"
  principal      = each.key
}

# Out: what a target refuses for good waits in a queue, for 'headgate aws redrive'.

resource "aws_sqs_queue" "failed_events" {
  for_each = local.event_needs["event-sink"] ? toset(["events"]) : toset([])

  name                              = "${var.name}-failed-events"
  visibility_timeout_seconds        = 6 * local.event_functions["event-sink"].timeout_seconds
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null
}

resource "aws_lambda_event_source_mapping" "events" {
  for_each = aws_sqs_queue.failed_events

  event_source_arn                   = aws_dynamodb_table.table["headgate-events"].stream_arn
  function_name                      = aws_lambda_alias.live["event-sink"].arn
  starting_position                  = "TRIM_HORIZON"
  batch_size                         = 100
  maximum_batching_window_in_seconds = 0
  bisect_batch_on_function_error     = true
  maximum_retry_attempts             = 1000
  maximum_record_age_in_seconds      = 64800
  function_response_types            = ["ReportBatchItemFailures"]

  filter_criteria {
    filter {
      pattern = jsonencode({ eventName = ["INSERT"] })
    }
  }

  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.failures["stream"].arn
    }
  }
}

data "aws_iam_policy_document" "event_sink" {
  for_each = aws_sqs_queue.failed_events

  statement {
    sid       = "EventStream"
    actions   = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
    resources = ["${local.table_arns["headgate-events"]}/stream/*"]
  }

  # Listing knows no narrower resource; the mapping of a stream asks for it.
  statement {
    sid       = "Streams"
    actions   = ["dynamodb:ListStreams"]
    resources = ["*"]
  }

  statement {
    sid       = "FailedEvents"
    actions   = ["sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage"]
    resources = [each.value.arn]
  }

  dynamic "statement" {
    for_each = local.event_bus_names
    content {
      sid       = "Bus"
      actions   = ["events:PutEvents"]
      resources = [local.event_bus_arn]
    }
  }

  dynamic "statement" {
    for_each = var.event_topic_arn == "" ? [] : [1]
    content {
      sid       = "Topic"
      actions   = ["sns:Publish"]
      resources = [var.event_topic_arn]
    }
  }
}

resource "aws_iam_role_policy" "event_sink" {
  for_each = data.aws_iam_policy_document.event_sink

  name   = "events"
  role   = aws_iam_role.function["event-sink"].id
  policy = each.value.json
}

# In: a rule for each subscription. No rule takes what this deployment has published itself.

resource "aws_cloudwatch_event_rule" "subscription" {
  for_each = local.bus_rules

  name           = "${var.name}-${each.key}"
  event_bus_name = aws_cloudwatch_event_bus.events["events"].name
  event_pattern  = jsonencode(merge(each.value, { source = [{ "anything-but" = [local.event_source] }] }))
}

resource "aws_cloudwatch_event_target" "subscription" {
  for_each = local.bus_rules

  rule           = aws_cloudwatch_event_rule.subscription[each.key].name
  event_bus_name = aws_cloudwatch_event_bus.events["events"].name
  arn            = aws_lambda_alias.live["bus-handler"].arn

  retry_policy {
    maximum_event_age_in_seconds = 86400
    maximum_retry_attempts       = 185
  }

  dead_letter_config {
    arn = aws_sqs_queue.failed_bus_events["events"].arn
  }
}

resource "aws_lambda_permission" "subscription" {
  for_each = local.bus_rules

  statement_id  = "subscription-${each.key}"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function["bus-handler"].function_name
  qualifier     = aws_lambda_alias.live["bus-handler"].name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.subscription[each.key].arn
}

# What the bus could not deliver: events as they were.
resource "aws_sqs_queue" "failed_bus_events" {
  for_each = local.event_needs["bus-handler"] ? toset(["events"]) : toset([])

  name                              = "${var.name}-failed-bus-events"
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null
}

data "aws_iam_policy_document" "failed_bus_events" {
  for_each = aws_sqs_queue.failed_bus_events

  statement {
    actions   = ["sqs:SendMessage"]
    resources = [each.value.arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }

    condition {
      test     = "ArnLike"
      variable = "aws:SourceArn"
      values   = ["arn:${local.partition}:events:${var.region}:${local.account}:rule/${var.name}/${var.name}-*"]
    }
  }
}

resource "aws_sqs_queue_policy" "failed_bus_events" {
  for_each = aws_sqs_queue.failed_bus_events

  queue_url = each.value.id
  policy    = data.aws_iam_policy_document.failed_bus_events[each.key].json
}

# What the function itself fails on is kept too.
resource "aws_lambda_function_event_invoke_config" "bus_handler" {
  for_each = aws_sqs_queue.failed_bus_events

  function_name                = aws_lambda_function.function["bus-handler"].function_name
  qualifier                    = aws_lambda_alias.live["bus-handler"].name
  maximum_event_age_in_seconds = 21600
  maximum_retry_attempts       = 2
}

# To other buses: only what this deployment has published, so that nothing comes back by a detour.

resource "aws_cloudwatch_event_rule" "forward" {
  for_each = var.event_bus ? var.event_bus_forwards : {}

  name           = "${var.name}-to-${each.key}"
  event_bus_name = aws_cloudwatch_event_bus.events["events"].name
  event_pattern  = jsonencode({ source = [local.event_source] })
}

resource "aws_cloudwatch_event_target" "forward" {
  for_each = aws_cloudwatch_event_rule.forward

  rule           = each.value.name
  event_bus_name = aws_cloudwatch_event_bus.events["events"].name
  arn            = var.event_bus_forwards[each.key]
  role_arn       = aws_iam_role.event_forward["events"].arn
}

data "aws_iam_policy_document" "event_forward" {
  for_each = var.event_bus && length(var.event_bus_forwards) > 0 ? toset(["events"]) : toset([])

  statement {
    actions   = ["events:PutEvents"]
    resources = values(var.event_bus_forwards)
  }
}

data "aws_iam_policy_document" "event_forward_assume" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "event_forward" {
  for_each = data.aws_iam_policy_document.event_forward

  name               = "${var.name}-event-forward"
  assume_role_policy = data.aws_iam_policy_document.event_forward_assume.json
}

resource "aws_iam_role_policy" "event_forward" {
  for_each = data.aws_iam_policy_document.event_forward

  name   = "forward"
  role   = aws_iam_role.event_forward[each.key].id
  policy = each.value.json
}

resource "aws_cloudwatch_metric_alarm" "failed_events" {
  for_each = merge(
    { for queue in values(aws_sqs_queue.failed_events) : "events" => queue.name },
    { for queue in values(aws_sqs_queue.failed_bus_events) : "bus-events" => queue.name },
  )

  alarm_name          = "${each.value}-letters"
  alarm_description   = "Events were refused and wait in ${each.value}."
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

output "event_bus_arn" {
  description = "The bus of events; empty if there is none."
  value       = var.event_bus ? local.event_bus_arn : ""
}
