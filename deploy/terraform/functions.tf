# What each function is, may read, write and call: functions.json, and workflow_functions.json where there is an app.
# The tests hold it against what the code does.

locals {
  functions = merge(jsondecode(file("${path.module}/functions.json")), local.workflow_functions, local.fanout_functions, local.http_functions, local.event_functions)
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition

  # Named and not referred to: functions know the machine, and the machine knows them.
  function_arns = {
    for name in keys(local.functions) :
    name => "arn:${local.partition}:lambda:${var.region}:${local.account}:function:${var.name}-${name}:live"
  }
  machine_arn = "arn:${local.partition}:states:${var.region}:${local.account}:stateMachine:${var.name}-lifecycle"

  environment = merge(
    {
      HEADGATE_STORE_TABLE_PREFIX = var.table_prefix
      HEADGATE_STORE_BLOB_BUCKET  = aws_s3_bucket.bucket.id
      HEADGATE_STORE_BLOB_PREFIX  = "blobs/"
      STATE_MACHINE_ARN           = local.machine_arn
      SLA_MONITOR_ARN             = local.function_arns["sla-monitor"]
      SCHEDULER_ROLE_ARN          = aws_iam_role.scheduler.arn
      SCHEDULER_GROUP_NAME        = aws_scheduler_schedule_group.group.name
      SCHEDULE_FAILURES_ARN       = aws_sqs_queue.failures["schedules"].arn
    },
    var.lifecycle_topic_arn == "" ? {} : { LIFECYCLE_TOPIC_ARN = var.lifecycle_topic_arn },
    var.keys_secret_arn == "" ? {} : { KEYS_SECRET_ARN = var.keys_secret_arn },
    var.custom_metrics ? { CUSTOM_METRICS = "on" } : {},
    local.fanout_environment,
    var.settings,
  )
}

# What the package was built for: headgate aws package writes it beside the package.
locals {
  package_description = try(jsondecode(file("${var.package}.json")), { architecture = "", python = "", sha256 = "" })
}

# The name has the hash of the package: a package is never replaced, only followed by another.
resource "aws_s3_object" "package" {
  bucket = aws_s3_bucket_versioning.bucket.bucket
  key    = "packages/${filesha256(var.package)}.zip"
  source = var.package

  lifecycle {
    precondition {
      condition     = local.package_description.sha256 == filesha256(var.package)
      error_message = "package: ${var.package}.json does not describe it; build both with: headgate aws package"
    }

    precondition {
      condition     = contains(["", var.architecture], local.package_description.architecture)
      error_message = "architecture: the package was built for ${local.package_description.architecture}, not for ${var.architecture}."
    }

    precondition {
      condition     = contains(["", trimprefix(var.runtime, "python")], local.package_description.python) || var.runtime == "provided.al2023"
      error_message = "runtime: the package was built for python${local.package_description.python}, not for ${var.runtime}."
    }
  }
}

# EventBridge puts events that it could not deliver into the queue of failed invocations.
data "aws_iam_policy_document" "failures" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.failures["invocations"].arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.rule : rule.arn]
    }
  }
}

resource "aws_sqs_queue_policy" "failures" {
  queue_url = aws_sqs_queue.failures["invocations"].id
  policy    = data.aws_iam_policy_document.failures.json
}

resource "aws_cloudwatch_log_group" "function" {
  for_each = local.functions

  name              = "/aws/lambda/${var.name}-${each.key}"
  retention_in_days = var.log_retention_days
  kms_key_id        = local.is_keyed ? local.key_arn : null
}

resource "aws_lambda_function" "function" {
  for_each = local.functions

  function_name                  = "${var.name}-${each.key}"
  role                           = aws_iam_role.function[each.key].arn
  runtime                        = var.runtime
  architectures                  = [var.architecture]
  handler                        = each.value.handler
  s3_bucket                      = aws_s3_object.package.bucket
  s3_key                         = aws_s3_object.package.key
  source_code_hash               = filebase64sha256(var.package)
  timeout                        = each.value.timeout_seconds
  memory_size                    = each.value.memory_mb
  reserved_concurrent_executions = var.reserve_concurrency ? each.value.reserved_concurrency : -1
  publish                        = true

  environment {
    variables = merge(
      local.environment,
      contains(keys(local.workflow_functions), each.key) ? local.workflow_environment : {},
      contains(keys(local.fanout_functions), each.key) ? local.fanout_function_environment : {},
      try(local.http_environment[each.key], {}),
      try(local.event_environment[each.key], {}),
    )
  }

  # Activities have a failure destination of their own.
  dynamic "dead_letter_config" {
    for_each = startswith(each.key, "activity-") ? [] : [1]
    content {
      target_arn = aws_sqs_queue.failures["invocations"].arn
    }
  }

  tracing_config {
    mode = var.tracing ? "Active" : "PassThrough"
  }

  depends_on = [aws_cloudwatch_log_group.function, aws_iam_role_policy.function]
}

