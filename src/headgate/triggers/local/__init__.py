"""Local: triggers that run commands, fan-outs and workflows of this installation."""
