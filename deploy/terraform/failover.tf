# Two regions: a health check of the servers here, a record that leads to the other region if it fails, and a parameter
# that names the active region.

resource "aws_route53_health_check" "primary" {
  for_each = var.failover_zone_id == "" ? toset([]) : toset(["primary"])

  fqdn              = var.failover_primary_name
  port              = 443
  type              = "HTTPS"
  resource_path     = "/readyz"
  request_interval  = 30
  failure_threshold = 3
  measure_latency   = true

  lifecycle {
    precondition {
      condition     = !contains([var.failover_record_name, var.failover_primary_name, var.failover_secondary_name], "")
      error_message = "failover_zone_id: set failover_record_name, failover_primary_name and failover_secondary_name, too."
    }
  }
}

resource "aws_route53_record" "failover" {
  for_each = var.failover_zone_id == "" ? {} : {
    PRIMARY   = var.failover_primary_name
    SECONDARY = var.failover_secondary_name
  }

  zone_id         = var.failover_zone_id
  name            = var.failover_record_name
  type            = "CNAME"
  ttl             = 60
  records         = [each.value]
  set_identifier  = lower(each.key)
  health_check_id = each.key == "PRIMARY" ? aws_route53_health_check.primary["primary"].id : null

  failover_routing_policy {
    type = each.key
  }
}

# A failover overwrites it.
resource "aws_ssm_parameter" "active_region" {
  for_each = var.active_region_parameter == "" ? toset([]) : toset(["active"])

  name        = var.active_region_parameter
  description = "The region that writes."
  type        = "String"
  value       = var.region

  lifecycle {
    ignore_changes = [value]
  }
}
