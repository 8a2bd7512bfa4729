# Roles for programs that read and write the tables directly, beside the API. Whoever assumes one gives it session tags:
# AllowedDatasets, the beginning of the datasets' names that signals are written for, and ApprovalTicket.

locals {
  programs = length(var.program_principal_arns) == 0 ? {} : {
    signal-engine   = { tag = "AllowedDatasets" }
    alerting-engine = { tag = "" }
    rca-copilot     = { tag = "" }
    admin           = { tag = "ApprovalTicket" }
  }

  observability_arns = [for name in keys(local.tables) : local.table_arns[name] if startswith(name, "observability-")]

  program_statements = {
    # Without the tag the variable has no value, and the statement matches nothing.
    signal-engine = [
      {
        sid       = "WriteSignalState"
        actions   = ["dynamodb:UpdateItem", "dynamodb:PutItem", "dynamodb:GetItem"]
        resources = [local.table_arns["observability-signal-state"]]
        conditions = [
          { test = "ForAllValues:StringLike", variable = "dynamodb:LeadingKeys", values = ["$${aws:PrincipalTag/AllowedDatasets}*"] },
          # A request without keys would satisfy the condition above.
          { test = "Null", variable = "dynamodb:LeadingKeys", values = ["false"] },
        ]
      },
      {
        sid        = "WriteEvidenceCache"
        actions    = ["dynamodb:PutItem", "dynamodb:BatchWriteItem"]
        resources  = [local.table_arns["observability-evidence-cache"]]
        conditions = []
      },
    ]
    alerting-engine = [
      {
        sid        = "ManageIncidents"
        actions    = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:Query"]
        resources  = [local.table_arns["observability-incident-index"], "${local.table_arns["observability-incident-index"]}/index/*"]
        conditions = []
      },
      {
        sid        = "ReadSignalState"
        actions    = ["dynamodb:GetItem", "dynamodb:Query"]
        resources  = [local.table_arns["observability-signal-state"], "${local.table_arns["observability-signal-state"]}/index/*"]
        conditions = []
      },
    ]
    rca-copilot = [
      {
        sid        = "ReadOnly"
        actions    = ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]
        resources  = flatten([for arn in local.observability_arns : [arn, "${arn}/index/*"]])
        conditions = []
      },
    ]
    # Rows, not the table: nobody deletes it or its backups with a ticket. The ticket is a tag of the session, because
    # AWS has tags of a request only where tags are set.
    admin = [
      {
        sid = "ManageDatasetRegistry"
        actions = [
          "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:Scan", "dynamodb:PutItem",
          "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:BatchWriteItem", "dynamodb:ConditionCheckItem",
          "dynamodb:DescribeTable",
        ]
        resources  = [local.table_arns["observability-dataset-registry"], "${local.table_arns["observability-dataset-registry"]}/index/*"]
        conditions = [{ test = "StringLike", variable = "aws:PrincipalTag/ApprovalTicket", values = ["?*"] }]
      },
    ]
  }
}

data "aws_iam_policy_document" "program" {
  for_each = local.program_statements

  dynamic "statement" {
    for_each = each.value
    content {
      sid       = statement.value.sid
      actions   = statement.value.actions
      resources = statement.value.resources

      dynamic "condition" {
        for_each = statement.value.conditions
        content {
          test     = condition.value.test
          variable = condition.value.variable
          values   = condition.value.values
        }
      }
    }
  }
}

data "aws_iam_policy_document" "program_encryption" {
  for_each = local.is_keyed ? local.programs : {}

  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [local.key_arn]
  }
}

data "aws_iam_policy_document" "assume_program" {
  for_each = local.programs

  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "AWS"
      identifiers = var.program_principal_arns
    }

    # The tag that the role needs has a value.
    dynamic "condition" {
      for_each = each.value.tag == "" ? [] : [each.value.tag]
      content {
        test     = "StringLike"
        variable = "aws:RequestTag/${condition.value}"
        values   = ["?*"]
      }
    }
  }
}

resource "aws_iam_role" "program" {
  for_each = local.programs

  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assume_program[each.key].json
}

resource "aws_iam_role_policy" "program" {
  for_each = local.programs

  name   = "tables"
  role   = aws_iam_role.program[each.key].id
  policy = data.aws_iam_policy_document.program[each.key].json
}

resource "aws_iam_role_policy" "program_encryption" {
  for_each = data.aws_iam_policy_document.program_encryption

  name   = "encryption"
  role   = aws_iam_role.program[each.key].id
  policy = each.value.json
}
