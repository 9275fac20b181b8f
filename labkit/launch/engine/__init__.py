"""What starts ranks and watches them: the fork server, the agent, the workers and the watchdog."""
