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

variable "fanouts" {
  description = "Whether functions run the chunks of fan-outs. Without them, processes must: headgate chunk work."
  type        = bool
  default     = true
}

variable "manifest_prefix" {
  description = "Prefix of the manifests in the bucket; one that ends with .json is split when it is put there."
  type        = string
  default     = "manifests/"

  validation {
    condition     = can(regex("^[A-Za-z0-9!_.*'()/-]+/$", var.manifest_prefix)) && !startswith(var.manifest_prefix, "blobs/")
    error_message = "It must end with / and must not be below blobs/, where functions write."
  }
}

variable "chunk_batch_size" {
  description = "Chunks of one invocation. More than one only if chunks take seconds."
  type        = number
  default     = 1

  validation {
    condition     = var.chunk_batch_size >= 1 && var.chunk_batch_size <= 10
    error_message = "From 1 to 10."
  }
}

variable "chunk_concurrency_max" {
  description = "Chunk functions that run at once, from 2 to 1000; 0: as many as the account allows."
  type        = number
  default     = 0

  validation {
    condition     = var.chunk_concurrency_max == 0 || (var.chunk_concurrency_max >= 2 && var.chunk_concurrency_max <= 1000)
    error_message = "0, or from 2 to 1000."
  }
}

variable "chunk_policy_arns" {
  description = "Policies that grant chunk handlers what they do in the world."
  type        = list(string)
  default     = []
}
