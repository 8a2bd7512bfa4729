variable "region" {
  description = "Region of everything."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region: use a name such as eu-west-1."
  }
}

variable "name" {
  description = "Goes before the name of every function, queue, role, rule and alarm, and of the machine."
  type        = string
  default     = "headgate"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,31}$", var.name))
    error_message = "name: use up to 32 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "table_prefix" {
  description = "Goes before the name of every table: the setting store.table_prefix."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{0,64}$", var.table_prefix))
    error_message = "table_prefix: use up to 64 letters, digits, dots, hyphens and underscores."
  }
}

variable "bucket" {
  description = "Name of the bucket for large payloads and for the package of the functions. It is created."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket: use 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "package" {
  description = "The package that headgate aws package has built."
  type        = string

  validation {
    condition     = fileexists(var.package)
    error_message = "package: there is no such file; build it with: headgate aws package"
  }
}

variable "runtime" {
  description = "Runtime of the functions. The package must have been built with the same version of Python."
  type        = string
  default     = "python3.11"

  validation {
    condition     = can(regex("^(python3\\.1[1-9]|provided\\.al2023)$", var.runtime))
    error_message = "runtime: use python3.11 or later."
  }
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

  validation {
    condition     = alltrue([for name in keys(var.settings) : startswith(name, "HEADGATE_")])
    error_message = "settings: the name of a setting begins with HEADGATE_."
  }
}

variable "app" {
  description = "The app whose workflows the functions run, as module:name of the package; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.app == "" || can(regex("^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", var.app))
    error_message = "app: write module:name, such as orders:app."
  }
}

variable "task_queues" {
  description = "Task queues whose activities the functions perform. Those of others wait for a worker that is a process."
  type        = list(string)
  default     = ["default"]

  validation {
    condition     = alltrue([for queue in var.task_queues : can(regex("^[A-Za-z0-9_-]{1,60}$", queue))])
    error_message = "task_queues: use letters, digits, hyphens and underscores."
  }
}

variable "activity_policy_arns" {
  description = "Policies that grant activities what they do in the world."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.activity_policy_arns : can(regex("^arn:aws[a-z-]*:iam:", arn))])
    error_message = "activity_policy_arns: write ARNs that begin with arn:aws:iam:."
  }
}

variable "sweep_schedule" {
  description = "How often what nobody was told of is looked for, and recurring starts are made."
  type        = string
  default     = "rate(1 minute)"

  validation {
    condition     = can(regex("^(rate|cron)\\(.+\\)$", var.sweep_schedule))
    error_message = "sweep_schedule: write rate(...) or cron(...)."
  }
}

variable "watchdog_schedule" {
  description = "How often the watchdog looks."
  type        = string
  default     = "rate(5 minutes)"

  validation {
    condition     = can(regex("^(rate|cron)\\(.+\\)$", var.watchdog_schedule))
    error_message = "watchdog_schedule: write rate(...) or cron(...)."
  }
}

variable "clockwork_schedule" {
  description = "How often periods that are due by the clock are begun, and alerts delivered."
  type        = string
  default     = "rate(1 minute)"

  validation {
    condition     = can(regex("^(rate|cron)\\(.+\\)$", var.clockwork_schedule))
    error_message = "clockwork_schedule: write rate(...) or cron(...)."
  }
}

variable "keys_secret_arn" {
  description = "A secret that holds keys.json, where servers or workers share the tables; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.keys_secret_arn == "" || can(regex("^arn:aws[a-z-]*:secretsmanager:", var.keys_secret_arn))
    error_message = "keys_secret_arn: write an ARN that begins with arn:aws:secretsmanager:, or leave it empty."
  }
}

variable "lifecycle_topic_arn" {
  description = "SNS topic that is told when a period is done or has failed; empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.lifecycle_topic_arn == "" || can(regex("^arn:aws[a-z-]*:sns:", var.lifecycle_topic_arn))
    error_message = "lifecycle_topic_arn: write an ARN that begins with arn:aws:sns:, or leave it empty."
  }
}

variable "alert_topic_arns" {
  description = "SNS topics that notify.toml names as channels."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alert_topic_arns : can(regex("^arn:aws[a-z-]*:sns:", arn))])
    error_message = "alert_topic_arns: write ARNs that begin with arn:aws:sns:."
  }
}

