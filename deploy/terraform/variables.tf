variable "region" {
  description = "Region of everything."
  type        = string
}

variable "name" {
  description = "Goes before the name of every function, queue, role, rule and alarm, and of the machine."
  type        = string
  default     = "headgate"
}

variable "table_prefix" {
  description = "Goes before the name of every table: the setting store.table_prefix."
  type        = string
  default     = ""
}

variable "bucket" {
  description = "Name of the bucket for large payloads and for the package of the functions. It is created."
  type        = string
}

variable "package" {
  description = "The package that deploy/package.py has built."
  type        = string
}

variable "runtime" {
  description = "Runtime of the functions. The package must have been built with the same version of Python."
  type        = string
  default     = "python3.11"
}

variable "architecture" {
  description = "Architecture of the functions. The package must have been built on the same."
  type        = string
  default     = "x86_64"

  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "architecture: use x86_64 or arm64."
  }
}

variable "settings" {
  description = "Further settings of the functions, as variables: HEADGATE_LOG_LEVEL and so on."
  type        = map(string)
  default     = {}
}

variable "app" {
  description = "The app whose workflows the functions run, as module:name of the package; empty: none."
  type        = string
  default     = ""
}

variable "task_queues" {
  description = "Task queues whose activities the functions perform. Those of others wait for a worker that is a process."
  type        = list(string)
  default     = ["default"]
}

variable "activity_policy_arns" {
  description = "Policies that grant activities what they do in the world."
  type        = list(string)
  default     = []
}

variable "sweep_schedule" {
  description = "How often what nobody was told of is looked for, and recurring starts are made."
  type        = string
  default     = "rate(1 minute)"
}

variable "watchdog_schedule" {
  description = "How often the watchdog looks."
  type        = string
  default     = "rate(5 minutes)"
}

variable "clockwork_schedule" {
  description = "How often periods that are due by the clock are begun, and alerts delivered."
  type        = string
  default     = "rate(1 minute)"
}

variable "keys_secret_arn" {
  description = "A secret that holds keys.json, where servers or workers share the tables; empty: none."
  type        = string
  default     = ""
}

variable "lifecycle_topic_arn" {
  description = "SNS topic that is told when a period is done or has failed; empty: none."
  type        = string
  default     = ""
}

variable "alert_topic_arns" {
  description = "SNS topics that notify.toml names as channels."
  type        = list(string)
  default     = []
}

variable "alert_secret_arns" {
  description = "Secrets that notify.toml names."
  type        = list(string)
  default     = []
}

variable "alarm_topic_arn" {
  description = "SNS topic that alarms of CloudWatch go to; empty: they are only shown."
  type        = string
  default     = ""
}

variable "kms_key_arn" {
  description = "Key that tables, bucket, queues and logs are encrypted with; empty: keys of AWS."
  type        = string
  default     = ""
}

variable "log_retention_days" {
  description = "How long the logs of functions and machine are kept."
  type        = number
  default     = 30
}

variable "deletion_protection" {
  description = "Whether tables refuse to be deleted."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
}

# What jobs may be started. Nothing, unless it is named.

variable "lambda_job_arns" {
  description = "Functions that triggers of the type lambda may invoke."
  type        = list(string)
  default     = []
}

variable "step_function_job_arns" {
  description = "State machines that triggers of the type step-function may start."
  type        = list(string)
  default     = []
}

variable "glue_job_arns" {
  description = "Jobs that triggers of the type glue may start."
  type        = list(string)
  default     = []
}

variable "emr_cluster_arns" {
  description = "Clusters that triggers of the type emr may add steps to."
  type        = list(string)
  default     = []
}

variable "emr_serverless_application_arns" {
  description = "Applications that triggers of the type emr-serverless may start jobs in."
  type        = list(string)
  default     = []
}

variable "job_role_arns" {
  description = "Roles that are handed to jobs of EMR Serverless."
  type        = list(string)
  default     = []
}

variable "evaluator_object_arns" {
  description = "Objects of S3, as bucket/prefix*, that the evaluator s3-object may look at."
  type        = list(string)
  default     = []
}