# A new version is opened before anything calls it: settings, alert channels and app are read, and the store is reached.
# If that fails, the apply ends here, and the aliases stay on the versions before.
resource "aws_lambda_invocation" "check" {
  for_each = toset(concat(["definitions"], var.app == "" ? [] : ["sweep"]))

  function_name = aws_lambda_function.function[each.key].function_name
  qualifier     = aws_lambda_function.function[each.key].version
  input         = jsonencode({ check = true })
  triggers      = { version = aws_lambda_function.function[each.key].version }

  depends_on = [aws_dynamodb_table.table, aws_dynamodb_table.provisioned, aws_iam_role_policy.function]
}

# What calls a function calls this alias.
resource "aws_lambda_alias" "live" {
  for_each = local.functions

  name             = "live"
  function_name    = aws_lambda_function.function[each.key].function_name
  function_version = aws_lambda_function.function[each.key].version

  depends_on = [aws_lambda_invocation.check]
}

# A waker that sends a message to the queue that invokes it is meant to: a wake-up waits there until it is due.
resource "aws_lambda_function_recursion_config" "function" {
  for_each = toset([
    for name in keys(local.functions) : name
    if contains(["waker", "turns", "activities", "lost-activities"], name) || startswith(name, "activity-")
  ])

  function_name  = aws_lambda_function.function[each.key].function_name
  recursive_loop = "Allow"
}

# The definitions in the package are applied whenever it has changed.
resource "aws_lambda_invocation" "definitions" {
  function_name = aws_lambda_function.function["definitions"].function_name
  qualifier     = aws_lambda_alias.live["definitions"].name
  input         = jsonencode({})
  triggers      = { package = filesha256(var.package) }

  depends_on = [aws_dynamodb_table.table, aws_dynamodb_table.provisioned, aws_sfn_state_machine.lifecycle]
}

resource "aws_sqs_queue" "failures" {
  for_each = toset(["invocations", "schedules", "stream"])

  name                              = "${var.name}-failed-${each.key}"
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null
}

# Rows that ask for nothing do not wake the router: filters are those of stream_filters.json.
resource "aws_lambda_event_source_mapping" "router" {
  event_source_arn                   = aws_dynamodb_table.table["headgate-pipelines"].stream_arn
  function_name                      = aws_lambda_alias.live["stream-router"].arn
  starting_position                  = "TRIM_HORIZON"
  batch_size                         = 100
  maximum_batching_window_in_seconds = 0
  parallelization_factor             = 2
  bisect_batch_on_function_error     = true
  maximum_retry_attempts             = 10
  maximum_record_age_in_seconds      = 21600
  function_response_types            = ["ReportBatchItemFailures"]

  dynamic "filter_criteria" {
    for_each = [jsondecode(file("${path.module}/stream_filters.json"))]
    content {
      dynamic "filter" {
        for_each = filter_criteria.value
        content {
          pattern = jsonencode(filter.value)
        }
      }
    }
  }

  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.failures["stream"].arn
    }
  }
}

# What happens by the clock.

locals {
  rules = merge(
    { watchdog = var.watchdog_schedule, clockwork = var.clockwork_schedule },
    var.app == "" ? {} : { sweep = var.sweep_schedule },
    var.fanouts ? { fanout-sweep = var.sweep_schedule } : {},
    var.api ? { health-sweep = var.sweep_schedule } : {},
  )
}

resource "aws_cloudwatch_event_rule" "rule" {
  for_each = local.rules

  name                = "${var.name}-${each.key}"
  schedule_expression = each.value
}

resource "aws_cloudwatch_event_target" "rule" {
  for_each = local.rules

  rule = aws_cloudwatch_event_rule.rule[each.key].name
  arn  = aws_lambda_alias.live[each.key].arn

  dead_letter_config {
    arn = aws_sqs_queue.failures["invocations"].arn
  }
}

resource "aws_lambda_permission" "rule" {
  for_each = local.rules

  statement_id  = "rule"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function[each.key].function_name
  qualifier     = aws_lambda_alias.live[each.key].name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.rule[each.key].arn
}

# One that comes late is of no use: the next one is on its way.
resource "aws_lambda_function_event_invoke_config" "rule" {
  for_each = local.rules

  function_name                = aws_lambda_function.function[each.key].function_name
  qualifier                    = aws_lambda_alias.live[each.key].name
  maximum_event_age_in_seconds = 300
  maximum_retry_attempts       = 1
}

# One-shot schedules of SLAs, of starts that are to come later, and of wakes that no queue can keep for so long.
resource "aws_scheduler_schedule_group" "group" {
  name = var.name
}