variable "alert_secret_arns" {
  description = "Secrets that notify.toml names."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alert_secret_arns : can(regex("^arn:aws[a-z-]*:secretsmanager:", arn))])
    error_message = "alert_secret_arns: write ARNs that begin with arn:aws:secretsmanager:."
  }
}

variable "alarm_topic_arn" {
  description = "SNS topic that alarms of CloudWatch go to; empty: they are only shown."
  type        = string
  default     = ""

  validation {
    condition     = var.alarm_topic_arn == "" || can(regex("^arn:aws[a-z-]*:sns:", var.alarm_topic_arn))
    error_message = "alarm_topic_arn: write an ARN that begins with arn:aws:sns:, or leave it empty."
  }
}

variable "reserve_concurrency" {
  description = "Whether the functions that run by the clock reserve one concurrent execution each. Needs a quota of 110 or more: AWS keeps 100 unreserved."
  type        = bool
  default     = false
}

variable "noncurrent_days" {
  description = "How long deleted and replaced objects of the bucket are kept."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1 && var.noncurrent_days <= 3650
    error_message = "noncurrent_days: use 1 to 3650."
  }
}

variable "kms_key_arn" {
  description = "Key that tables, bucket, queues and logs are encrypted with; empty: keys of AWS."
  type        = string
  default     = ""

  validation {
    condition     = var.kms_key_arn == "" || can(regex("^arn:aws[a-z-]*:kms:", var.kms_key_arn))
    error_message = "kms_key_arn: write an ARN that begins with arn:aws:kms:, or leave it empty."
  }
}

variable "log_retention_days" {
  description = "How long the logs of functions and machine are kept."
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days: CloudWatch takes 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731 or more days, as its documentation lists."
  }
}

variable "deletion_protection" {
  description = "Whether tables refuse to be deleted, and the bucket to be deleted while it holds objects. Set it to false and apply before destroy."
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

  validation {
    condition     = alltrue([for arn in var.lambda_job_arns : can(regex("^arn:aws[a-z-]*:lambda:", arn))])
    error_message = "lambda_job_arns: write ARNs that begin with arn:aws:lambda:."
  }
}

variable "step_function_job_arns" {
  description = "State machines that triggers of the type step-function may start."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.step_function_job_arns : can(regex("^arn:aws[a-z-]*:states:", arn))])
    error_message = "step_function_job_arns: write ARNs that begin with arn:aws:states:."
  }
}

variable "glue_job_arns" {
  description = "Jobs that triggers of the type glue may start."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.glue_job_arns : can(regex("^arn:aws[a-z-]*:glue:", arn))])
    error_message = "glue_job_arns: write ARNs that begin with arn:aws:glue:."
  }
}

variable "emr_cluster_arns" {
  description = "Clusters that triggers of the type emr may add steps to."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.emr_cluster_arns : can(regex("^arn:aws[a-z-]*:elasticmapreduce:", arn))])
    error_message = "emr_cluster_arns: write ARNs that begin with arn:aws:elasticmapreduce:."
  }
}

variable "emr_serverless_application_arns" {
  description = "Applications that triggers of the type emr-serverless may start jobs in."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.emr_serverless_application_arns : can(regex("^arn:aws[a-z-]*:emr-serverless:", arn))])
    error_message = "emr_serverless_application_arns: write ARNs that begin with arn:aws:emr-serverless:."
  }
}

variable "job_role_arns" {
  description = "Roles that are handed to jobs of EMR Serverless."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.job_role_arns : can(regex("^arn:aws[a-z-]*:iam:", arn))])
    error_message = "job_role_arns: write ARNs that begin with arn:aws:iam:."
  }
}

variable "evaluator_object_arns" {
  description = "Objects of S3, as bucket/prefix*, that the evaluator s3-object may look at."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.evaluator_object_arns : can(regex("^arn:aws[a-z-]*:s3:", arn))])
    error_message = "evaluator_object_arns: write ARNs that begin with arn:aws:s3:."
  }
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

  validation {
    condition     = alltrue([for arn in var.chunk_policy_arns : can(regex("^arn:aws[a-z-]*:iam:", arn))])
    error_message = "chunk_policy_arns: write ARNs that begin with arn:aws:iam:."
  }
}
