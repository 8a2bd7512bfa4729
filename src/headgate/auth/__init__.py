"""Auth: authentication by API keys and OIDC tokens, and authorisation by roles and dataset scopes."""
