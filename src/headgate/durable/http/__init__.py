"""HTTP routes of an app: paths, inputs, responses, workflow commands and their OpenAPI document."""
