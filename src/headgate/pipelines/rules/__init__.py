"""Rules: compiles and evaluates readiness rules, and combines them with traits into a verdict."""
