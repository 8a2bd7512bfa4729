"""Builds the package of the Lambda functions: `headgate aws package` from a checkout.

python deploy/package.py build/headgate.zip --pipelines pipelines --notify notify.toml --code src --app orders:app
"""

from __future__ import annotations

import os
import sys

from headgate.cli.aws.package import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], os.environ))  # noqa: TID251 - handed on as it is
