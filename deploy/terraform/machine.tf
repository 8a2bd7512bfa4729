# The lifecycle: the one file that runs everywhere, with the functions filled in.

resource "aws_cloudwatch_log_group" "machine" {
  name              = "/aws/vendedlogs/states/${var.name}-lifecycle"
  retention_in_days = var.log_retention_days
  kms_key_id        = local.is_keyed ? local.key_arn : null
}

resource "aws_sfn_state_machine" "lifecycle" {
  name     = "${var.name}-lifecycle"
  role_arn = aws_iam_role.machine.arn

  definition = templatefile("${path.module}/../statemachine.asl.json", {
    OrchestratorFunctionArn = aws_lambda_alias.live["orchestrator"].arn
    orchestrator_arn        = aws_lambda_alias.live["orchestrator"].arn
    EvaluatorFunctionArn    = aws_lambda_alias.live["evaluator"].arn
    TriggerFunctionArn      = aws_lambda_alias.live["trigger"].arn
    RunCheckerFunctionArn   = aws_lambda_alias.live["run-checker"].arn
    sla_monitor_arn         = aws_lambda_alias.live["sla-monitor"].arn
  })

  # Without the data: it holds task tokens.
  logging_configuration {
    level                  = "ERROR"
    include_execution_data = false
    log_destination        = "${aws_cloudwatch_log_group.machine.arn}:*"
  }

  tracing_configuration {
    enabled = var.tracing
  }

  depends_on = [aws_iam_role_policy.machine]
}
