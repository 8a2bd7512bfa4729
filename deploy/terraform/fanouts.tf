# Fan-outs: a manifest in the bucket is split, chunks are messages of a queue, and what fails for good is recorded.

locals {
  fanout_functions = {
    for name, each in jsondecode(file("${path.module}/fanout_functions.json")) : name => each if var.fanouts
  }

  chunk_queue_names = var.fanouts ? { chunks = "${var.name}-chunks", chunks-dead = "${var.name}-chunks-dead" } : {}
  chunk_queue_arns = {
    for name, full_name in local.chunk_queue_names :
    name => "arn:${local.partition}:sqs:${var.region}:${local.account}:${full_name}"
  }

  # Fan-outs that name no queue send their chunks to this one, and no fan-out may use another.
  chunk_queue_url = "https://sqs.${var.region}.${data.aws_partition.current.dns_suffix}/${local.account}/${var.name}-chunks"
  fanout_environment = var.fanouts ? {
    HEADGATE_FANOUT_QUEUE_URL = local.chunk_queue_url
    HEADGATE_FANOUT_QUEUES    = local.chunk_queue_url
  } : {}
  fanout_function_environment = { HEADGATE_APP = var.app }
}

# AWS recommends a visibility time-out of six times the time-out of the function.
resource "aws_sqs_queue" "chunks" {
  for_each = var.fanouts ? toset(["chunks"]) : toset([])

  name                              = local.chunk_queue_names["chunks"]
  visibility_timeout_seconds        = 6 * local.fanout_functions["chunk-worker"].timeout_seconds
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_chunks[each.key].arn
    maxReceiveCount     = 5
  })
}

resource "aws_sqs_queue" "dead_chunks" {
  for_each = var.fanouts ? toset(["chunks"]) : toset([])

  name                              = local.chunk_queue_names["chunks-dead"]
  visibility_timeout_seconds        = 6 * local.fanout_functions["dead-letter"].timeout_seconds
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = local.is_keyed ? null : true
  kms_master_key_id                 = local.is_keyed ? local.key_arn : null
  kms_data_key_reuse_period_seconds = local.is_keyed ? 300 : null
}

resource "aws_lambda_event_source_mapping" "chunks" {
  for_each = aws_sqs_queue.chunks

  event_source_arn        = each.value.arn
  function_name           = aws_lambda_alias.live["chunk-worker"].arn
  batch_size              = var.chunk_batch_size
  function_response_types = ["ReportBatchItemFailures"]

  dynamic "scaling_config" {
    for_each = var.chunk_concurrency_max == 0 ? [] : [1]
    content {
      maximum_concurrency = var.chunk_concurrency_max
    }
  }
}

resource "aws_lambda_event_source_mapping" "dead_chunks" {
  for_each = aws_sqs_queue.dead_chunks

  event_source_arn        = each.value.arn
  function_name           = aws_lambda_alias.live["dead-letter"].arn
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
}

# Prefix and suffix: what functions write into the bucket starts nothing.
resource "aws_s3_bucket_notification" "manifests" {
  for_each = var.fanouts ? toset(["manifests"]) : toset([])

  bucket = aws_s3_bucket.bucket.id

  lambda_function {
    lambda_function_arn = aws_lambda_alias.live["splitter"].arn
    events              = ["s3:ObjectCreated:*"]
    filter_prefix       = var.manifest_prefix
    filter_suffix       = ".json"
  }

  depends_on = [aws_lambda_permission.manifests]
}

resource "aws_lambda_permission" "manifests" {
  for_each = var.fanouts ? toset(["manifests"]) : toset([])

  statement_id   = "manifests"
  action         = "lambda:InvokeFunction"
  function_name  = aws_lambda_function.function["splitter"].function_name
  qualifier      = aws_lambda_alias.live["splitter"].name
  principal      = "s3.amazonaws.com"
  source_arn     = aws_s3_bucket.bucket.arn
  source_account = local.account
}

# What chunk handlers do in the world is granted by policies of their own.
resource "aws_iam_role_policy_attachment" "chunks" {
  for_each = var.fanouts ? toset(var.chunk_policy_arns) : toset([])

  role       = aws_iam_role.function["chunk-worker"].name
  policy_arn = each.value
}

# By function: what it may do with the queues of chunks.
locals {
  chunk_queue_grants = {
    send = { actions = ["sqs:SendMessage"], queues = ["chunks"] }
    # The mapping receives in the name of the function; a failed chunk is delivered again after its backoff.
    run = {
      actions = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"]
      queues  = ["chunks"]
    }
    bury = { actions = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], queues = ["chunks-dead"] }
  }
}
