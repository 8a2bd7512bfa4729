"""Engine: advances executions turn by turn, and stores activities, inboxes and the membership of workers."""
