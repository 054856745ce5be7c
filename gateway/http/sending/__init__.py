"""Sends answers: whole or streamed, cancelled with their client, resumed."""
