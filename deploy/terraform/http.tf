# The HTTP functions: REST, GraphQL, pages and the routes of the app behind one HTTP API, and the durable API behind
# another, where IAM decides who may call which route. Each has a function, a role and a throttle of its own: what
# users do with the one takes nothing from the other.

variable "api" {
  description = "Whether a function serves REST, GraphQL, pages and the routes of the app over an HTTP API."
  type        = bool
  default     = false
}

variable "internal_api" {
  description = "Whether a function serves the durable API over an HTTP API that IAM authorises."
  type        = bool
  default     = false
}

variable "api_public_url" {
  description = "Address by which people and jobs reach the API, where it has a domain of its own; empty: that of the HTTP API."
  type        = string
  default     = ""

  validation {
    condition     = var.api_public_url == "" || can(regex("^https://[A-Za-z0-9.-]+$", var.api_public_url))
    error_message = "api_public_url: write an address such as https://headgate.example.com, without a path."
  }
}

variable "api_requests_per_second" {
  description = "Requests per second of each HTTP API; further ones are answered with 429."
  type        = number
  default     = 500

  validation {
    condition     = var.api_requests_per_second >= 1 && var.api_requests_per_second <= 10000
    error_message = "api_requests_per_second: use 1 to 10000."
  }
}

locals {
  http_functions = {
    for name, each in jsondecode(file("${path.module}/http_functions.json")) :
    name => each if name == "internal-api" ? var.internal_api : var.api
  }
  # Those that an HTTP API invokes. The health sweep does the background work of what the API accepts.
  http_apis          = { for name, each in local.http_functions : name => each if name != "health-sweep" }
  http_authorization = { api = "NONE", "internal-api" = "AWS_IAM" }

  # Of both: the API starts pipelines as the functions of the lifecycle do.
  http_environment = {
    for name in keys(local.http_apis) : name => {
      HEADGATE_APP                            = var.app
      HEADGATE_PUBLIC_URL                     = name == "api" && var.api_public_url != "" ? var.api_public_url : aws_apigatewayv2_api.http[name].api_endpoint
      HEADGATE_PIPELINES_STATE_MACHINE_ARN    = local.machine_arn
      HEADGATE_PIPELINES_SCHEDULER_ROLE_ARN   = aws_iam_role.scheduler.arn
      HEADGATE_PIPELINES_SCHEDULER_GROUP_NAME = aws_scheduler_schedule_group.group.name
    }
  }
}

# Without CORS: the application answers preflights itself, by the policy of the app.
resource "aws_apigatewayv2_api" "http" {
  for_each = local.http_apis

  name          = "${var.name}-${each.key}"
  protocol_type = "HTTP"
}

resource "aws_apigatewayv2_integration" "http" {
  for_each = local.http_apis

  api_id                 = aws_apigatewayv2_api.http[each.key].id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_alias.live[each.key].invoke_arn
  payload_format_version = "2.0"
  timeout_milliseconds   = 30000
}

resource "aws_apigatewayv2_route" "http" {
  for_each = local.http_apis

  api_id             = aws_apigatewayv2_api.http[each.key].id
  route_key          = "$default"
  authorization_type = local.http_authorization[each.key]
  target             = "integrations/${aws_apigatewayv2_integration.http[each.key].id}"
}

resource "aws_cloudwatch_log_group" "http" {
  for_each = local.http_apis

  name              = "/aws/apigateway/${var.name}-${each.key}"
  retention_in_days = var.log_retention_days
  kms_key_id        = local.is_keyed ? local.key_arn : null
}

resource "aws_apigatewayv2_stage" "http" {
  for_each = local.http_apis

  api_id      = aws_apigatewayv2_api.http[each.key].id
  name        = "$default"
  auto_deploy = true

  default_route_settings {
    throttling_rate_limit  = var.api_requests_per_second
    throttling_burst_limit = 2 * var.api_requests_per_second
  }

  # Without query strings: they may hold tokens of callbacks.
  access_log_settings {
    destination_arn = aws_cloudwatch_log_group.http[each.key].arn
    format = jsonencode({
      requestId = "$context.requestId"
      caller    = "$context.identity.userArn"
      address   = "$context.identity.sourceIp"
      method    = "$context.httpMethod"
      path      = "$context.path"
      status    = "$context.status"
      error     = "$context.integrationErrorMessage"
    })
  }
}

resource "aws_lambda_permission" "http" {
  for_each = local.http_apis

  statement_id  = "api"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function[each.key].function_name
  qualifier     = aws_lambda_alias.live[each.key].name
  principal     = "apigateway.amazonaws.com"
  source_arn    = "${aws_apigatewayv2_api.http[each.key].execution_arn}/$default/*"
}

output "api_urls" {
  description = "Addresses of the HTTP APIs, by function."
  value       = { for name, api in aws_apigatewayv2_api.http : name => api.api_endpoint }
}

output "internal_api_arn" {
  description = "What a policy grants execute-api:Invoke on: append /$default/METHOD/PATH."
  value       = try(aws_apigatewayv2_api.http["internal-api"].execution_arn, "")
}
