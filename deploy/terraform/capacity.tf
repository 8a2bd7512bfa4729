# Capacity: autoscaling of the provisioned tables with their indexes, and the keys that use most of a table.

locals {
  scaled = merge([
    for name, table in local.provisioned_tables : merge(
      { "${name}" = { resource = "table/${var.table_prefix}${name}", space = "table" } },
      { for index in keys(table.indexes) : "${name}/${index}" => { resource = "table/${var.table_prefix}${name}/index/${index}", space = "index" } },
    )
  ]...)
  scaled_units = {
    for pair in setproduct(keys(local.scaled), ["Read", "Write"]) : "${pair[0]}/${pair[1]}" => {
      resource  = local.scaled[pair[0]].resource
      dimension = "dynamodb:${local.scaled[pair[0]].space}:${pair[1]}CapacityUnits"
      metric    = "DynamoDB${pair[1]}CapacityUtilization"
    } if var.autoscaling_units_max > 0
  }
}

resource "aws_appautoscaling_target" "units" {
  for_each = local.scaled_units

  service_namespace  = "dynamodb"
  resource_id        = each.value.resource
  scalable_dimension = each.value.dimension
  min_capacity       = var.autoscaling_units_min
  max_capacity       = var.autoscaling_units_max

  lifecycle {
    precondition {
      condition     = var.autoscaling_units_min <= var.autoscaling_units_max
      error_message = "autoscaling_units_min: it must not be more than autoscaling_units_max."
    }
  }

  depends_on = [aws_dynamodb_table.provisioned]
}

resource "aws_appautoscaling_policy" "units" {
  for_each = local.scaled_units

  name               = "${var.name}-${replace(each.key, "/", "-")}"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = "dynamodb"
  resource_id        = aws_appautoscaling_target.units[each.key].resource_id
  scalable_dimension = aws_appautoscaling_target.units[each.key].scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value = 70

    predefined_metric_specification {
      predefined_metric_type = each.value.metric
    }
  }
}

resource "aws_dynamodb_contributor_insights" "table" {
  for_each = toset(var.contributor_insights)

  table_name = "${var.table_prefix}${each.key}"

  depends_on = [aws_dynamodb_table.table, aws_dynamodb_table.provisioned]
}
