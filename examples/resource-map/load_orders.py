"""Loads the orders of a day: the local form of a Glue job. Input and result are JSON files."""

import json
import os
from pathlib import Path

call = json.loads(Path(os.environ["HEADGATE_INPUT_FILE"]).read_text())
day = call["Arguments"]["--day"]
print(f"loading {day}")
result = {"Id": f"local-{day}", "JobName": call["JobName"], "JobRunState": "SUCCEEDED"}
Path(os.environ["HEADGATE_OUTPUT_FILE"]).write_text(json.dumps(result))
