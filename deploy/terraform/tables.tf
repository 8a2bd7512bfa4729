# Tables, keys and indexes are those of the catalogue: deploy/tables.py writes tables.json from it.

locals {
  tables             = jsondecode(file("${path.module}/tables.json"))
  on_demand_tables   = { for name, each in local.tables : name => each if each.billing_mode == "PAY_PER_REQUEST" }
  provisioned_tables = { for name, each in local.tables : name => each if each.billing_mode == "PROVISIONED" }

  # Named and not referred to: policies are known before the tables are there.
  table_arns = {
    for name in keys(local.tables) :
    name => "arn:${local.partition}:dynamodb:${var.region}:${local.account}:table/${var.table_prefix}${name}"
  }

  # What describes datasets is replicated. The audit log is a chain of each region, and the health check is its own.
  replicated_tables = length(var.replica_regions) == 0 ? [] : [
    for name in keys(local.tables) : name
    if startswith(name, "observability-") && !contains(["observability-audit", "observability-health-check"], name)
  ]
}

resource "aws_dynamodb_table" "table" {
  for_each = local.on_demand_tables

  name                        = "${var.table_prefix}${each.key}"
  billing_mode                = each.value.billing_mode
  hash_key                    = each.value.hash_key
  range_key                   = each.value.range_key
  stream_enabled              = each.value.stream || contains(local.replicated_tables, each.key)
  stream_view_type            = each.value.stream || contains(local.replicated_tables, each.key) ? "NEW_AND_OLD_IMAGES" : null
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
      name               = global_secondary_index.key
      hash_key           = global_secondary_index.value.hash_key
      range_key          = global_secondary_index.value.range_key
      projection_type    = global_secondary_index.value.projection_type
      non_key_attributes = global_secondary_index.value.non_key_attributes
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
    kms_key_arn = local.is_keyed ? local.key_arn : null
  }

  dynamic "replica" {
    for_each = contains(local.replicated_tables, each.key) ? var.replica_regions : {}
    content {
      region_name            = replica.key
      kms_key_arn            = replica.value == "" ? null : replica.value
      point_in_time_recovery = true
      propagate_tags         = true
    }
  }
}

moved {
  from = aws_dynamodb_table.table["observability-dataset-registry"]
  to   = aws_dynamodb_table.provisioned["observability-dataset-registry"]
}

moved {
  from = aws_dynamodb_table.table["observability-dataset-resolution"]
  to   = aws_dynamodb_table.provisioned["observability-dataset-resolution"]
}

resource "aws_dynamodb_table" "provisioned" {
  for_each = local.provisioned_tables

  name                        = "${var.table_prefix}${each.key}"
  billing_mode                = each.value.billing_mode
  read_capacity               = each.value.read_capacity
  write_capacity              = each.value.write_capacity
  hash_key                    = each.value.hash_key
  range_key                   = each.value.range_key
  stream_enabled              = each.value.stream || contains(local.replicated_tables, each.key)
  stream_view_type            = each.value.stream || contains(local.replicated_tables, each.key) ? "NEW_AND_OLD_IMAGES" : null
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
      name               = global_secondary_index.key
      hash_key           = global_secondary_index.value.hash_key
      range_key          = global_secondary_index.value.range_key
      projection_type    = global_secondary_index.value.projection_type
      non_key_attributes = global_secondary_index.value.non_key_attributes
      read_capacity      = each.value.read_capacity
      write_capacity     = each.value.write_capacity
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
    kms_key_arn = local.is_keyed ? local.key_arn : null
  }

  dynamic "replica" {
    for_each = contains(local.replicated_tables, each.key) ? var.replica_regions : {}
    content {
      region_name            = replica.key
      kms_key_arn            = replica.value == "" ? null : replica.value
      point_in_time_recovery = true
      propagate_tags         = true
    }
  }

  # Capacity is changed by autoscaling, or by hand. A change of an index here needs an apply without this line.
  lifecycle {
    ignore_changes = [read_capacity, write_capacity, global_secondary_index]

    precondition {
      condition     = length(var.replica_regions) == 0 || var.autoscaling_units_max > 0
      error_message = "replica_regions: replicas of provisioned tables need autoscaling; set autoscaling_units_max."
    }
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
      sse_algorithm     = local.is_keyed ? "aws:kms" : "AES256"
      kms_master_key_id = local.is_keyed ? local.key_arn : null
    }
  }
}
