# A network for servers in a VPC: endpoints, so that they need no way to the internet, security groups, and the cache.

locals {
  in_vpc = var.vpc_id == "" ? toset([]) : toset(["vpc"])
  cached = var.cache_node_type == "" ? toset([]) : toset(["cache"])
}

data "aws_iam_policy_document" "tables_endpoint" {
  statement {
    sid       = "OwnTables"
    actions   = ["dynamodb:*"]
    resources = flatten([for arn in values(local.table_arns) : [arn, "${arn}/index/*", "${arn}/stream/*"]])

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceVpc"
      values   = [var.vpc_id]
    }
  }
}

resource "aws_vpc_endpoint" "dynamodb" {
  for_each = local.in_vpc

  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${var.region}.dynamodb"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids
  policy            = data.aws_iam_policy_document.tables_endpoint.json
}

resource "aws_vpc_endpoint" "s3" {
  for_each = local.in_vpc

  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids
}

# AWS bills these by the hour.
resource "aws_vpc_endpoint" "service" {
  for_each = var.vpc_id == "" ? toset([]) : toset(var.interface_endpoints)

  vpc_id              = var.vpc_id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = var.private_subnet_ids
  security_group_ids  = [aws_security_group.endpoints["vpc"].id]
  private_dns_enabled = true
}

resource "aws_security_group" "service" {
  for_each = local.in_vpc

  name        = "${var.name}-service"
  description = "Servers of ${var.name}"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = var.vpc_id == "" ? {} : var.client_security_groups

  security_group_id            = aws_security_group.service["vpc"].id
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = each.value
}

resource "aws_vpc_security_group_egress_rule" "gateways" {
  for_each = merge(
    { for name, endpoint in aws_vpc_endpoint.dynamodb : "dynamodb" => endpoint.prefix_list_id },
    { for name, endpoint in aws_vpc_endpoint.s3 : "s3" => endpoint.prefix_list_id },
  )

  security_group_id = aws_security_group.service["vpc"].id
  description       = each.key
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  prefix_list_id    = each.value
}

resource "aws_security_group" "endpoints" {
  for_each = local.in_vpc

  name        = "${var.name}-endpoints"
  description = "Interface endpoints of ${var.name}"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  for_each = local.in_vpc

  security_group_id            = aws_security_group.endpoints["vpc"].id
  description                  = "Servers"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = aws_security_group.service["vpc"].id
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  for_each = local.in_vpc

  security_group_id            = aws_security_group.service["vpc"].id
  description                  = "Interface endpoints"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = aws_security_group.endpoints["vpc"].id
}

# The cache that several servers share: cache.redis_url is rediss:// and the output cache_endpoint.

resource "aws_security_group" "cache" {
  for_each = local.cached

  name        = "${var.name}-cache"
  description = "Cache of ${var.name}"
  vpc_id      = var.vpc_id

  lifecycle {
    precondition {
      condition     = var.vpc_id != "" && length(var.private_subnet_ids) > 0
      error_message = "cache_node_type: the cache needs a network; set vpc_id and private_subnet_ids."
    }
  }
}

resource "aws_vpc_security_group_ingress_rule" "cache" {
  for_each = local.cached

  security_group_id            = aws_security_group.cache[each.key].id
  description                  = "Servers"
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
  referenced_security_group_id = aws_security_group.service["vpc"].id
}

resource "aws_vpc_security_group_egress_rule" "cache" {
  for_each = local.cached

  security_group_id            = aws_security_group.service["vpc"].id
  description                  = "Cache"
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
  referenced_security_group_id = aws_security_group.cache[each.key].id
}

resource "aws_elasticache_subnet_group" "cache" {
  for_each = local.cached

  name       = var.name
  subnet_ids = var.private_subnet_ids
}

resource "aws_elasticache_replication_group" "cache" {
  for_each = local.cached

  replication_group_id       = var.name
  description                = "Cache of ${var.name}"
  engine                     = "redis"
  engine_version             = "7.1"
  node_type                  = var.cache_node_type
  num_cache_clusters         = 2
  automatic_failover_enabled = true
  multi_az_enabled           = true
  port                       = 6379
  subnet_group_name          = aws_elasticache_subnet_group.cache[each.key].name
  security_group_ids         = [aws_security_group.cache[each.key].id]
  at_rest_encryption_enabled = true
  transit_encryption_enabled = true
  kms_key_id                 = local.is_keyed ? local.key_arn : null
}
