# Workflows of an app: nothing of it is made unless var.app names one.
# Rows wake functions: streams of the tables tell the waker, and the waker tells the queues.

locals {
  # Activities that the app has invoked asynchronously, as 'headgate aws package' found them: each is a function of its
  # own, made after the one named "activity".
  activity_functions = var.app == "" ? {} : try(local.package_description.activity_functions, {})
  declared_functions = jsondecode(file("${path.module}/workflow_functions.json"))
  workflow_functions = merge(
    { for name, each in local.declared_functions : name => each if var.app != "" && !contains(["activity", "lost-activities"], name) },
    { for name in keys(local.activity_functions) : "activity-${name}" => local.declared_functions["activity"] },
    { for name, each in local.declared_functions : name => each if name == "lost-activities" && length(local.activity_functions) > 0 },
  )
  wake_filters = {
    for table, filters in jsondecode(file("${path.module}/wake_filters.json")) : table => filters if var.app != ""
  }

  # By name: what they call, with how many messages at once, and how often before a message is put aside.
  wake_queues = {
    for name, each in merge(
      {
        turns = { function = "turns", is_fifo = true, batch_size = 10, receives_max = 10 }
        later = { function = "waker", is_fifo = false, batch_size = 10, receives_max = 10 }
      },
      {
        for queue in toset(length(local.activity_functions) > 0 ? ["lost-activities"] : []) :
        queue => { function = "lost-activities", is_fifo = false, batch_size = 10, receives_max = 5 }
      },
      {
        for queue in var.task_queues :
        "activities-${queue}" => { function = "activities", is_fifo = false, batch_size = 1, receives_max = 5 }
      },
    ) : name => merge(each, { full_name = "${var.name}-${name}${each.is_fifo ? ".fifo" : ""}" }) if var.app != ""
  }
  wake_queue_arns = {
    for name, each in local.wake_queues :
    name => "arn:${local.partition}:sqs:${var.region}:${local.account}:${each.full_name}"
  }

  workflow_environment = {
    HEADGATE_APP        = var.app
    TURNS_QUEUE_URL     = try(aws_sqs_queue.wakes["turns"].url, "")
    LATER_QUEUE_URL     = try(aws_sqs_queue.wakes["later"].url, "")
    LATER_QUEUE_ARN     = try(local.wake_queue_arns["later"], "")
    ACTIVITY_QUEUE_URLS = jsonencode({ for queue in var.task_queues : queue => try(aws_sqs_queue.wakes["activities-${queue}"].url, "") })
    ACTIVITY_FUNCTION_ARNS = jsonencode({
      for name, each in local.activity_functions : each.activity => local.function_arns["activity-${name}"]
    })
  }
}

# A wake is a hint, and the sweep gives it again: a day is long. AWS recommends a visibility time-out of six times the
# time-out of the function; a claim that a killed activity held is found by its lease, long before. The time-out of
# 'turns' is short, because a turn whose function was killed holds up its execution for the visibility time-out.
resource "aws_sqs_queue" "wakes" {
  for_each = local.wake_queues

  name                              = each.value.full_name
  fifo_queue                        = each.value.is_fifo ? true : null
  deduplication_scope               = each.value.is_fifo ? "messageGroup" : null
  fifo_throughput_limit             = each.value.is_fifo ? "perMessageGroupId" : null
  visibility_timeout_seconds        = 6 * local.workflow_functions[each.value.function].timeout_seconds
  message_retention_seconds         = 86400
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.failed_wakes[each.key == "lost-activities" ? each.key : each.value.is_fifo ? "turns" : "wakes"].arn
    maxReceiveCount     = each.value.receives_max
  })
}

resource "aws_sqs_queue" "failed_wakes" {
  for_each = toset(var.app == "" ? [] : concat(["turns", "wakes"], length(local.activity_functions) > 0 ? ["lost-activities"] : []))

  name                              = "${var.name}-failed-${each.key}${each.key == "turns" ? ".fifo" : ""}"
  fifo_queue                        = each.key == "turns" ? true : null
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null
}

resource "aws_lambda_event_source_mapping" "wakes" {
  for_each = local.wake_queues

  event_source_arn        = aws_sqs_queue.wakes[each.key].arn
  function_name           = aws_lambda_alias.live[each.value.function].arn
  batch_size              = each.value.batch_size
  function_response_types = each.value.function == "waker" ? null : ["ReportBatchItemFailures"]
}

# What Lambda gives up on arrives in the queue 'lost-activities', and counts as a failed attempt.
resource "aws_lambda_function_event_invoke_config" "activity" {
  for_each = local.activity_functions

  function_name                = aws_lambda_function.function["activity-${each.key}"].function_name
  qualifier                    = aws_lambda_alias.live["activity-${each.key}"].name
  maximum_event_age_in_seconds = each.value.maximum_event_age_in_seconds
  maximum_retry_attempts       = each.value.maximum_retry_attempts

  destination_config {
    on_failure {
      destination = aws_sqs_queue.wakes["lost-activities"].arn
    }
  }

  lifecycle {
    precondition {
      condition     = contains(var.task_queues, "default")
      error_message = "task_queues: the activity ${each.value.activity} waits in the queue default; add it."
    }
  }
}

# Rows that ask for nothing do not wake the waker: filters are those of wake_filters.json.
resource "aws_lambda_event_source_mapping" "rows" {
  for_each = local.wake_filters

  event_source_arn                   = aws_dynamodb_table.table[each.key].stream_arn
  function_name                      = aws_lambda_alias.live["waker"].arn
  starting_position                  = "TRIM_HORIZON"
  batch_size                         = 100
  maximum_batching_window_in_seconds = 0
  parallelization_factor             = 4
  bisect_batch_on_function_error     = true
  maximum_retry_attempts             = 100
  maximum_record_age_in_seconds      = 21600

  filter_criteria {
    dynamic "filter" {
      for_each = each.value
      content {
        pattern = jsonencode(filter.value)
      }
    }
  }

  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.failures["stream"].arn
    }
  }
}

# The first sweep of a new package makes the subscriptions of the app known, and the limits of its workflows.
resource "aws_lambda_invocation" "sweep" {
  for_each = var.app == "" ? toset([]) : toset(["sweep"])

  function_name = aws_lambda_function.function[each.key].function_name
  qualifier     = aws_lambda_alias.live[each.key].name
  input         = jsonencode({})
  triggers      = { package = filesha256(var.package) }

  depends_on = [aws_dynamodb_table.table, aws_dynamodb_table.provisioned]
}

# What activities do in the world is granted by policies of their own.
resource "aws_iam_role_policy_attachment" "activities" {
  for_each = var.app == "" ? toset([]) : toset(var.activity_policy_arns)

  role       = aws_iam_role.function["activities"].name
  policy_arn = each.value
}

resource "aws_iam_role_policy_attachment" "activity" {
  for_each = {
    for pair in setproduct(keys(local.activity_functions), var.activity_policy_arns) : join(" ", pair) => pair
  }

  role       = aws_iam_role.function["activity-${each.value[0]}"].name
  policy_arn = each.value[1]
}
