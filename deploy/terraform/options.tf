# What a deployment may have besides: most of it costs, and is off.

variable "custom_metrics" {
  description = "Whether functions write the metrics of the state store to their logs, with a dashboard and alarms of them. AWS bills each combination of a metric and its dimensions."
  type        = bool
  default     = false
}

variable "table_alarms" {
  description = "Whether each table has an alarm for throttled reads and one for throttled writes. AWS bills each alarm."
  type        = bool
  default     = false
}

variable "create_alarm_topic" {
  description = "Whether a topic for alarms is created, besides alarm_topic_arn. Subscribe to it."
  type        = bool
  default     = false
}

variable "tracing" {
  description = "Whether X-Ray traces the functions and the lifecycle. AWS bills each trace."
  type        = bool
  default     = false
}

variable "create_keys" {
  description = "Whether keys of KMS are created: for tables, bucket, queues and logs unless kms_key_arn names one, for the topic of alarms, and for the secret with the keys of fields. AWS bills each key."
  type        = bool
  default     = false
}

variable "audit_trail" {
  description = "Whether CloudTrail records each access to the tables observability-*, in a bucket of its own. AWS bills each event."
  type        = bool
  default     = false
}

variable "audit_trail_days" {
  description = "How long the records of audit_trail are kept."
  type        = number
  default     = 365

  validation {
    condition     = var.audit_trail_days >= 1 && var.audit_trail_days <= 3650
    error_message = "audit_trail_days: use 1 to 3650."
  }
}

variable "contributor_insights" {
  description = "Tables whose most used keys CloudWatch shows, without table_prefix. AWS bills each table."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.contributor_insights : can(regex("^(headgate|observability)-[a-z-]+$", name))])
    error_message = "contributor_insights: write names of tables, such as observability-signal-state."
  }
}

variable "autoscaling_units_max" {
  description = "Up to how many units provisioned tables and their indexes grow; 0: their capacity stays as it is."
  type        = number
  default     = 0

  validation {
    condition     = var.autoscaling_units_max == 0 || (var.autoscaling_units_max >= 5 && var.autoscaling_units_max <= 40000)
    error_message = "autoscaling_units_max: use 0, or 5 to 40000."
  }
}

variable "autoscaling_units_min" {
  description = "Down to how many units provisioned tables and their indexes shrink, where autoscaling_units_max is set."
  type        = number
  default     = 5

  validation {
    condition     = var.autoscaling_units_min >= 1 && var.autoscaling_units_min <= 40000
    error_message = "autoscaling_units_min: use 1 to 40000."
  }
}

variable "replica_regions" {
  description = "Other regions that have replicas of the tables observability-*, each with the key there that encrypts them, or an empty text."
  type        = map(string)
  default     = {}

  validation {
    condition = alltrue([
      for region, key in var.replica_regions :
      can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", region)) && (key == "" || can(regex("^arn:aws[a-z-]*:kms:", key)))
    ])
    error_message = "replica_regions: write regions with the ARN of a key or an empty text, such as {us-west-2 = \"\"}."
  }
}

variable "vpc_id" {
  description = "Network of servers beside the functions, which gets endpoints and security groups; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.vpc_id == "" || can(regex("^vpc-[0-9a-f]+$", var.vpc_id))
    error_message = "vpc_id: write the id of a VPC, or leave it empty."
  }
}

variable "route_table_ids" {
  description = "Route tables that lead to DynamoDB and S3 by the endpoints."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for id in var.route_table_ids : can(regex("^rtb-[0-9a-f]+$", id))])
    error_message = "route_table_ids: write ids of route tables."
  }
}

variable "private_subnet_ids" {
  description = "Subnets of interface endpoints and of the cache."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for id in var.private_subnet_ids : can(regex("^subnet-[0-9a-f]+$", id))])
    error_message = "private_subnet_ids: write ids of subnets."
  }
}

variable "interface_endpoints" {
  description = "Services that servers reach without the internet, such as sqs, states, scheduler, secretsmanager. AWS bills each by the hour."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.interface_endpoints : can(regex("^[a-z][a-z0-9.-]*$", name))])
    error_message = "interface_endpoints: write names of services, such as sqs."
  }
}

variable "client_security_groups" {
  description = "Security groups that may call the servers, by what is in them: {signal-engines = \"sg-0a1b\"}."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for id in values(var.client_security_groups) : can(regex("^sg-[0-9a-f]+$", id))])
    error_message = "client_security_groups: write ids of security groups."
  }
}

variable "cache_node_type" {
  description = "Nodes of a Redis cache that servers share, such as cache.t4g.small; empty: none. AWS bills them by the hour."
  type        = string
  default     = ""

  validation {
    condition     = var.cache_node_type == "" || can(regex("^cache\\.[a-z0-9]+\\.[a-z0-9]+$", var.cache_node_type))
    error_message = "cache_node_type: write a type such as cache.t4g.small, or leave it empty."
  }
}

variable "failover_zone_id" {
  description = "Hosted zone of a record that leads to the servers here, or to those of the other region if they fail; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.failover_zone_id == "" || can(regex("^Z[A-Z0-9]+$", var.failover_zone_id))
    error_message = "failover_zone_id: write the id of a hosted zone, or leave it empty."
  }
}

variable "failover_record_name" {
  description = "Name of that record."
  type        = string
  default     = ""

  validation {
    condition     = var.failover_record_name == "" || can(regex("^[a-z0-9_*.-]+\\.[a-z]+$", var.failover_record_name))
    error_message = "failover_record_name: write the name of a host."
  }
}

variable "failover_primary_name" {
  description = "Name of the load balancer of the servers here. Its /readyz is checked over HTTPS."
  type        = string
  default     = ""

  validation {
    condition     = var.failover_primary_name == "" || can(regex("^[a-z0-9.-]+\\.[a-z]+$", var.failover_primary_name))
    error_message = "failover_primary_name: write the name of a host."
  }
}

variable "failover_secondary_name" {
  description = "Name of the load balancer of the servers in the other region."
  type        = string
  default     = ""

  validation {
    condition     = var.failover_secondary_name == "" || can(regex("^[a-z0-9.-]+\\.[a-z]+$", var.failover_secondary_name))
    error_message = "failover_secondary_name: write the name of a host."
  }
}

variable "active_region_parameter" {
  description = "Parameter of SSM that names the region that writes, such as /observability/statestore/active-region; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.active_region_parameter == "" || can(regex("^/[A-Za-z0-9_./-]+$", var.active_region_parameter))
    error_message = "active_region_parameter: write a path, or leave it empty."
  }
}

variable "program_principal_arns" {
  description = "Who may assume the roles for programs that use the tables directly; none: there are no such roles."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.program_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts):", arn))])
    error_message = "program_principal_arns: write ARNs of roles or users."
  }
}
