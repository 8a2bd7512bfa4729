# CloudTrail: who has read or written which row. AWS bills each event.

data "aws_iam_policy_document" "trail" {
  statement {
    actions   = ["s3:GetBucketAcl"]
    resources = ["arn:${local.partition}:s3:::${var.bucket}-trail"]

    principals {
      type        = "Service"
      identifiers = ["cloudtrail.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceArn"
      values   = ["arn:${local.partition}:cloudtrail:${var.region}:${local.account}:trail/${var.name}"]
    }
  }

  statement {
    actions   = ["s3:PutObject"]
    resources = ["arn:${local.partition}:s3:::${var.bucket}-trail/AWSLogs/${local.account}/*"]

    principals {
      type        = "Service"
      identifiers = ["cloudtrail.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "s3:x-amz-acl"
      values   = ["bucket-owner-full-control"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceArn"
      values   = ["arn:${local.partition}:cloudtrail:${var.region}:${local.account}:trail/${var.name}"]
    }
  }
}

resource "aws_s3_bucket" "trail" {
  for_each = var.audit_trail ? toset(["trail"]) : toset([])

  bucket        = "${var.bucket}-trail"
  force_destroy = !var.deletion_protection
}

resource "aws_s3_bucket_versioning" "trail" {
  for_each = aws_s3_bucket.trail

  bucket = each.value.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "trail" {
  for_each = aws_s3_bucket_versioning.trail

  bucket = each.value.bucket

  rule {
    id     = "old"
    status = "Enabled"

    filter {}

    expiration {
      days = var.audit_trail_days
    }

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }
  }
}

resource "aws_s3_bucket_public_access_block" "trail" {
  for_each = aws_s3_bucket.trail

  bucket                  = each.value.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_policy" "trail" {
  for_each = aws_s3_bucket.trail

  bucket = each.value.id
  policy = data.aws_iam_policy_document.trail.json
}

resource "aws_cloudtrail" "trail" {
  for_each = var.audit_trail ? toset(["trail"]) : toset([])

  name                          = var.name
  s3_bucket_name                = aws_s3_bucket_policy.trail[each.key].bucket
  enable_log_file_validation    = true
  include_global_service_events = false

  advanced_event_selector {
    name = "Rows of ${var.name}"

    field_selector {
      field  = "eventCategory"
      equals = ["Data"]
    }

    field_selector {
      field  = "resources.type"
      equals = ["AWS::DynamoDB::Table"]
    }

    field_selector {
      field  = "resources.ARN"
      equals = [for name in keys(local.tables) : local.table_arns[name] if startswith(name, "observability-")]
    }
  }
}
