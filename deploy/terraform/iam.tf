# Each function has a role of its own, which may do what functions.json says, and nothing else.

data "aws_iam_policy_document" "assume" {
  for_each = toset(["lambda", "states", "scheduler"])

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${each.key}.amazonaws.com"]
    }
  }
}

locals {
  execution_arns = "${replace(local.machine_arn, ":stateMachine:", ":execution:")}:*"
  schedule_arns  = "arn:${local.partition}:scheduler:${var.region}:${local.account}:schedule/${var.name}/*"
  topic_arns     = concat(var.alert_topic_arns, var.lifecycle_topic_arn == "" ? [] : [var.lifecycle_topic_arn])

  # What a call of functions.json is made on.
  call_resources = {
    "lambda:InvokeFunction"    = [for name in keys(local.activity_functions) : local.function_arns["activity-${name}"]]
    "states:StartExecution"    = [local.machine_arn]
    "states:SendTaskSuccess"   = [local.machine_arn]
    "states:DescribeExecution" = [local.execution_arns]
    "scheduler:CreateSchedule" = [local.schedule_arns]
    "scheduler:DeleteSchedule" = [local.schedule_arns]
    "sns:Publish"              = local.topic_arns
    "sqs:SendMessage"          = values(local.wake_queue_arns)
    # Turns that were not taken are delivered again soon.
    "sqs:ChangeMessageVisibility" = [for name, arn in local.wake_queue_arns : arn if name == "turns"]
  }

  # What starting, asking after and ending a job takes, by what it is done to. Empty lists give nothing.
  job_grants = {
    lambda = { actions = ["lambda:InvokeFunction"], resources = var.lambda_job_arns }
    step_functions = {
      actions   = ["states:StartExecution"]
      resources = var.step_function_job_arns
    }
    executions = {
      actions   = ["states:DescribeExecution", "states:StopExecution"]
      resources = [for arn in var.step_function_job_arns : "${replace(arn, ":stateMachine:", ":execution:")}:*"]
    }
    glue = {
      actions   = ["glue:StartJobRun", "glue:GetJobRun", "glue:GetJobRuns", "glue:BatchStopJobRun"]
      resources = var.glue_job_arns
    }
    glue_logs = {
      actions   = ["logs:FilterLogEvents"]
      resources = length(var.glue_job_arns) == 0 ? [] : ["arn:${local.partition}:logs:${var.region}:${local.account}:log-group:/aws-glue/*"]
    }
    emr = {
      actions   = ["elasticmapreduce:AddJobFlowSteps", "elasticmapreduce:DescribeStep", "elasticmapreduce:ListSteps", "elasticmapreduce:CancelSteps"]
      resources = var.emr_cluster_arns
    }
    emr_serverless = {
      actions   = ["emr-serverless:StartJobRun", "emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"]
      resources = flatten([for arn in var.emr_serverless_application_arns : [arn, "${arn}/jobruns/*"]])
    }
    roles = { actions = ["iam:PassRole"], resources = var.job_role_arns }
  }
}

