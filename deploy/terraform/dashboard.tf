# The operations dashboard of the state store: throughput, latency, capacity and throttling, business.

locals {
  store_namespace = "Observability/StateStore"

  # By the name of a panel: its kind, statistic, period and metrics, each as namespace, name and dimensions.
  dashboard_panels = [
    {
      title = "Throughput: reads, writes and cache hits", view = "singleValue", stat = "Sum", period = 3600, width = 12
      metrics = [
        [local.store_namespace, "dynamodb.consumed_capacity", "capacity_type", "READ", { label = "Read units" }],
        [local.store_namespace, "dynamodb.consumed_capacity", "capacity_type", "WRITE", { label = "Write units" }],
        [local.store_namespace, "cache.hit_rate", "cache_layer", "l1", { label = "Cache hits (%)", stat = "Average" }],
      ]
    },
    {
      title = "Latency (p99)", view = "timeSeries", stat = "p99", period = 60, width = 12
      metrics = flatten([
        for table in ["observability-signal-state", "observability-incident-index", "observability-evidence-cache"] : [
          for metric in ["dynamodb.read_latency", "dynamodb.write_latency"] : {
            value = [local.store_namespace, metric, "table", table, { label = "${table} ${metric}" }]
          }
        ]
      ])[*].value
    },
    {
      title = "Capacity by table", view = "bar", stat = "Sum", period = 3600, width = 12
      metrics = [
        for table in keys(local.tables) :
        ["AWS/DynamoDB", "ConsumedWriteCapacityUnits", "TableName", "${var.table_prefix}${table}", { label = table }]
      ]
    },
    {
      title = "Throttled requests (should be 0)", view = "timeSeries", stat = "Sum", period = 60, width = 12
      metrics = concat(
        [[local.store_namespace, "dynamodb.throttle_count", { label = "functions" }]],
        [
          for table in keys(local.tables) :
          ["AWS/DynamoDB", "WriteThrottleEvents", "TableName", "${var.table_prefix}${table}", { label = table }]
        ],
      )
    },
    {
      title = "Business: active incidents", view = "singleValue", stat = "Maximum", period = 300, width = 12
      metrics = [
        for severity in ["SEV_1", "SEV_2", "SEV_3"] :
        [local.store_namespace, "incident.active", "severity", severity, { label = severity }]
      ]
    },
    {
      title = "Business: signal updates and state transitions", view = "timeSeries", stat = "Sum", period = 60, width = 12
      metrics = concat(
        [[local.store_namespace, "signal_state.updates", { label = "updates" }]],
        [
          for pair in [["OK", "WARNING"], ["WARNING", "CRITICAL"], ["OK", "CRITICAL"], ["CRITICAL", "OK"]] :
          [
            local.store_namespace, "signal_state.state_transitions", "from_state", pair[0], "to_state", pair[1],
            { label = "${pair[0]} to ${pair[1]}" },
          ]
        ],
      )
    },
    {
      title = "Functions: errors", view = "timeSeries", stat = "Sum", period = 60, width = 12
      metrics = [
        for name in keys(local.functions) :
        ["AWS/Lambda", "Errors", "FunctionName", "${var.name}-${name}", { label = name }]
      ]
    },
    {
      title = "Queues: oldest message (s)", view = "timeSeries", stat = "Maximum", period = 60, width = 12
      metrics = [
        for name, each in local.read_queues :
        ["AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", each.full_name, { label = name }]
      ]
    },
  ]
}

resource "aws_cloudwatch_dashboard" "dashboard" {
  for_each = var.custom_metrics ? toset(["operations"]) : toset([])

  dashboard_name = "${var.name}-operations"
  dashboard_body = jsonencode({
    start = "-PT1H"
    widgets = [
      for place, panel in local.dashboard_panels : {
        type   = "metric"
        x      = place % 2 == 0 ? 0 : 12
        y      = floor(place / 2) * 6
        width  = panel.width
        height = 6
        properties = {
          title   = panel.title
          view    = panel.view
          stat    = panel.stat
          period  = panel.period
          region  = var.region
          metrics = panel.metrics
        }
      } if length(panel.metrics) > 0
    ]
  })
}
