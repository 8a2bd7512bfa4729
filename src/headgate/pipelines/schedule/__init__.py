"""Schedules: calendars, periods, timetables, deadlines and dependencies, as pure functions of definitions."""
