# Tables, keys and indexes are those of the catalogue: deploy/tables.py writes tables.json from it.

locals {
  tables = jsondecode(file("${path.module}/tables.json"))
}

resource "aws_dynamodb_table" "table" {
  for_each = local.tables

  name                        = "${var.table_prefix}${each.key}"
  billing_mode                = each.value.billing_mode
  read_capacity               = each.value.read_capacity
  write_capacity              = each.value.write_capacity
  hash_key                    = each.value.hash_key
  range_key                   = each.value.range_key
  stream_enabled              = each.value.stream
  stream_view_type            = each.value.stream ? "NEW_AND_OLD_IMAGES" : null
  deletion_protection_enabled = var.deletion_protection

  dynamic "attribute" {
    for_each = each.value.attributes
    content {
      name = attribute.key
      type = attribute.value
    }
  }

  dynamic "global_secondary_index" {
    for_each = each.value.indexes
    content {
      name            = global_secondary_index.key
      hash_key        = global_secondary_index.value.hash_key
      range_key       = global_secondary_index.value.range_key
      projection_type = "ALL"
      read_capacity   = each.value.read_capacity
      write_capacity  = each.value.write_capacity
    }
  }

  dynamic "ttl" {
    for_each = each.value.ttl_attribute == null ? [] : [each.value.ttl_attribute]
    content {
      attribute_name = ttl.value
      enabled        = true
    }
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn == "" ? null : var.kms_key_arn
  }
}

resource "aws_s3_bucket" "bucket" {
  bucket        = var.bucket
  force_destroy = !var.deletion_protection
}

resource "aws_s3_bucket_versioning" "bucket" {
  bucket = aws_s3_bucket.bucket.id

  versioning_configuration {
    status = "Enabled"
  }
}

# Headgate deletes what has served its time; this ends the versions that are left, and uploads that were given up.
resource "aws_s3_bucket_lifecycle_configuration" "bucket" {
  bucket = aws_s3_bucket_versioning.bucket.bucket

  rule {
    id     = "versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_public_access_block" "bucket" {
  bucket                  = aws_s3_bucket.bucket.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "bucket" {
  bucket = aws_s3_bucket.bucket.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == "" ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn == "" ? null : var.kms_key_arn
    }
  }
}