data "aws_iam_policy_document" "function" {
  for_each = local.functions

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.function[each.key].arn}:*"]
  }

  # A statement without resources is malformed.
  dynamic "statement" {
    for_each = length(each.value.reads) > 0 ? [1] : []
    content {
      sid     = "Read"
      actions = ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:ConditionCheckItem"]
      resources = flatten([
        for table in each.value.reads : [local.table_arns[table], "${local.table_arns[table]}/index/*"]
      ])
    }
  }

  dynamic "statement" {
    for_each = length(each.value.writes) > 0 ? [1] : []
    content {
      sid = "Write"
      actions = [
        "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:BatchWriteItem",
        "dynamodb:ConditionCheckItem",
      ]
      resources = [for table in each.value.writes : local.table_arns[table]]
    }
  }

  statement {
    sid       = "Payloads"
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = ["${aws_s3_bucket.bucket.arn}/blobs/*"]
  }

  statement {
    sid       = "Failures"
    actions   = ["sqs:SendMessage"]
    resources = [for queue in aws_sqs_queue.failures : queue.arn]
  }

  dynamic "statement" {
    for_each = each.value.reads_stream ? [1] : []
    content {
      sid       = "Stream"
      actions   = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
      resources = ["${local.table_arns["headgate-pipelines"]}/stream/*"]
    }
  }

  # The mappings read streams and queues in the name of the function.
  dynamic "statement" {
    for_each = try(each.value.hears_streams, false) ? [1] : []
    content {
      sid       = "WakingRows"
      actions   = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
      resources = [for table in keys(local.wake_filters) : "${local.table_arns[table]}/stream/*"]
    }
  }

  dynamic "statement" {
    for_each = length(try(each.value.receives, [])) > 0 ? [1] : []
    content {
      sid     = "Wakes"
      actions = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
      resources = [
        for name, arn in local.wake_queue_arns : arn if contains(each.value.receives, split("-", name)[0])
      ]
    }
  }

  dynamic "statement" {
    for_each = { for name in try(each.value.chunk_queues, []) : name => local.chunk_queue_grants[name] if var.fanouts }
    content {
      actions   = statement.value.actions
      resources = [for queue in statement.value.queues : local.chunk_queue_arns[queue]]
    }
  }

  dynamic "statement" {
    for_each = each.key == "splitter" ? [1] : []
    content {
      sid       = "Manifests"
      actions   = ["s3:GetObject"]
      resources = ["${aws_s3_bucket.bucket.arn}/${var.manifest_prefix}*"]
    }
  }

  # Histories are deleted when they were kept for long enough.
  dynamic "statement" {
    for_each = each.key == "sweep" ? [1] : []
    content {
      sid       = "Histories"
      actions   = ["s3:DeleteObject"]
      resources = ["${aws_s3_bucket.bucket.arn}/blobs/history/*"]
    }
  }

  # Listing knows no narrower resource; the mapping of a stream asks for it.
  dynamic "statement" {
    for_each = each.key == "stream-router" || try(each.value.hears_streams, false) ? [1] : []
    content {
      sid       = "Streams"
      actions   = ["dynamodb:ListStreams"]
      resources = ["*"]
    }
  }

  dynamic "statement" {
    for_each = each.value.reads_stream ? [1] : []
    content {
      sid       = "StreamOf"
      actions   = ["dynamodb:DescribeTable"]
      resources = [local.table_arns["headgate-pipelines"]]
    }
  }

  dynamic "statement" {
    for_each = { for call in each.value.calls : call => local.call_resources[call] if length(local.call_resources[call]) > 0 }
    content {
      actions   = [statement.key]
      resources = statement.value
    }
  }

  # Who makes a schedule hands it the role that it calls with.
  dynamic "statement" {
    for_each = contains(each.value.calls, "scheduler:CreateSchedule") ? [1] : []
    content {
      sid       = "Schedules"
      actions   = ["iam:PassRole"]
      resources = [aws_iam_role.scheduler.arn]
    }
  }

  dynamic "statement" {
    for_each = { for name, grant in local.job_grants : name => grant if each.value.starts_jobs && length(grant.resources) > 0 }
    content {
      actions   = statement.value.actions
      resources = statement.value.resources
    }
  }

  dynamic "statement" {
    for_each = each.key == "evaluator" && length(var.evaluator_object_arns) > 0 ? [1] : []
    content {
      sid       = "Objects"
      actions   = ["s3:GetObject"]
      resources = var.evaluator_object_arns
    }
  }

  dynamic "statement" {
    for_each = each.key == "clockwork" && length(var.alert_secret_arns) > 0 ? [1] : []
    content {
      sid       = "AlertSecrets"
      actions   = ["secretsmanager:GetSecretValue"]
      resources = var.alert_secret_arns
    }
  }

  dynamic "statement" {
    for_each = var.tracing ? [1] : []
    content {
      sid       = "Traces"
      actions   = ["xray:PutTraceSegments", "xray:PutTelemetryRecords"]
      resources = ["*"]
    }
  }

  dynamic "statement" {
    for_each = var.create_keys && var.keys_secret_arn != "" ? [1] : []
    content {
      sid       = "FieldKeys"
      actions   = ["kms:Decrypt"]
      resources = [aws_kms_key.key["fields"].arn]
    }
  }

  dynamic "statement" {
    for_each = var.keys_secret_arn == "" ? [] : [1]
    content {
      sid       = "Keys"
      actions   = ["secretsmanager:GetSecretValue"]
      resources = [var.keys_secret_arn]
    }
  }

  dynamic "statement" {
    for_each = local.is_keyed ? [1] : []
    content {
      sid       = "Encryption"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = [local.key_arn]
    }
  }
}

resource "aws_iam_role" "function" {
  for_each = local.functions

  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assume["lambda"].json
}

resource "aws_iam_role_policy" "function" {
  for_each = local.functions

  name   = "function"
  role   = aws_iam_role.function[each.key].id
  policy = data.aws_iam_policy_document.function[each.key].json
}

# The machine calls its functions, and writes its log.

data "aws_iam_policy_document" "machine" {
  statement {
    actions = ["lambda:InvokeFunction"]
    resources = [
      for name in ["orchestrator", "evaluator", "trigger", "run-checker", "sla-monitor"] : local.function_arns[name]
    ]
  }

  # Step Functions takes no narrower resource for the delivery of logs.
  statement {
    actions = [
      "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery",
      "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies", "logs:DescribeLogGroups",
    ]
    resources = ["*"]
  }

  dynamic "statement" {
    for_each = var.tracing ? [1] : []
    content {
      sid       = "Traces"
      actions   = ["xray:PutTraceSegments", "xray:PutTelemetryRecords", "xray:GetSamplingRules", "xray:GetSamplingTargets"]
      resources = ["*"]
    }
  }
}

resource "aws_iam_role" "machine" {
  name               = "${var.name}-lifecycle"
  assume_role_policy = data.aws_iam_policy_document.assume["states"].json
}

resource "aws_iam_role_policy" "machine" {
  name   = "machine"
  role   = aws_iam_role.machine.id
  policy = data.aws_iam_policy_document.machine.json
}

# One-shot schedules call the SLA monitor, start executions, and put wakes into their queue.

data "aws_iam_policy_document" "scheduler" {
  statement {
    actions   = ["lambda:InvokeFunction"]
    resources = [local.function_arns["sla-monitor"]]
  }

  statement {
    actions   = ["states:StartExecution"]
    resources = [local.machine_arn]
  }

  statement {
    sid       = "Failures"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.failures["schedules"].arn]
  }

  dynamic "statement" {
    for_each = var.app == "" ? [] : [1]
    content {
      actions   = ["sqs:SendMessage"]
      resources = [local.wake_queue_arns["later"]]
    }
  }

  dynamic "statement" {
    for_each = local.is_keyed ? [1] : []
    content {
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = [local.key_arn]
    }
  }
}

resource "aws_iam_role" "scheduler" {
  name               = "${var.name}-scheduler"
  assume_role_policy = data.aws_iam_policy_document.assume["scheduler"].json
}

resource "aws_iam_role_policy" "scheduler" {
  name   = "scheduler"
  role   = aws_iam_role.scheduler.id
  policy = data.aws_iam_policy_document.scheduler.json
}
