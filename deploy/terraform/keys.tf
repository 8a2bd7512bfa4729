# Keys of this deployment: for data at rest, for the topic of alarms, and for the secret with the keys of fields.

locals {
  is_keyed = var.create_keys || var.kms_key_arn != ""
  key_arn  = var.kms_key_arn != "" ? var.kms_key_arn : try(aws_kms_key.key["data"].arn, "")

  keys = {
    data   = "Tables, bucket, queues and logs of ${var.name}."
    topics = "The topic of alarms of ${var.name}."
    fields = "The secret with keys.json, which encrypts fields of incidents: give it to the secret as its key."
  }
  # What AWS itself encrypts and decrypts with a key.
  key_services = {
    data   = ["logs.${var.region}.amazonaws.com", "events.amazonaws.com"]
    topics = ["cloudwatch.amazonaws.com"]
    fields = []
  }
}

data "aws_iam_policy_document" "key" {
  for_each = local.keys

  # Roles of the account use the key as their own policies say.
  statement {
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account}:root"]
    }
  }

  dynamic "statement" {
    for_each = length(local.key_services[each.key]) == 0 ? [] : [1]
    content {
      actions   = ["kms:Decrypt", "kms:Encrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
      resources = ["*"]

      principals {
        type        = "Service"
        identifiers = local.key_services[each.key]
      }
    }
  }
}

resource "aws_kms_key" "key" {
  for_each = { for name, description in local.keys : name => description if var.create_keys }

  description             = each.value
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key[each.key].json
}

resource "aws_kms_alias" "key" {
  for_each = aws_kms_key.key

  name          = "alias/${var.name}-${each.key}"
  target_key_id = each.value.key_id
}
